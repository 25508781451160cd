// Package local is the embedded engine: a small language model behind the API
// of an inference server.
package local

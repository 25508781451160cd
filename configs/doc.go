// Package configs is the configuration file: its schema, strict decoding,
// defaults, validation and reload.
package configs

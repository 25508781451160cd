// Package check holds no code: its tests decode what deploy/ has with the types
// and parsers of those who will read it, in a module of its own so that
// Kubernetes and BuildKit are no dependencies of the gateway.
package check

// Package configs is the configuration file: its schema, strict decoding,
// defaults, validation, redaction and the watch that a reload hangs on. It
// imports nothing else of Penstock.
//
// Its parts in reading order: schema.go (every key, with its meaning),
// types.go (sizes and secrets), defaults.go (what a key is when the file is
// silent, and who inherits from whom), load.go (the way from a file to a
// *Config), refs.go (${NAME}), decode.go (YAML to struct, strictly), errors.go
// (one line for each mistake), validate*.go (what values may be), methods.go
// (answers that other packages ask for), redact.go (the effective
// configuration without its secrets), reference.go (docs/configuration.md),
// watch.go (a file's changes).
package configs

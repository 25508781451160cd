package gateway

import (
	"bytes"
	"encoding/hex"
	"math/rand/v2"
)

// requestID is the client's own x-request-id where it is harmless
// ([A-Za-z0-9._-]{1,128}), else a new one.
func requestID(given []byte) string {
	if len(given) == 0 || len(given) > 128 {
		return newID()
	}
	for _, c := range given {
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '.' || c == '_' || c == '-') {
			return newID()
		}
	}
	return string(given)
}

// newID is unique among requests; it is not a secret.
func newID() string {
	var b [28]byte
	copy(b[:], "req_")
	var raw [12]byte
	hi, lo := rand.Uint64(), rand.Uint32()
	for i := range 8 {
		raw[i] = byte(hi >> (8 * i))
	}
	for i := range 4 {
		raw[8+i] = byte(lo >> (8 * i))
	}
	hex.Encode(b[4:], raw[:])
	return string(b[:])
}

func trimSpace(b []byte) []byte { return bytes.Trim(b, " \t") }

func asciiEqualFold(b []byte, lower string) bool {
	if len(b) != len(lower) {
		return false
	}
	for i, c := range b {
		if c >= 'A' && c <= 'Z' {
			c += 'a' - 'A'
		}
		if c != lower[i] {
			return false
		}
	}
	return true
}

package engine

import (
	"encoding/json"
	"errors"
	"math"
	"strconv"
	"strings"
)

// decode reads an engine's answer. A field of another type than expected is one
// that the engine does not tell: it must not keep an engine out that would
// answer requests.
func decode(body []byte, into any) error {
	err := json.Unmarshal(body, into) // goes on after such a field
	if odd, ok := errors.AsType[*json.UnmarshalTypeError](err); ok && odd.Field != "" {
		return nil
	}
	return err
}

// number is a whole number however it is written: 64, 64.0 or "64". What is no
// number is 0, not told.
type number int

func (n *number) UnmarshalJSON(b []byte) error {
	f, err := strconv.ParseFloat(strings.Trim(string(b), `"`), 64)
	if err == nil && math.Abs(f) <= math.MaxInt32*1000.0 { // far beyond any cache, and whole as a float
		*n = number(f)
	}
	return nil
}

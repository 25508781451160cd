package scan

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"unicode/utf16"
	"unicode/utf8"
)

const (
	ones  = 0x0101010101010101
	highs = 0x8080808080808080
)

// special marks, in the high bit of its byte, the first byte of x that ends a plain run inside a string: a
// quote, a backslash or a control character. Bytes above the first marked one may be marked wrongly.
func special(x uint64) uint64 {
	quote, slash := x^(ones*'"'), x^(ones*'\\')
	return ((x-ones*0x20)&^x | (quote-ones)&^quote | (slash-ones)&^slash) & highs
}

// String validates the string whose opening quote is b[i] and returns the offset after its closing quote, and
// whether it holds escapes.
func String(b []byte, i int) (end int, escaped bool, err *SyntaxError) {
	i++
	quote := 0          // the next quote known to plainRun; none yet
	long := i + longRun // where a run from i on becomes a long one
	for {
		for i+8 <= len(b) {
			m := special(binary.LittleEndian.Uint64(b[i:]))
			if m == 0 {
				if i += 8; i >= long {
					i, quote = plainRun(b, i, quote)
					long = i + longRun
				}
				continue
			}
			i += bits.TrailingZeros64(m) / 8
			if b[i] == '"' {
				return i + 1, escaped, nil
			}
			if b[i] != '\\' || i+1 == len(b) || !short(b[i+1]) {
				break
			}
			escaped = true
			i += 2
			long = i + longRun
		}
		if i >= len(b) {
			end, err = fail(len(b), "unexpected end of the JSON text inside a string")
			return end, escaped, err
		}
		switch c := b[i]; {
		case c == '"':
			return i + 1, escaped, nil
		case c == '\\':
			escaped = true
			if i, err = escape(b, i); err != nil {
				return i, escaped, err
			}
		case c < 0x20:
			end, err = fail(i, "control character inside a string")
			return end, escaped, err
		default:
			i++ // within the last eight bytes
		}
	}
}

// longRun is the length of a run from which on it pays to look for its end with the vectors of bytes.IndexByte.
// Text with an escape at the end of each line stays below it.
const longRun = 160

// plainRun returns the offset of what ends the plain run at b[i]: the closing quote, a backslash, a control
// character or the end. quote is the next quote known from an earlier call, if it is not before i.
func plainRun(b []byte, i, quote int) (end, next int) {
	if quote < i {
		n := bytes.IndexByte(b[i:], '"')
		if n < 0 {
			n = len(b) - i
		}
		quote = i + n
	}
	end = quote
	if n := bytes.IndexByte(b[i:end], '\\'); n >= 0 {
		end = i + n
	}
	return i + untilControl(b[i:end]), quote
}

// untilControl is the offset of the first control character, or the length.
func untilControl(b []byte) int {
	const least = ones * 0x20
	i := 0
	for ; i+32 <= len(b); i += 32 {
		w := b[i : i+32 : i+32]
		p, q := binary.LittleEndian.Uint64(w), binary.LittleEndian.Uint64(w[8:])
		r, s := binary.LittleEndian.Uint64(w[16:]), binary.LittleEndian.Uint64(w[24:])
		if ((p-least)&^p|(q-least)&^q|(r-least)&^r|(s-least)&^s)&highs != 0 {
			break
		}
	}
	for ; i < len(b); i++ {
		if b[i] < 0x20 {
			break
		}
	}
	return i
}

// short says whether \c is an escape of two bytes.
func short(c byte) bool {
	const low = 1<<'"' | 1<<'/'
	const high = 1<<('\\'-64) | 1<<('b'-64) | 1<<('f'-64) | 1<<('n'-64) | 1<<('r'-64) | 1<<('t'-64)
	if c < 64 {
		return low>>c&1 != 0
	}
	return c < 128 && high>>(c-64)&1 != 0
}

// escape validates the escape at b[i] and returns the offset after it.
func escape(b []byte, i int) (int, *SyntaxError) {
	if i+1 >= len(b) {
		return fail(len(b), "unexpected end of the JSON text inside a string")
	}
	if short(b[i+1]) {
		return i + 2, nil
	}
	if b[i+1] != 'u' {
		return fail(i, "unknown escape inside a string")
	}
	if _, ok := hex4(b, i+2); !ok {
		return fail(i, `expected four hexadecimal digits after \u`)
	}
	return i + 6, nil
}

func hex4(b []byte, i int) (rune, bool) {
	if i+4 > len(b) {
		return 0, false
	}
	var r rune
	for _, c := range b[i : i+4] {
		switch {
		case c-'0' <= 9:
			c -= '0'
		case c|0x20 >= 'a' && c|0x20 <= 'f':
			c = c | 0x20 - 'a' + 10
		default:
			return 0, false
		}
		r = r<<4 | rune(c)
	}
	return r, true
}

// Unescape reads the escape at raw[0] of a validated string's inside: the character it stands for and the bytes
// it takes. A surrogate without its other half is U+FFFD, as in encoding/json.
func Unescape(raw []byte) (r rune, n int) {
	switch raw[1] {
	case 'b':
		return '\b', 2
	case 'f':
		return '\f', 2
	case 'n':
		return '\n', 2
	case 'r':
		return '\r', 2
	case 't':
		return '\t', 2
	case 'u':
		r, _ = hex4(raw, 2)
		if !utf16.IsSurrogate(r) {
			return r, 6
		}
		if len(raw) >= 12 && raw[6] == '\\' && raw[7] == 'u' {
			low, _ := hex4(raw, 8)
			if pair := utf16.DecodeRune(r, low); pair != utf8.RuneError {
				return pair, 12
			}
		}
		return utf8.RuneError, 6
	default:
		return rune(raw[1]), 2
	}
}

// AppendDecoded appends to dst what the inside of a validated string (its quotes left out) stands for.
func AppendDecoded(dst, raw []byte) []byte {
	for {
		i := bytes.IndexByte(raw, '\\')
		if i < 0 {
			return append(dst, raw...)
		}
		dst = append(dst, raw[:i]...)
		r, n := Unescape(raw[i:])
		dst = utf8.AppendRune(dst, r)
		raw = raw[i+n:]
	}
}

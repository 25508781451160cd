package lm

import "unicode/utf8"

// Detok turns a stream of token bytes into text, holding back the beginning of
// a UTF-8 character until it is whole. Invalid bytes become U+FFFD, each run
// that could have begun a character counting as one. The zero value is ready;
// it belongs to one goroutine.
type Detok struct {
	held [utf8.UTFMax]byte
	n    int
}

// Append adds the text that s completes to dst.
func (d *Detok) Append(dst []byte, s string) []byte {
	for i := 0; i < len(s); {
		c := s[i]
		if d.n == 0 && c < utf8.RuneSelf {
			dst = append(dst, c)
			i++
			continue
		}
		d.held[d.n] = c
		p := d.held[:d.n+1]
		switch {
		case !utf8.FullRune(p): // still a possible beginning
			d.n++
			i++
		case d.n > 0 && !utf8.Valid(p): // c does not continue it: look at c again
			dst = append(dst, string(utf8.RuneError)...)
			d.n = 0
		case !utf8.Valid(p):
			dst = append(dst, string(utf8.RuneError)...)
			i++
		default:
			dst = append(dst, p...)
			d.n = 0
			i++
		}
	}
	return dst
}

// Flush ends the text: an unfinished character becomes U+FFFD.
func (d *Detok) Flush(dst []byte) []byte {
	if d.n > 0 {
		dst = append(dst, string(utf8.RuneError)...)
		d.n = 0
	}
	return dst
}

package local

import (
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// What follows reads values that encoding/json has already found valid, once
// and without a second validation: prompts are by far the largest part of a body.

// unquote reads a JSON string with its quotes. Broken surrogates and UTF-8
// become U+FFFD, as encoding/json does.
func unquote(raw []byte) (string, bool) {
	if len(raw) < 2 || raw[0] != '"' || raw[len(raw)-1] != '"' {
		return "", false
	}
	s := string(raw[1 : len(raw)-1])
	if strings.IndexByte(s, '\\') >= 0 {
		s = unescape(s)
	}
	if !utf8.ValidString(s) {
		var b strings.Builder
		for _, r := range s {
			b.WriteRune(r)
		}
		s = b.String()
	}
	return s, true
}

func unescape(s string) string {
	b := make([]byte, 0, len(s))
	for {
		i := strings.IndexByte(s, '\\')
		if i < 0 || i+1 >= len(s) {
			return string(append(b, s...))
		}
		b = append(b, s[:i]...)
		c := s[i+1]
		s = s[i+2:]
		switch c {
		case 'n':
			b = append(b, '\n')
		case 't':
			b = append(b, '\t')
		case 'r':
			b = append(b, '\r')
		case 'b':
			b = append(b, '\b')
		case 'f':
			b = append(b, '\f')
		case 'u':
			var r rune
			r, s = escapedRune(s)
			b = utf8.AppendRune(b, r)
		default: // quote, backslash, slash
			b = append(b, c)
		}
	}
}

// escapedRune reads what follows \u, two of them for a surrogate pair.
func escapedRune(s string) (rune, string) {
	r, ok := hex4(s)
	if !ok {
		return utf8.RuneError, s
	}
	s = s[4:]
	if !utf16.IsSurrogate(r) {
		return r, s
	}
	if strings.HasPrefix(s, `\u`) {
		if low, ok := hex4(s[2:]); ok {
			if pair := utf16.DecodeRune(r, low); pair != utf8.RuneError {
				return pair, s[6:]
			}
		}
	}
	return utf8.RuneError, s
}

func hex4(s string) (r rune, ok bool) {
	if len(s) < 4 {
		return 0, false
	}
	for i := range 4 {
		d := strings.IndexByte(hex, s[i]|0x20)
		if '0' <= s[i] && s[i] <= '9' {
			d = int(s[i] - '0')
		}
		if d < 0 {
			return 0, false
		}
		r = r<<4 | rune(d)
	}
	return r, true
}

// readIDs reads a list of token ids.
func readIDs(raw []byte) ([]uint32, bool) {
	if len(raw) < 2 || raw[0] != '[' {
		return nil, false
	}
	ids := make([]uint32, 0, len(raw)/4)
	n, digits := uint64(0), 0
	for _, c := range raw[1:] {
		switch {
		case '0' <= c && c <= '9':
			n = n*10 + uint64(c-'0')
			if digits++; digits > 10 || n > 1<<32-1 {
				return nil, false
			}
		case c == ',' || c == ']':
			if digits == 0 {
				return ids, len(ids) == 0 && c == ']'
			}
			ids = append(ids, uint32(n))
			n, digits = 0, 0
			if c == ']' {
				return ids, true
			}
		case c > ' ':
			return nil, false
		}
	}
	return nil, false
}

// elements splits a JSON list into its elements.
func elements(raw []byte) (list [][]byte, ok bool) {
	if len(raw) < 2 || raw[0] != '[' {
		return nil, false
	}
	depth, from, inString := 0, 1, false
	for i := 0; i < len(raw); i++ {
		switch c := raw[i]; {
		case inString:
			switch c {
			case '\\':
				i++
			case '"':
				inString = false
			}
		case c == '"':
			inString = true
		case c == '[' || c == '{':
			depth++
		case c == ']' || c == '}':
			if depth--; depth == 0 {
				if e := trim(raw[from:i]); len(e) > 0 {
					list = append(list, e)
				}
				return list, true
			}
		case c == ',' && depth == 1:
			list = append(list, trim(raw[from:i]))
			from = i + 1
		}
	}
	return nil, false
}

func trim(b []byte) []byte {
	for len(b) > 0 && b[0] <= ' ' {
		b = b[1:]
	}
	for len(b) > 0 && b[len(b)-1] <= ' ' {
		b = b[:len(b)-1]
	}
	return b
}

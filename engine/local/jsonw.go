package local

import (
	"strconv"
	"sync"
	"unicode/utf8"
)

const hex = "0123456789abcdef"

// appendString writes s as a JSON string: only what must be escaped is, and
// invalid UTF-8 becomes U+FFFD.
func appendString[T string | []byte](b []byte, s T) []byte {
	b = append(b, '"')
	from := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c >= utf8.RuneSelf {
			r, n := decodeRune(s[i:])
			if r == utf8.RuneError && n == 1 {
				b = append(b, s[from:i]...)
				b = append(b, "\uFFFD"...)
				from = i + 1
			}
			i += n
			continue
		}
		if c >= ' ' && c != '"' && c != '\\' {
			i++
			continue
		}
		b = append(b, s[from:i]...)
		switch c {
		case '"', '\\':
			b = append(b, '\\', c)
		case '\n':
			b = append(b, '\\', 'n')
		case '\r':
			b = append(b, '\\', 'r')
		case '\t':
			b = append(b, '\\', 't')
		default:
			b = append(b, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		}
		i++
		from = i
	}
	b = append(b, s[from:]...)
	return append(b, '"')
}

func decodeRune[T string | []byte](s T) (rune, int) {
	n := min(len(s), utf8.UTFMax)
	var buf [utf8.UTFMax]byte
	copy(buf[:], s[:n])
	return utf8.DecodeRune(buf[:n])
}

func appendStringOrNull(b []byte, s string) []byte {
	if s == "" {
		return append(b, "null"...)
	}
	return appendString(b, s)
}

func appendInt[T int | int64 | uint32](b []byte, n T) []byte {
	return strconv.AppendInt(b, int64(n), 10)
}

// appendFloat writes the shortest text that reads back as exactly f.
func appendFloat(b []byte, f float64) []byte { return strconv.AppendFloat(b, f, 'g', -1, 64) }

// buffers keeps the memory of answers between requests.
type buffers struct{ pool sync.Pool }

// maxKept bounds what is kept of one buffer: a large scoring answer is rare.
const maxKept = 1 << 20

func (p *buffers) get() []byte {
	if b, ok := p.pool.Get().(*[]byte); ok {
		return (*b)[:0]
	}
	return make([]byte, 0, 4<<10)
}

func (p *buffers) put(b []byte) {
	if b != nil && cap(b) <= maxKept {
		p.pool.Put(&b)
	}
}

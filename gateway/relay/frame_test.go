package relay

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
)

// unframe runs a frame over in, cut into pieces of n bytes.
func unframe(length int, in string, n int) (body string, rest int, ended bool, err error) {
	var f frame
	f.start(length)
	var b strings.Builder
	for len(in) > 0 && !f.ended {
		piece := []byte(in[:min(n, len(in))])
		for len(piece) > 0 && !f.ended {
			data, used, err := f.next(piece)
			if err != nil {
				return b.String(), len(in), f.ended, err
			}
			if used == 0 {
				return b.String(), len(in), f.ended, fmt.Errorf("no progress at %q", piece)
			}
			b.Write(data)
			piece, in = piece[used:], in[used:]
		}
	}
	return b.String(), len(in), f.ended, nil
}

func TestChunksAreTakenApartWhereverReadsEnd(t *testing.T) {
	for _, c := range []struct {
		name, in, body string
		rest           int
		ended          bool
	}{
		{"two chunks", "5\r\nhello\r\n6\r\n there\r\n0\r\n\r\n", "hello there", 0, true},
		{"capital digits, leading zeros", "00A\r\n0123456789\r\n000\r\n\r\n", "0123456789", 0, true},
		{"extension", "5;name=\"va;lue\"\r\nhello\r\n0;x\r\n\r\n", "hello", 0, true},
		{"space after the size", "5  \r\nhello\r\n0\r\n\r\n", "hello", 0, true},
		{"trailers", "1\r\nx\r\n0\r\nA: b\r\nCc: dd\r\n\r\n", "x", 0, true},
		{"bytes after the end", "1\r\nx\r\n0\r\n\r\nHTTP/1.1 200 OK", "x", 15, true},
		{"CR and LF in the data", "4\r\n\r\n\r\n\r\n0\r\n\r\n", "\r\n\r\n", 0, true},
		{"cut in the data", "5\r\nhel", "hel", 0, false},
		{"cut before the last line", "1\r\nx\r\n0\r\n", "x", 0, false},
	} {
		for n := 1; n <= len(c.in); n++ {
			body, rest, ended, err := unframe(-1, c.in, n)
			if body != c.body || rest != c.rest || ended != c.ended || err != nil {
				t.Errorf("%s, in pieces of %d: got %q, %d left, ended %v, %v; want %q, %d, %v", c.name, n, body, rest, ended, err, c.body, c.rest, c.ended)
			}
		}
	}
}

func TestBrokenChunksAreRefused(t *testing.T) {
	for _, in := range []string{
		"zz\r\n", "\r\n", ";x\r\n", "5\nhello", "5\r\nhelloX\r\n", "5\r\nhello\n", "5\rhello", "-1\r\n", "5;a\nb\r\n",
		"0\r\n\rX", "ffffffffffffffff\r\n", "10000000001\r\n" + "x", "1;" + strings.Repeat("x", maxChunkExtra+1),
		"0\r\n" + strings.Repeat("a: b\r\n", maxChunkExtra/5),
	} {
		for _, n := range []int{1, 7, 1 << 20} {
			if body, _, ended, err := unframe(-1, in, n); err == nil {
				t.Errorf("%.40q in pieces of %d: got %.40q, ended %v, want an error", in, n, body, ended)
			}
		}
	}
}

func TestLengthAndClose(t *testing.T) {
	if body, rest, ended, _ := unframe(5, "helloHTTP", 2); body != "hello" || rest != 4 || !ended {
		t.Errorf("length 5: got %q, %d left, ended %v", body, rest, ended)
	}
	if body, rest, ended, _ := unframe(-2, "hello", 2); body != "hello" || rest != 0 || ended {
		t.Errorf("until close: got %q, %d left, ended %v", body, rest, ended)
	}
	if _, rest, ended, _ := unframe(0, "HTTP", 2); rest != 4 || !ended {
		t.Errorf("length 0: %d left, ended %v", rest, ended)
	}
}

// However the bytes are cut, the same comes out; and what comes out frames again to the same.
func FuzzChunks(f *testing.F) {
	f.Add([]byte("5\r\nhello\r\n0\r\n\r\nrest"), 3)
	f.Add([]byte("5;x\r\nhello\r\n0\r\nA: b\r\n\r\n"), 1)
	f.Fuzz(func(t *testing.T, in []byte, n int) {
		n = max(1, n%64)
		all, rest1, ended1, err1 := unframe(-1, string(in), len(in)+1)
		cut, rest2, ended2, err2 := unframe(-1, string(in), n)
		if all != cut || ended1 != ended2 || (err1 == nil) != (err2 == nil) || (err1 == nil && rest1 != rest2) {
			t.Fatalf("%q: whole: %q, %d, %v, %v; in pieces of %d: %q, %d, %v, %v", in, all, rest1, ended1, err1, n, cut, rest2, ended2, err2)
		}
		if ended1 && err1 == nil {
			var b bytes.Buffer
			if len(all) > 0 {
				fmt.Fprintf(&b, "%x\r\n%s\r\n", len(all), all)
			}
			b.WriteString("0\r\n\r\n")
			if again, _, ended, err := unframe(-1, b.String(), 5); again != all || !ended || err != nil {
				t.Fatalf("framed again: %q, want %q", again, all)
			}
		}
	})
}

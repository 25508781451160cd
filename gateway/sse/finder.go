package sse

import "bytes"

// Finder finds the end of each event in a buffer that grows. Lines may end in LF, CR LF or CR. The zero value
// is ready for the beginning of a stream. Its work is linear in the bytes, however they arrive.
type Finder struct {
	scan    int  // how far the event has been looked at
	line    int  // where its current line begins
	lf, cr  int  // no LF, no CR stands between scan and here
	content bool // one of its lines is not blank
	crlf    bool // the last line of the stream ended in CR LF
	begun   bool // the stream's first line is over
}

// Find looks for the end of the event that begins at b[0]: its length, the blank line included. When there is
// none yet, it is called again with the same bytes and more. Blank lines before an event belong to it. A CR
// that ends the buffer where the stream's lines end in CR LF waits for its LF; where they end in CR, the event
// is over.
func (f *Finder) Find(b []byte) (n int, ok bool) {
	for {
		at := f.lineEnd(b)
		if at >= len(b) {
			f.scan = len(b)
			return 0, false
		}
		blank := at == f.line || !f.begun && f.line == 0 && string(b[:at]) == bom
		end := at + 1
		if b[at] == '\r' {
			switch {
			case end < len(b):
				if f.crlf = b[end] == '\n'; f.crlf {
					end++
				}
			case f.crlf || !blank || !f.content:
				f.scan = at
				return 0, false
			}
		} else {
			f.crlf = false
		}
		f.line, f.scan, f.begun = end, end, true
		if blank && f.content {
			*f = Finder{crlf: f.crlf, begun: true}
			return end, true
		}
		f.content = f.content || !blank
	}
}

// bom may stand before a stream's first line.
const bom = "\xef\xbb\xbf"

// lineEnd is the offset of the first line end from scan on, or len(b).
func (f *Finder) lineEnd(b []byte) int {
	f.lf = seek(b, max(f.lf, f.scan), '\n')
	f.cr = seek(b[:f.lf], max(f.cr, f.scan), '\r')
	return min(f.lf, f.cr)
}

// seek is the offset of c in b from i on, or len(b).
func seek(b []byte, i int, c byte) int {
	if i >= len(b) {
		return len(b)
	}
	if n := bytes.IndexByte(b[i:], c); n >= 0 {
		return i + n
	}
	return len(b)
}

// Blank says whether the rest of a stream is nothing but line ends: then its last event was whole.
func Blank(rest []byte) bool {
	for _, c := range rest {
		if c != '\n' && c != '\r' {
			return len(rest) == len(bom) && string(rest) == bom
		}
	}
	return true
}

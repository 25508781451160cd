package scoring

import (
	"bytes"
	"io"
	"strconv"
)

// gather is how much is collected before w is written to.
const gather = 32 << 10

// writer writes an answer, or, without w, only counts it.
type writer struct {
	w      io.Writer
	buf    []byte
	n      int64
	err    error
	digits []byte
	line   bool // line ends between JSON's tokens become spaces: the text is one line of an event
}

func (w *writer) raw(p []byte) {
	if w.line {
		for i := bytes.IndexAny(p, "\r\n"); i >= 0; i = bytes.IndexAny(p, "\r\n") {
			w.put(p[:i])
			w.put([]byte{' '})
			p = p[i+1:]
		}
	}
	w.put(p)
}

func (w *writer) put(p []byte) {
	w.n += int64(len(p))
	if w.w == nil || w.err != nil {
		return
	}
	if w.buf == nil {
		w.buf = make([]byte, 0, gather)
	}
	if len(w.buf)+len(p) > cap(w.buf) {
		w.flush()
	}
	if len(p) > gather/8 && w.err == nil {
		w.flush()
		_, w.err = w.w.Write(p)
		return
	}
	w.buf = append(w.buf, p...)
}

func (w *writer) text(s string) {
	w.n += int64(len(s))
	if w.w == nil || w.err != nil {
		return
	}
	if len(w.buf)+len(s) > cap(w.buf) {
		w.put(nil)
		w.flush()
	}
	w.buf = append(w.buf, s...)
}

func (w *writer) int(n int) {
	w.digits = strconv.AppendInt(w.digits[:0], int64(n), 10)
	w.put(w.digits)
}

func (w *writer) flush() {
	if len(w.buf) > 0 && w.err == nil {
		_, w.err = w.w.Write(w.buf)
	}
	w.buf = w.buf[:0]
}

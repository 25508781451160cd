package sse

import (
	"errors"
	"io"
)

// ErrTooLong is an event beyond the splitter's bound.
var ErrTooLong = errors.New("server-sent event longer than max_event")

const (
	firstBuffer = 4 << 10  // holds a few dozen tokens' events
	keepBuffer  = 64 << 10 // what Reset keeps
)

// Splitter collects bytes and gives whole events back. Use: Fill, or Feed, then Next until nil, again. Events
// that are ready together lie next to each other in memory, so that the bytes from the first to the last can be
// written at once.
type Splitter struct {
	buf  []byte
	r    int   // buf[r:] has not been given out
	done int   // buf[r:done] is whole events
	ends []int // where these events end
	head int   // ends[head:] have not been given out
	max  int
	find Finder
}

// NewSplitter returns a splitter for events of at most maxEvent bytes.
func NewSplitter(maxEvent int) *Splitter {
	s := new(Splitter)
	s.Reset(maxEvent)
	return s
}

// Reset makes s ready for another stream. It keeps its buffer unless that grew large.
func (s *Splitter) Reset(maxEvent int) {
	buf, ends := s.buf[:0], s.ends[:0]
	if cap(buf) > keepBuffer {
		buf = nil
	}
	*s = Splitter{buf: buf, ends: ends, max: maxEvent}
}

// Fill reads once from r. What Next gave before is no longer valid.
func (s *Splitter) Fill(r io.Reader) (int, error) {
	s.room(1)
	n, err := r.Read(s.buf[len(s.buf):cap(s.buf)])
	s.buf = s.buf[:len(s.buf)+n]
	if bad := s.scan(); bad != nil {
		err = bad
	}
	return n, err
}

// Feed adds bytes. What Next gave before is no longer valid.
func (s *Splitter) Feed(p []byte) error {
	s.room(len(p))
	s.buf = append(s.buf, p...)
	return s.scan()
}

// room makes space for n more bytes: first by forgetting what was given out, then by growing.
func (s *Splitter) room(n int) {
	if s.head == len(s.ends) {
		s.ends, s.head = s.ends[:0], 0
	}
	if s.r == len(s.buf) {
		s.buf, s.r, s.done = s.buf[:0], 0, 0
	}
	if cap(s.buf)-len(s.buf) >= n {
		return
	}
	rest := s.buf[s.r:]
	if need := len(rest) + n; need > cap(s.buf)/2 {
		grown := make([]byte, len(rest), max(firstBuffer, 2*need))
		copy(grown, rest)
		s.buf = grown
	} else {
		s.buf = s.buf[:copy(s.buf, rest)]
	}
	for i := s.head; i < len(s.ends); i++ {
		s.ends[i] -= s.r
	}
	s.done -= s.r
	s.r = 0
}

// scan finds the events that have become whole.
func (s *Splitter) scan() error {
	for {
		n, ok := s.find.Find(s.buf[s.done:])
		if s.max > 0 && max(n, len(s.buf)-s.done) > s.max && (n > s.max || !ok) {
			return ErrTooLong
		}
		if !ok {
			return nil
		}
		s.done += n
		s.ends = append(s.ends, s.done)
	}
}

// Ready is how many whole events Next will give without more bytes.
func (s *Splitter) Ready() int { return len(s.ends) - s.head }

// Next is the next whole event, byte for byte, or nil.
func (s *Splitter) Next() []byte {
	if s.head == len(s.ends) {
		return nil
	}
	end := s.ends[s.head]
	ev := s.buf[s.r:end:end]
	s.r = end
	s.head++
	return ev
}

// Rest is what follows the last whole event. At the end of the stream, anything in it but line ends (see
// Blank) is an event that was never finished.
func (s *Splitter) Rest() []byte { return s.buf[s.done:] }

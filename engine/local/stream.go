package local

import (
	"errors"
	"io"
)

// stream is an answer as server-sent events: the body that fasthttp relays,
// one chunk and one flush for each Write of WriteTo. All events that are ready
// are written together, none waits for another.
type stream struct {
	x      *exchange
	form   former
	buf    []byte
	pos    []position
	events int // written so far
}

// former writes the events of one API.
type former interface {
	// open writes what comes before a choice's first token, if anything does.
	open(b []byte, i int, p *position) []byte
	// event writes the tokens from p.tokens up to to, whose text is text.
	event(b []byte, i int, p *position, to int, text []byte, last bool) []byte
	// close writes what comes after the last choice, before [DONE].
	close(b []byte) []byte
}

// position is how far one choice has been sent.
type position struct {
	g            *gen
	begun, ended bool
	tokens       int
	text         int32
	score        *scorer
}

func newStream(x *exchange) *stream {
	s := &stream{x: x, form: x.former(), pos: make([]position, len(x.gens)), buf: x.srv.buffers.get()}
	for i, g := range x.gens {
		s.pos[i].g = g
	}
	return s
}

// Read is never called: fasthttp uses WriteTo.
func (s *stream) Read([]byte) (int, error) {
	return 0, errors.New("local engine: a stream is read by WriteTo")
}

// SupportsBodyWriteTo opts in to WriteTo.
func (s *stream) SupportsBodyWriteTo() bool { return true }

// Close is called when the answer is over, however it ended.
func (s *stream) Close() error {
	s.x.end()
	s.x.srv.buffers.put(s.buf)
	s.buf = nil
	return nil
}

// WriteTo sends the events as they come. An error makes fasthttp cut the
// connection in mid-answer.
func (s *stream) WriteTo(w io.Writer) (n int64, err error) {
	for {
		done, err := s.collect()
		if err == nil && done {
			s.finish()
		}
		if len(s.buf) > 0 {
			m, werr := w.Write(s.buf)
			n += int64(m)
			if werr != nil {
				return n, werr
			}
			s.buf = s.buf[:0]
		}
		if err != nil || done {
			return n, err
		}
		if err := s.wait(); err != nil {
			return n, err
		}
	}
}

// wait waits for more to send. What goes wrong from here on is an event.
func (s *stream) wait() error {
	err := s.x.wait()
	if e, ok := errors.AsType[*apiError](err); ok {
		s.buf = appendStreamError(s.buf, s.x.srv.opts.Kind, e)
		for i := range s.pos {
			s.pos[i].ended = true
		}
		return nil
	}
	return err
}

func (s *stream) finish() {
	s.buf = s.form.close(s.buf)
	if f := s.x.fault; f == nil || f.Kind != FaultNoDone {
		s.buf = append(s.buf, "data: [DONE]\n\n"...)
	}
}

// collect writes the events of all choices that are ready into buf, and tells
// whether all choices have ended. The error is a fault: die now.
func (s *stream) collect() (done bool, err error) {
	done = true
	for i := range s.pos {
		p := &s.pos[i]
		if p.ended {
			continue
		}
		p.g.mu.Lock()
		err = s.choice(i, p)
		p.g.mu.Unlock()
		if err != nil {
			return false, err
		}
		done = done && p.ended
	}
	return done, nil
}

// choice writes one choice's ready events: one for each token that has text to
// show or is asked for itself, the last with the finish reason.
func (s *stream) choice(i int, p *position) error {
	g, c := p.g, s.x.call
	if !p.begun && (len(g.tokens) > 0 || g.reason != "") {
		p.begun = true
		s.buf = s.form.open(s.buf, i, p)
		if s.count() {
			return io.ErrUnexpectedEOF
		}
	}
	for k := p.tokens; k < len(g.shown); k++ {
		last := k == len(g.shown)-1 && g.reason != ""
		if g.shown[k] == p.text && !last && c.logprobs < 0 && !c.returnIDs {
			continue
		}
		shown := max(p.text, g.shown[k])
		s.buf = s.form.event(s.buf, i, p, k+1, g.text[p.text:shown], last)
		p.text, p.tokens, p.ended = shown, k+1, last
		if s.count() {
			return io.ErrUnexpectedEOF
		}
	}
	if g.reason != "" && !p.ended { // ended by no token of its own
		s.buf = s.form.event(s.buf, i, p, len(g.tokens), g.text[min(int(p.text), len(g.text)):], true)
		p.ended = true
	}
	return nil
}

// count counts an event and tells whether it is the last before a fault's death.
func (s *stream) count() (die bool) {
	s.events++
	f := s.x.fault
	return f != nil && f.Kind == FaultDie && s.events >= f.After
}

// former picks the API's form of events.
func (x *exchange) former() former {
	switch {
	case x.call.native != nil:
		return &nativeEvents{x}
	case x.call.chat:
		return &chatEvents{x}
	}
	return &textEvents{x}
}

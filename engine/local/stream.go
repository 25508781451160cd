package local

import (
	"errors"
	"io"
)

// stream is an answer as server-sent events. fasthttp writes each Write of
// WriteTo as one chunk and flushes it.
type stream struct {
	x   *exchange
	buf []byte
	pos []position
}

// position is how far one choice has been sent.
type position struct {
	begun, ended bool
	tokens       int
	text         int32
	score        *scorer
}

func newStream(x *exchange) *stream {
	s := &stream{x: x, pos: make([]position, len(x.gens))}
	return s
}

// Read is never called: fasthttp uses WriteTo.
func (s *stream) Read([]byte) (int, error) {
	return 0, errors.New("local engine: a stream is read by WriteTo")
}

// SupportsBodyWriteTo opts in to WriteTo.
func (s *stream) SupportsBodyWriteTo() bool { return true }

// WriteTo sends the events as they come.
func (s *stream) WriteTo(w io.Writer) (int64, error) {
	for {
		done := s.collect()
		if done {
			if s.x.call.includeUsage {
				s.buf = s.usageEvent(s.buf)
			}
			s.buf = append(s.buf, "data: [DONE]\n\n"...)
		}
		if len(s.buf) > 0 {
			if _, err := w.Write(s.buf); err != nil {
				return 0, err
			}
			s.buf = s.buf[:0]
		}
		if done {
			return 0, nil
		}
		<-s.x.wake
	}
}

// collect writes the events of all choices that are ready into buf, and tells
// whether all choices have ended.
func (s *stream) collect() (done bool) {
	done = true
	for i, g := range s.x.gens {
		p := &s.pos[i]
		if p.ended {
			continue
		}
		g.mu.Lock()
		s.choice(i, g, p)
		g.mu.Unlock()
		done = done && p.ended
	}
	return done
}

// choice writes one choice's ready events: one for each token that has text to
// show, the last with the finish reason.
func (s *stream) choice(i int, g *gen, p *position) {
	if !p.begun && (len(g.tokens) > 0 || g.reason != "") {
		p.begun = true
		s.open(i, g, p)
	}
	from := p.tokens
	for k := p.tokens; k < len(g.shown); k++ {
		last := k == len(g.shown)-1 && g.reason != ""
		if g.shown[k] == p.text && !last && s.x.call.logprobs < 0 && !s.x.call.returnIDs {
			continue
		}
		text := g.text[p.text:max(p.text, g.shown[k])]
		s.event(i, g, p, text, g.tokens[from:k+1], last)
		p.text, from = max(p.text, g.shown[k]), k+1
		p.tokens = k + 1
	}
	if g.reason != "" && !p.ended {
		if p.tokens < len(g.tokens) || len(g.tokens) == 0 {
			s.event(i, g, p, nil, nil, true)
		}
		p.ended = true
	}
}

// open writes what comes before the first token: the role, or the echoed prompt.
func (s *stream) open(i int, g *gen, p *position) {
	c := s.x.call
	if c.logprobs >= 0 {
		p.score = newScorer(s.x.srv.model, s.x.srv.opts.Kind, &g.first)
	}
	switch {
	case c.chat:
		s.begin(i, `"delta":{"role":"assistant","content":""},"logprobs":null`)
		s.end(g, false, 0)
	case c.echo:
		s.begin(i, `"text":`)
		s.buf = appendString(s.buf, s.x.promptText(g))
		s.buf = append(s.buf, `,"logprobs":`...)
		if c.logprobs >= 0 {
			p.score = newScorer(s.x.srv.model, s.x.srv.opts.Kind, nil)
			s.buf = p.score.completion(s.buf, g.prompt, c.logprobs)
		} else {
			s.buf = append(s.buf, "null"...)
		}
		s.end(g, false, 0)
	}
}

func (s *stream) begin(i int, rest string) {
	object := "text_completion"
	if s.x.call.chat {
		object = "chat.completion.chunk"
	}
	s.buf = append(s.x.head(append(s.buf, "data: "...), object), `,"choices":[{"index":`...)
	s.buf = appendInt(s.buf, i)
	s.buf = append(s.buf, ',')
	s.buf = append(s.buf, rest...)
}

// event writes one event with text and the tokens behind it.
func (s *stream) event(i int, g *gen, p *position, text []byte, tokens []uint32, last bool) {
	c := s.x.call
	if c.chat {
		s.begin(i, `"delta":{"content":`)
		s.buf = append(appendString(s.buf, text), '}')
	} else {
		s.begin(i, `"text":`)
		s.buf = appendString(s.buf, text)
	}
	s.buf = append(s.buf, `,"logprobs":`...)
	switch {
	case p.score == nil:
		s.buf = append(s.buf, "null"...)
	case c.chat:
		s.buf = p.score.chat(s.buf, tokens, c.logprobs)
	default:
		s.buf = p.score.completion(s.buf, tokens, c.logprobs)
	}
	if c.returnIDs {
		s.buf = append(s.buf, `,"token_ids":`...)
		s.buf = appendIDs(s.buf, tokens)
	}
	s.end(g, last, len(tokens))
}

// end closes an event that begin opened.
func (s *stream) end(g *gen, last bool, tokens int) {
	if last {
		s.buf = s.x.finish(s.buf, g)
	} else {
		s.buf = append(s.buf, `,"finish_reason":null`...)
	}
	s.buf = append(s.buf, `}]`...)
	switch {
	case s.x.call.continuousUsage:
		s.buf = append(s.buf, `,"usage":`...)
		s.buf = s.x.counts(s.buf, len(g.prompt), len(g.tokens), 0, false)
	case s.x.srv.opts.Kind == SGLang:
		s.buf = append(s.buf, `,"usage":null`...)
	}
	s.buf = append(s.buf, "}\n\n"...)
	_ = tokens
}

func (s *stream) usageEvent(b []byte) []byte {
	object := "text_completion"
	if s.x.call.chat {
		object = "chat.completion.chunk"
	}
	b = append(s.x.head(append(b, "data: "...), object), `,"choices":[],"usage":`...)
	return append(s.x.usage(b, true), "}\n\n"...)
}

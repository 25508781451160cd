package local

import (
	"unicode/utf8"

	"penstock/engine/local/lm"
)

// scorer writes log-probabilities of consecutive tokens. It follows the tokens
// with a state of its own, so that the scheduler does not wait for it.
type scorer struct {
	m      *lm.Model
	quirks bool // as SGLang's OpenAI routes
	state  lm.State
	x      *lm.Scratch
	top    []lm.Choice
	begun  bool // a token has come; the very first has no log-probability
	offset int  // in characters, of the next token within the choice's text
}

// newScorer begins before the prompt (echo) or after it, with the state there.
func newScorer(m *lm.Model, quirks bool, after *lm.State) *scorer {
	s := &scorer{m: m, quirks: quirks, state: m.Begin()}
	if after != nil {
		s.state, s.begun = *after, true
	}
	return s
}

// choices lists the top alternatives, the likeliest first.
func (s *scorer) choices(n int) []lm.Choice {
	s.top = s.top[:0]
	if n > 0 {
		if s.x == nil {
			s.x = s.m.NewScratch()
		}
		s.top = s.x.Dist(s.m, s.state).Top(s.top, n)
	}
	return s.top
}

// completion writes the logprobs object of a completion for tokens.
func (s *scorer) completion(b []byte, tokens []uint32, top int) []byte {
	from, begun, offset := s.state, s.begun, s.offset
	b = append(b, `{"text_offset":[`...)
	for i, w := range tokens {
		if i > 0 {
			b = append(b, ',')
		}
		if s.quirks {
			b = append(b, "-1"...)
		} else {
			b = appendInt(b, offset)
		}
		offset += characters(s.m.Text(w))
	}
	b = append(b, `],"token_logprobs":[`...)
	st := from
	for i, w := range tokens {
		if i > 0 {
			b = append(b, ',')
		}
		if i == 0 && !begun {
			b = append(b, "null"...)
		} else {
			b = appendFloat(b, s.m.LogProb(st, w))
		}
		st = s.m.Advance(st, w)
	}
	b = append(b, `],"tokens":[`...)
	for i, w := range tokens {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendToken(b, s.m.Text(w))
	}
	b = append(b, `],"top_logprobs":[`...)
	for i, w := range tokens {
		if i > 0 {
			b = append(b, ',')
		}
		b = s.topMap(b, w, top)
		s.state = s.m.Advance(s.state, w)
		s.begun = true
	}
	s.offset = offset
	return append(b, `]}`...)
}

// topMap writes the token itself and its likeliest alternatives.
func (s *scorer) topMap(b []byte, w uint32, top int) []byte {
	if !s.begun {
		return append(b, "null"...)
	}
	b = append(b, '{')
	some := false
	if !s.quirks {
		b = appendToken(b, s.m.Text(w))
		b = append(b, ':')
		b = appendFloat(b, s.m.LogProb(s.state, w))
		some = true
	}
	for _, c := range s.choices(top) {
		if c.Token == w && !s.quirks {
			continue
		}
		if some {
			b = append(b, ',')
		}
		some = true
		b = appendToken(b, s.m.Text(c.Token))
		b = append(b, ':')
		b = appendFloat(b, logOf(c))
	}
	return append(b, '}')
}

// chat writes the logprobs object of a chat choice for tokens.
func (s *scorer) chat(b []byte, tokens []uint32, top int) []byte {
	b = append(b, `{"content":[`...)
	for i, w := range tokens {
		if i > 0 {
			b = append(b, ',')
		}
		b = s.chatToken(b, w, s.m.LogProb(s.state, w))
		b = append(b, `,"top_logprobs":[`...)
		for j, c := range s.choices(top) {
			if j > 0 {
				b = append(b, ',')
			}
			b = append(s.chatToken(b, c.Token, logOf(c)), '}')
		}
		b = append(b, "]}"...)
		s.state = s.m.Advance(s.state, w)
	}
	return append(b, "]}"...)
}

// chatToken writes one token's object, left open.
func (s *scorer) chatToken(b []byte, w uint32, p float64) []byte {
	text := s.m.Text(w)
	b = append(b, `{"token":`...)
	b = appendToken(b, text)
	b = append(b, `,"logprob":`...)
	b = appendFloat(b, p)
	b = append(b, `,"bytes":[`...)
	for i := range len(text) {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendInt(b, int(text[i]))
	}
	return append(b, ']')
}

// prompt writes vLLM's prompt_logprobs for tokens, which begin the sequence.
func (s *scorer) prompt(b []byte, tokens []uint32, top int) []byte {
	x := s.m.NewScratch()
	b = append(b, '[')
	for i, w := range tokens {
		if i == 0 {
			b = append(b, "null"...)
			s.state = s.m.Advance(s.state, w)
			continue
		}
		b = append(b, `,{`...)
		b = s.ranked(b, w, s.m.LogProb(s.state, w), x.Dist(s.m, s.state).Rank(w))
		for j, c := range s.choices(top) {
			if c.Token != w {
				b = append(b, ',')
				b = s.ranked(b, c.Token, logOf(c), j+1)
			}
		}
		b = append(b, '}')
		s.state = s.m.Advance(s.state, w)
	}
	return append(b, ']')
}

func (s *scorer) ranked(b []byte, w uint32, p float64, rank int) []byte {
	b = append(b, '"')
	b = appendInt(b, w)
	b = append(b, `":{"logprob":`...)
	b = appendFloat(b, p)
	b = append(b, `,"rank":`...)
	b = appendInt(b, rank)
	b = append(b, `,"decoded_token":`...)
	b = appendToken(b, s.m.Text(w))
	return append(b, '}')
}

// appendToken writes a token's text as a JSON string. A token that is no whole
// UTF-8 is written as OpenAI does, "bytes:\\xe6\\xb0": as U+FFFD several
// alternatives would be one key.
func appendToken(b []byte, s string) []byte {
	if utf8.ValidString(s) {
		return appendString(b, s)
	}
	b = append(b, `"bytes:`...)
	for i := range len(s) {
		b = append(b, `\\x`...)
		b = append(b, hex[s[i]>>4], hex[s[i]&15])
	}
	return append(b, '"')
}

// characters counts those that begin in s.
func characters(s string) (n int) {
	for i := range len(s) {
		if s[i]&0xC0 != 0x80 {
			n++
		}
	}
	return n
}

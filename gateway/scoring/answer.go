package scoring

import (
	"fmt"

	"penstock/gateway/body/scan"
	"penstock/gateway/sse"
)

// Missing is an answer with status 200 that does not hold what was asked for: 502 echo_logprobs_missing.
type Missing struct{ Reason string }

func (e *Missing) Error() string {
	return "the engine's answer lacks prompt log-probabilities: " + e.Reason
}

func missing(format string, args ...any) *Missing {
	return &Missing{Reason: fmt.Sprintf(format, args...)}
}

// span is a place in an answer. end 0: not there.
type span struct{ start, end int }

func (s span) there() bool        { return s.end > 0 }
func (s span) of(b []byte) []byte { return b[s.start:s.end] }

// Answer is one part's answer, checked: bytes of the engine, and where in them things are.
type Answer struct {
	part    Part
	b       []byte
	choices []choice
	usage   span // the usage object; not there in /generate's answers, which have one for each prompt
	list    span // the inside of the choices array
	prompt  list // chat's prompt_logprobs
	sum     sse.Usage
	changes bool // it cannot be passed on as it is
	native  bool // of /generate
}

// choice is one choice of an answer, or one element of /generate's.
type choice struct {
	all      span
	index    span
	local    int  // its index within the part
	text     span // the string
	logprobs span // the object
	found    arrays
	prompt   list // prompt_logprobs
	cut      span // a member to leave out, its comma included
	repair   bool // what is wrong in its logprobs has to be put right

	meta meta // of /generate
}

// Check reads b, the body of a 200 answer to r, and guards it. The error is a *Missing, or says that b cannot
// be read at all.
func (j *Job) Check(r *Request, b []byte) (*Answer, error) {
	a := &Answer{part: r.Part, b: b, sum: sse.NoUsage()}
	c := scan.NewCursor(b)
	var err error
	if j.mode == generate || r.native {
		err = a.readNative(c)
	} else {
		err = a.read(c)
	}
	if c.Err != nil {
		return nil, unreadable(b, c.Err)
	}
	if err == nil {
		err = j.guard(a)
	}
	if err != nil {
		return nil, err
	}
	for i := range a.choices {
		ch := &a.choices[i]
		if r.kind != KindVLLM || j.mode != echo || j.v.PromptLogprobs >= 0 {
			ch.cut = span{}
		}
		ch.repair = r.kind == KindSGLang && j.mode == echo
		a.changes = a.changes || ch.repair || ch.cut.there()
	}
	return a, nil
}

// unreadable tells log-probabilities that are no numbers from an answer that is no JSON.
func unreadable(b []byte, err *scan.SyntaxError) error {
	for _, word := range [...]string{"NaN", "Infinity", "nan", "inf"} {
		if rest := b[min(err.Offset, len(b)):]; len(rest) >= len(word) && string(rest[:len(word)]) == word {
			return missing("%s in place of a number", word)
		}
	}
	return fmt.Errorf("the engine's answer is not valid JSON: %w", err)
}

// read reads an answer in OpenAI's shape.
func (a *Answer) read(c *scan.Cursor) error {
	for c.Open('{'); c.Next(); {
		switch string(c.Key()) {
		case "choices":
			if c.Kind() != scan.Arr {
				return missing("choices is %s", c.Kind())
			}
			a.choices, a.list.start = nil, c.I+1
			for c.Open('['); c.Next(); {
				a.choices = append(a.choices, readChoice(c))
			}
			a.list.end = c.I - 1
		case "usage":
			a.readUsage(c)
		case "prompt_logprobs": // chat's
			a.prompt.read(c, scan.Obj)
		default:
			c.Skip()
		}
	}
	c.End()
	return nil
}

func (a *Answer) readUsage(c *scan.Cursor) {
	a.usage, a.sum = span{}, sse.NoUsage()
	if c.Kind() != scan.Obj {
		c.Skip()
		return
	}
	a.usage.start, a.usage.end = c.Skip()
	if c.Err == nil {
		a.sum = sse.UsageOf(a.usage.of(a.b))
	}
}

// readChoice reads one choice.
func readChoice(c *scan.Cursor) choice {
	ch := choice{local: -1}
	ch.all.start = c.I
	last := 0
	if c.Kind() != scan.Obj {
		c.Skip()
		return ch
	}
	for c.Open('{'); c.Next(); {
		at := c.I
		switch string(c.Key()) {
		case "index":
			ch.index.start, ch.index.end = c.Skip()
			ch.local = -1
			if n, ok := scan.Int(ch.index.of(c.B)); ok && scan.KindAt(c.B, ch.index.start) == scan.Num {
				ch.local = int(n)
			}
		case "text":
			ch.text.start, ch.text.end = c.Skip()
		case "logprobs":
			ch.logprobs.start = c.I
			ch.found.read(c)
			ch.logprobs.end = c.I
		case "prompt_logprobs":
			ch.prompt.read(c, scan.Obj)
			ch.cut = span{}
			if ch.prompt.there && c.Err == nil {
				ch.cut = cutMember(c.B, at, last, c.I)
			}
		default:
			c.Skip()
		}
		last = c.I
	}
	ch.all.end = c.I
	return ch
}

// cutMember is the place of a member from at to end together with one comma: the one before it, or, where it is
// the first (last is 0), the one after.
func cutMember(b []byte, at, last, end int) span {
	if last > 0 {
		return span{last, end}
	}
	if i := scan.Space(b, end); i < len(b) && b[i] == ',' {
		return span{at, scan.Space(b, i+1)}
	}
	return span{at, end}
}

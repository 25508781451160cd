package scoring

import (
	"penstock/gateway/body/scan"
	"penstock/gateway/sse"
)

// meta is what /generate's meta_info holds. Its lists have one [log-probability, id, text] for each token, the
// tops one list of these for each.
type meta struct {
	there                 bool
	id, finish            span
	usage                 sse.Usage
	input, output         list
	inputTops, outputTops list
}

// readNative reads an answer of /generate: one object, or an array of them.
func (a *Answer) readNative(c *scan.Cursor) error {
	a.native = true
	switch c.Kind() {
	case scan.Arr:
		for c.Open('['); c.Next(); {
			a.choices = append(a.choices, readElement(c, len(a.choices)))
		}
	case scan.Obj:
		a.choices = append(a.choices, readElement(c, 0))
	default:
		c.Skip()
		return missing("it is %s", scan.KindAt(a.b, scan.Space(a.b, 0)))
	}
	c.End()
	return nil
}

// readElement reads one prompt's answer.
func readElement(c *scan.Cursor, i int) choice {
	ch := choice{local: i}
	ch.all.start = c.I
	if c.Kind() != scan.Obj {
		c.Skip()
		return ch
	}
	for c.Open('{'); c.Next(); {
		switch string(c.Key()) {
		case "text":
			ch.text.start, ch.text.end = c.Skip()
		case "meta_info":
			start := c.I
			ch.meta.read(c)
			if c.Err == nil {
				ch.meta.usage = sse.UsageOf(c.B[start:c.I])
			}
		default:
			c.Skip()
		}
	}
	ch.all.end = c.I
	return ch
}

func (m *meta) read(c *scan.Cursor) {
	*m = meta{}
	if c.Kind() != scan.Obj {
		c.Skip()
		return
	}
	m.there = true
	for c.Open('{'); c.Next(); {
		switch string(c.Key()) {
		case "id":
			m.id.start, m.id.end = c.Skip()
		case "finish_reason":
			m.finish.start, m.finish.end = c.Skip()
		case "input_token_logprobs":
			m.input.readTriples(c)
		case "output_token_logprobs":
			m.output.readTriples(c)
		case "input_top_logprobs":
			m.inputTops.read(c, scan.Arr)
		case "output_top_logprobs":
			m.outputTops.read(c, scan.Arr)
		default:
			c.Skip()
		}
	}
}

// readTriples reads a list of [log-probability, id, text] by its log-probabilities.
func (l *list) readTriples(c *scan.Cursor) {
	*l = list{all: span{start: c.I}}
	if c.Kind() != scan.Arr {
		c.Skip()
		return
	}
	l.there = true
	for c.Open('['); c.Next(); l.n++ {
		if c.Kind() != scan.Arr {
			l.note(scan.Invalid, scan.Num, nil)
			c.Skip()
			continue
		}
		first := true
		for c.Open('['); c.Next(); first = false {
			k := c.Kind()
			start, end := c.Skip()
			if first {
				l.note(k, scan.Num, c.B[start:end])
			}
		}
		if first {
			l.note(scan.Invalid, scan.Num, nil)
		}
	}
	l.all.end = c.I
}

// guardNative guards one prompt's answer of /generate.
func (j *Job) guardNative(ch *choice, prompt int) error {
	m := &ch.meta
	if !m.there {
		return missing("prompt %d has no meta_info", prompt)
	}
	tokens := max(m.usage.Prompt, j.tokens(prompt))
	if err := guardList(&m.input, "input_token_logprobs", prompt, tokens); err != nil {
		return err
	}
	wantTops := j.mode == echo || j.v.TopLogprobsNum > 0
	if wantTops {
		if err := guardTops(&m.inputTops, m.input.n, "input_top_logprobs", prompt); err != nil {
			return err
		}
	}
	return guardZeros(&m.input, prompt, m.input.n)
}

// triple is one token's log-probability and text, as JSON.
type triple struct{ logprob, text []byte }

// tripleOf reads [log-probability, id, text]. What lacks a part has null or an empty text for it.
func tripleOf(b []byte) triple {
	t := triple{logprob: []byte("null"), text: []byte(`""`)}
	i := 0
	for _, e := range elements(b, span{0, len(b)}) {
		switch {
		case i == 0:
			t.logprob = e
		case i == 2 && e[0] == '"':
			t.text = e
		}
		i++
	}
	return t
}

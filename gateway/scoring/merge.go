package scoring

import (
	"io"
	"slices"

	"penstock/gateway/body"
	"penstock/gateway/body/scan"
	"penstock/gateway/sse"
)

// MergeOptions are what an answer of /generate lacks.
type MergeOptions struct {
	Model   []byte // the model's name as a JSON string
	Created int64  // seconds since 1970
}

// Merged is the client's answer. It lies in the parts' answers and in the job's view, which must stay as they
// are until it is written.
type Merged struct {
	job   Job
	parts []*Answer
	opts  MergeOptions
	usage []byte
	sum   sse.Usage
	off   offsets
}

// Merge makes one answer of all parts' answers, in the parts' order.
func (j *Job) Merge(parts []*Answer, o MergeOptions) *Merged {
	m := &Merged{job: *j, parts: parts, opts: o, sum: sse.NoUsage()}
	usages := make([][]byte, len(parts))
	for i, a := range parts {
		if a.native {
			a.sum = a.nativeUsage(j.perPrompt())
			usages[i] = usageJSON(a.sum)
		} else {
			usages[i] = a.usage.of(a.b)
		}
		m.sum.Add(a.sum)
	}
	if m.usage = usages[0]; len(parts) > 1 && len(m.usage) > 0 {
		m.usage = sumUsage(nil, usages[0], usages[1:])
	}
	return m
}

// Usage is what all parts took together.
func (m *Merged) Usage() sse.Usage { return m.sum }

// Streamed says that the answer is written as server-sent events, since the client asked for a stream.
func (m *Merged) Streamed() bool { return m.job.mode == echo && m.job.v.Stream }

// Verbatim is the engine's answer where it is the client's as it is; else nil.
func (m *Merged) Verbatim() []byte {
	a := m.parts[0]
	if len(m.parts) > 1 || a.changes || a.native && m.job.mode == echo || m.Streamed() {
		return nil
	}
	return a.b
}

// Len is how many bytes WriteTo writes. It goes through the answer once.
func (m *Merged) Len() int {
	if b := m.Verbatim(); b != nil {
		return len(b)
	}
	w := &writer{}
	m.write(w)
	return int(w.n)
}

// WriteTo writes the answer.
func (m *Merged) WriteTo(w io.Writer) (int64, error) {
	if b := m.Verbatim(); b != nil {
		n, err := w.Write(b)
		return int64(n), err
	}
	out := &writer{w: w}
	m.write(out)
	out.flush()
	return out.n, out.err
}

func (m *Merged) write(w *writer) {
	if m.Streamed() {
		m.events(w)
		return
	}
	m.head(w)
	first := true
	for _, a := range m.parts {
		for i := range a.choices {
			if !first {
				w.text(",")
			}
			first = false
			m.choice(w, a, &a.choices[i])
		}
	}
	m.tail(w)
}

// events writes each choice as one event, then the usage if asked for, then the end marker.
func (m *Merged) events(w *writer) {
	w.line = true
	event := func(inside func()) {
		w.text("data: ")
		m.head(w)
		inside()
		w.text("}")
		w.put([]byte("\n\n"))
	}
	for _, a := range m.parts {
		for i := range a.choices {
			event(func() {
				m.choice(w, a, &a.choices[i])
				w.text("]")
				if m.job.v.IncludeUsage {
					w.text(`,"usage":null`)
				}
			})
		}
	}
	if m.job.v.IncludeUsage && len(m.usage) > 0 {
		event(func() {
			w.text(`],"usage":`)
			w.raw(m.usage)
		})
	}
	w.text("data: [DONE]\n\n")
}

// head writes what stands before the choices, their opening bracket included: the first part's.
func (m *Merged) head(w *writer) {
	a := m.parts[0]
	if !a.native {
		m.copy(w, a, 0, a.list.start)
		return
	}
	w.text(`{"id":`)
	id := []byte(`""`)
	if len(a.choices) > 0 && a.choices[0].meta.id.there() {
		id = a.choices[0].meta.id.of(a.b)
	}
	w.raw(id)
	w.text(`,"object":"text_completion","created":`)
	w.int(int(m.opts.Created))
	w.text(`,"model":`)
	w.raw(m.opts.Model)
	w.text(`,"choices":[`)
}

// tail writes what stands after the choices, from their closing bracket on.
func (m *Merged) tail(w *writer) {
	a := m.parts[0]
	if !a.native {
		m.copy(w, a, a.list.end, len(a.b))
		return
	}
	w.text(`],"usage":`)
	w.raw(m.usage)
	w.text("}")
}

// copy writes b[from:to] of the first part's answer with the usage of all.
func (m *Merged) copy(w *writer, a *Answer, from, to int) {
	if len(m.parts) > 1 && a.usage.there() && a.usage.start >= from && a.usage.end <= to {
		w.raw(a.b[from:a.usage.start])
		w.raw(m.usage)
		from = a.usage.end
	}
	w.raw(a.b[from:to])
}

// cut is a stretch of an answer in whose place something else is written.
type cut struct {
	span
	write func(w *writer)
}

// splice writes b[s.start:s.end] with the cuts made.
func splice(w *writer, b []byte, s span, cuts ...cut) {
	slices.SortFunc(cuts, func(x, y cut) int { return x.start - y.start })
	at := s.start
	for _, c := range cuts {
		if !c.there() {
			continue
		}
		w.raw(b[at:c.start])
		c.write(w)
		at = c.end
	}
	w.raw(b[at:s.end])
}

// choice writes one choice with its index in the whole answer: prompt × n + choice.
func (m *Merged) choice(w *writer, a *Answer, ch *choice) {
	index := a.part.From*m.job.perPrompt() + ch.local
	if a.native {
		m.native(w, a, ch, index)
		return
	}
	number := cut{ch.index, func(w *writer) { w.int(index) }}
	if index == ch.local {
		number.span = span{}
	}
	repair := cut{ch.logprobs, func(w *writer) { m.repair(w, a, ch) }}
	if !ch.repair {
		repair.span = span{}
	}
	splice(w, a.b, ch.all, number, repair, cut{ch.cut, func(*writer) {}})
}

// native writes one of /generate's answers as a choice.
func (m *Merged) native(w *writer, a *Answer, ch *choice, index int) {
	w.text(`{"index":`)
	w.int(index)
	w.text(`,"text":"`)
	p := &m.job.v.Prompts[a.part.From+ch.local/m.job.perPrompt()]
	prompt := m.job.v.Body[p.Start:p.End]
	if p.Kind == body.Text {
		w.raw(inner(prompt))
		m.off.reset(prompt, ch.text.of(a.b))
	} else {
		m.off.reset()
		for t := range triples(a.b, ch.meta.input.all) {
			w.raw(inner(t.text))
			m.off.extend(t.text)
		}
		m.off.extend(ch.text.of(a.b))
	}
	w.raw(inner(ch.text.of(a.b)))
	w.text(`","logprobs":`)
	m.nativeLogprobs(w, a, ch)
	w.text(`,"finish_reason":`)
	reason, matched := finish(ch.meta.finish.of(a.b))
	w.raw(reason)
	w.text(`,"matched_stop":`)
	w.raw(matched)
	w.text("}")
}

// finish reads /generate's finish_reason: {"type":…,"matched":…}.
func finish(b []byte) (reason, matched []byte) {
	reason, matched = []byte("null"), []byte("null")
	if len(b) == 0 || b[0] != '{' {
		return reason, matched
	}
	for w := scan.Walk(b, 0); w.Next(); {
		switch string(w.Key) {
		case "type":
			reason = b[w.Start:w.End]
		case "matched":
			matched = b[w.Start:w.End]
		}
	}
	return reason, matched
}

// inner is the inside of a JSON string; nothing of anything else.
func inner(s []byte) []byte {
	if len(s) < 2 || s[0] != '"' {
		return nil
	}
	return s[1 : len(s)-1]
}

package scoring

import (
	"bytes"
	"iter"

	"penstock/gateway/body/scan"
)

// repair writes a choice's logprobs with what SGLang's OpenAI route gets wrong put right: offsets of -1, and
// maps of alternatives without the token itself. What is right stays as it is, and all numbers keep their text.
func (m *Merged) repair(w *writer, a *Answer, ch *choice) {
	f := &ch.found
	off := cut{f.offsets.all, func(w *writer) { m.textOffsets(w, a, ch) }}
	if !f.offsets.there || !f.unknown {
		off.span = span{}
	}
	tops := cut{f.tops.all, func(w *writer) { m.tops(w, a, f) }}
	if !f.tops.there {
		tops.span = span{}
	}
	splice(w, a.b, ch.logprobs, off, tops)
}

func (m *Merged) textOffsets(w *writer, a *Answer, ch *choice) {
	m.off.reset(ch.text.of(a.b))
	w.text("[")
	first := true
	for _, token := range elements(a.b, ch.found.tokens.all) {
		if !first {
			w.text(",")
		}
		first = false
		w.int(m.off.next(token))
	}
	w.text("]")
}

// tops writes the maps of alternatives, each with its own token.
func (m *Merged) tops(w *writer, a *Answer, f *arrays) {
	tokens, logprobs := walk(a.b, f.tokens.all), walk(a.b, f.logprobs.all)
	at := f.tops.all.start
	for place, top := range elements(a.b, f.tops.all) {
		token, logprob := following(&tokens, a.b), following(&logprobs, a.b)
		if top[0] != '{' {
			continue
		}
		switch {
		case m.job.v.Logprobs == 0:
			w.raw(a.b[at:place])
			alone(w, token, logprob)
		case holds(top, inner(token)):
			continue
		default:
			w.raw(a.b[at : place+1])
			w.raw(token)
			w.text(":")
			w.raw(logprob)
			if scan.Space(top, 1) != len(top)-1 {
				w.text(",")
			}
			at = place + 1
			continue
		}
		at = place + len(top)
	}
	w.raw(a.b[at:f.tops.all.end])
}

// alone writes a map that holds the token itself and nothing else.
func alone(w *writer, token, logprob []byte) {
	w.text("{")
	w.raw(token)
	w.text(":")
	w.raw(logprob)
	w.text("}")
}

// holds says whether the object has the key.
func holds(object, key []byte) bool {
	for w := scan.Walk(object, 0); w.Next(); {
		if bytes.Equal(w.Key, key) {
			return true
		}
	}
	return false
}

// walk begins at a validated array, or at nothing.
func walk(b []byte, array span) scan.Members {
	if !array.there() {
		return scan.Members{}
	}
	return scan.Walk(b[:array.end], array.start)
}

// following is the next element, nil after the last.
func following(w *scan.Members, b []byte) []byte {
	if !w.Next() {
		return nil
	}
	return b[w.Start:w.End]
}

// elements walks a validated array: each element's place and bytes.
func elements(b []byte, array span) iter.Seq2[int, []byte] {
	return func(yield func(int, []byte) bool) {
		for w := walk(b, array); w.Next(); {
			if !yield(w.Start, b[w.Start:w.End]) {
				return
			}
		}
	}
}

// triples walks a list of [log-probability, id, text].
func triples(b []byte, array span) iter.Seq[triple] {
	return func(yield func(triple) bool) {
		for _, e := range elements(b, array) {
			if !yield(tripleOf(e)) {
				return
			}
		}
	}
}

// nativeLogprobs writes the logprobs of one of /generate's answers as completions have them.
func (m *Merged) nativeLogprobs(w *writer, a *Answer, ch *choice) {
	in, out := ch.meta.input.all, ch.meta.output.all
	if m.job.maxTokens() == 0 {
		out = span{}
	}
	all := func(write func(t triple)) {
		first := true
		for _, s := range [...]span{in, out} {
			for t := range triples(a.b, s) {
				if !first {
					w.text(",")
				}
				first = false
				write(t)
			}
		}
	}
	w.text(`{"text_offset":[`)
	all(func(t triple) { w.int(m.off.next(t.text)) })
	w.text(`],"token_logprobs":[`)
	all(func(t triple) { w.raw(t.logprob) })
	w.text(`],"tokens":[`)
	all(func(t triple) { w.raw(t.text) })
	w.text(`],"top_logprobs":[`)
	inTops, outTops := walk(a.b, ch.meta.inputTops.all), walk(a.b, ch.meta.outputTops.all)
	i := 0
	all(func(t triple) {
		tops := &outTops
		if i < ch.meta.input.n {
			tops = &inTops
		}
		i++
		m.nativeTop(w, t, following(tops, a.b))
	})
	w.text("]}")
}

// nativeTop writes the map of alternatives to t: t itself, then the others. Of alternatives that read alike
// only the likeliest can stand in a map.
func (m *Merged) nativeTop(w *writer, t triple, top []byte) {
	if string(t.logprob) == "null" {
		w.text("null")
		return
	}
	w.text("{")
	w.raw(t.text)
	w.text(":")
	w.raw(t.logprob)
	if m.job.v.Logprobs > 0 && len(top) > 0 && top[0] == '[' {
		seen := append(make([][]byte, 0, 32), t.text)
		for o := range triples(top, span{0, len(top)}) {
			if contains(seen, o.text) {
				continue
			}
			seen = append(seen, o.text)
			w.text(",")
			w.raw(o.text)
			w.text(":")
			w.raw(o.logprob)
		}
	}
	w.text("}")
}

func contains(list [][]byte, b []byte) bool {
	for _, e := range list {
		if bytes.Equal(e, b) {
			return true
		}
	}
	return false
}

package sse

import (
	"bytes"

	"penstock/gateway/body/scan"
)

// Usage is what an engine says that a request took, in tokens. -1: it does not say.
type Usage struct {
	Prompt     int // all of the prompt, cached or not
	Completion int
	Total      int
	Cached     int // of Prompt
}

// NoUsage is a usage of which nothing is known.
func NoUsage() Usage { return Usage{-1, -1, -1, -1} }

// Merge takes over what o knows: a stream's later events say more than its earlier ones.
func (u *Usage) Merge(o Usage) {
	for _, f := range [...]struct {
		to   *int
		from int
	}{{&u.Prompt, o.Prompt}, {&u.Completion, o.Completion}, {&u.Total, o.Total}, {&u.Cached, o.Cached}} {
		if f.from >= 0 {
			*f.to = f.from
		}
	}
}

// Add sums two requests' usages; what either does not say is what the other says.
func (u *Usage) Add(o Usage) {
	for _, f := range [...]struct {
		to   *int
		from int
	}{{&u.Prompt, o.Prompt}, {&u.Completion, o.Completion}, {&u.Total, o.Total}, {&u.Cached, o.Cached}} {
		if f.from >= 0 {
			*f.to = max(*f.to, 0) + f.from
		}
	}
}

// Replace takes over o, the newer usage of one of several requests that u sums, of which old was the one before.
func (u *Usage) Replace(old, o Usage) {
	for _, f := range [...]struct {
		to       *int
		old, now int
	}{{&u.Prompt, old.Prompt, o.Prompt}, {&u.Completion, old.Completion, o.Completion}, {&u.Cached, old.Cached, o.Cached}} {
		if f.now >= 0 {
			*f.to = max(*f.to, 0) + f.now - max(f.old, 0)
		}
	}
}

// UsageOf reads b, a usage object (or /generate's meta_info), in any of the APIs' words. Anthropic's input_tokens
// are the fresh ones alone, which shows by the cache's own counts standing beside them.
func UsageOf(b []byte) Usage {
	w := scan.Walk(b, 0)
	return usageOf(b, &w)
}

// usageOf is UsageOf for an object within b. On text that was never validated w.Err is to be looked at.
func usageOf(b []byte, w *scan.Members) Usage {
	u := NoUsage()
	read, created := -1, -1
	for w.Next() {
		value := b[w.Start:w.End]
		switch string(w.Key) {
		case "prompt_tokens", "input_tokens":
			number(value, &u.Prompt)
		case "completion_tokens", "output_tokens":
			number(value, &u.Completion)
		case "total_tokens":
			number(value, &u.Total)
		case "cached_tokens":
			number(value, &u.Cached)
		case "cache_read_input_tokens":
			number(value, &read)
		case "cache_creation_input_tokens":
			number(value, &created)
		case "prompt_tokens_details", "input_tokens_details":
			if value[0] == '{' {
				for d := scan.Walk(value, 0); d.Next(); {
					if string(d.Key) == "cached_tokens" {
						number(value[d.Start:d.End], &u.Cached)
					}
				}
			}
		}
	}
	if read >= 0 || created >= 0 {
		if u.Prompt >= 0 {
			u.Prompt += max(read, 0) + max(created, 0)
		}
		u.Cached = max(read, 0)
	}
	if u.Prompt < 0 && u.Total >= 0 {
		u.Prompt = u.Total - max(u.Completion, 0)
	}
	if u.Total < 0 && u.Prompt >= 0 && u.Completion >= 0 {
		u.Total = u.Prompt + u.Completion
	}
	return u
}

func number(value []byte, out *int) {
	if end, whole, err := scan.Number(value, 0); err == nil && whole && end == len(value) {
		if n, ok := scan.Int(value); ok && n >= 0 {
			*out = int(n)
		}
	}
}

// OfChoice is the usage of the i-th of all answers, of which so many in a row are to one prompt: the first of
// them alone has the prompt's tokens.
func (u Usage) OfChoice(i, choices int) Usage {
	if choices > 1 && i%choices != 0 {
		u.Prompt, u.Cached, u.Total = -1, -1, -1
	}
	return u
}

// tail is how far from a body's end its usage is looked for first: engines write it after the choices.
const tail = 16 << 10

// BodyUsage finds the usage of a whole JSON answer. It looks near the end first, so that a large answer is not
// read through for it. The answers of a /generate batch, an array, are added up; so many of them in a row are to one
// prompt, whose tokens count once.
func BodyUsage(b []byte, choices int) (Usage, bool) {
	if u, ok := tailUsage(b); ok {
		return u, true
	}
	i := scan.Space(b, 0)
	if scan.KindAt(b, i) == scan.Arr {
		sum, found := NoUsage(), false
		n := 0
		for w := scan.Walk(b, i); w.Next(); n++ {
			if p := Look(b[w.Start:w.End]); p.HasUsage {
				sum.Add(p.Usage.OfChoice(n, choices))
				found = true
			}
		}
		return sum, found
	}
	p := Look(b)
	return p.Usage, p.HasUsage
}

// lastUsage is bytes.LastIndex of the key, by way of bytes.Index, which has vectors, in windows that grow from the
// end on: it stands in the first one mostly.
func lastUsage(b []byte) int {
	key := []byte(`"usage"`)
	for end, size := len(b), 256; end > 0; end, size = end-size, 2*size {
		from, to := max(0, end-size), min(len(b), end+len(key)-1)
		at := -1
		for i := from; ; i = at + len(key) {
			n := bytes.Index(b[i:to], key)
			if n < 0 {
				break
			}
			at = i + n
		}
		if at >= 0 {
			return at
		}
	}
	return -1
}

// tailUsage finds a usage object that is certainly the top level's: what follows it is members of one object,
// then the end of the body. ("usage" in quotes that are not escaped cannot stand inside a string.)
func tailUsage(b []byte) (Usage, bool) {
	from := max(0, len(b)-tail)
	at := lastUsage(b[from:])
	if at < 0 {
		return NoUsage(), false
	}
	_, _, val, err := scan.Key(b, from+at)
	if err != nil || scan.KindAt(b, val) != scan.Obj {
		return NoUsage(), false
	}
	w := scan.Walk(b, val)
	usage := usageOf(b, &w)
	if w.Err != nil {
		return NoUsage(), false
	}
	i := w.Offset()
	for i = scan.Space(b, i); i < len(b) && b[i] == ','; i = scan.Space(b, i) {
		if _, _, i, err = scan.Key(b, scan.Space(b, i+1)); err != nil {
			return NoUsage(), false
		}
		if i, err = scan.Value(b, i, 0); err != nil {
			return NoUsage(), false
		}
	}
	if i >= len(b) || b[i] != '}' || scan.Space(b, i+1) != len(b) {
		return NoUsage(), false
	}
	return usage, true
}

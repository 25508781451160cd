package scoring

import (
	"strconv"

	"penstock/gateway/body/scan"
	"penstock/gateway/sse"
)

// nativeUsage adds up what /generate says of each prompt. Each of a prompt's choices repeats the prompt's
// tokens, which count once.
func (a *Answer) nativeUsage(perPrompt int) sse.Usage {
	sum := sse.NoUsage()
	for i := range a.choices {
		u := a.choices[i].meta.usage
		if i%perPrompt != 0 {
			u.Prompt, u.Cached = -1, -1
		}
		u.Total = -1
		sum.Add(u)
	}
	sum.Total = max(sum.Prompt, 0) + max(sum.Completion, 0)
	return sum
}

// usageJSON writes a usage as SGLang's OpenAI route does.
func usageJSON(u sse.Usage) []byte {
	b := append(make([]byte, 0, 160), `{"prompt_tokens":`...)
	b = strconv.AppendInt(b, int64(max(u.Prompt, 0)), 10)
	b = append(b, `,"total_tokens":`...)
	b = strconv.AppendInt(b, int64(u.Total), 10)
	b = append(b, `,"completion_tokens":`...)
	b = strconv.AppendInt(b, int64(max(u.Completion, 0)), 10)
	if u.Cached >= 0 {
		b = append(b, `,"prompt_tokens_details":{"cached_tokens":`...)
		b = strconv.AppendInt(b, int64(u.Cached), 10)
		b = append(b, '}')
	}
	return append(b, '}')
}

// sumUsage appends the first usage object with every whole number in it raised by the others' at the same
// place.
func sumUsage(dst, first []byte, others [][]byte) []byte {
	at := 0
	for w := scan.Walk(first, 0); w.Next(); at = w.End {
		value := first[w.Start:w.End]
		dst = append(dst, first[at:w.Start]...)
		theirs := make([][]byte, 0, len(others))
		for _, o := range others {
			if v := member(o, w.Key); v != nil {
				theirs = append(theirs, v)
			}
		}
		n, whole := integer(value)
		switch {
		case whole:
			for _, o := range theirs {
				m, _ := integer(o)
				n += m
			}
			dst = strconv.AppendInt(dst, n, 10)
		case value[0] == '{':
			dst = sumUsage(dst, value, theirs)
		default:
			dst = append(dst, value...)
		}
	}
	return append(dst, first[at:]...)
}

// member is the value of an object's key; nil: it has none, or is no object.
func member(object, key []byte) []byte {
	if len(object) == 0 || object[0] != '{' {
		return nil
	}
	for w := scan.Walk(object, 0); w.Next(); {
		if string(w.Key) == string(key) {
			return object[w.Start:w.End]
		}
	}
	return nil
}

func integer(b []byte) (int64, bool) {
	if scan.KindAt(b, 0) != scan.Num {
		return 0, false
	}
	if end, whole, err := scan.Number(b, 0); err != nil || !whole || end != len(b) {
		return 0, false
	}
	return scan.Int(b)
}

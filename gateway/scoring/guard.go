package scoring

import (
	"penstock/gateway/body"
	"penstock/gateway/body/scan"
)

// list is an array of which every element after the first must be of one kind.
type list struct {
	all   span // the array
	there bool // it is an array
	n     int
	null  bool // the first element is null
	bad   int  // the first other element that is not of the kind; 0: none
	zeros int  // how many elements from the second on are 0, without a break
}

// read reads the value at c, whatever it is.
func (l *list) read(c *scan.Cursor, kind scan.Kind) {
	*l = list{all: span{start: c.I}}
	if c.Kind() != scan.Arr {
		c.Skip()
		return
	}
	l.there = true
	for c.Open('['); c.Next(); l.n++ {
		k := c.Kind()
		start, end := c.Skip()
		l.note(k, kind, c.B[start:end])
	}
	l.all.end = c.I
}

// note takes one element into account.
func (l *list) note(k, kind scan.Kind, value []byte) {
	switch {
	case l.n == 0:
		l.null = k == scan.Null
	case l.bad == 0 && (k != kind || empty(value)):
		l.bad = l.n
	case kind == scan.Num && l.zeros == l.n-1 && zero(value):
		l.zeros++
	}
}

// empty says whether a value is an object or an array that holds nothing: a map of alternatives has at least one.
func empty(value []byte) bool {
	if len(value) < 2 || value[0] != '{' && value[0] != '[' {
		return false
	}
	return scan.Space(value, 1) == len(value)-1
}

// zero says whether the text of a number is one of zero's.
func zero(number []byte) bool {
	for _, c := range number {
		if c >= '1' && c <= '9' {
			return false
		}
		if c == 'e' || c == 'E' {
			break
		}
	}
	return true
}

// arrays are what completions' logprobs hold.
type arrays struct {
	there                  bool
	tokens, logprobs, tops list
	offsets                list
	unknown                bool // the offsets are -1
}

// read reads the value of logprobs.
func (a *arrays) read(c *scan.Cursor) {
	*a = arrays{} // of a key given twice the last counts, here as everywhere
	if c.Kind() != scan.Obj {
		c.Skip()
		return
	}
	a.there = true
	for c.Open('{'); c.Next(); {
		switch string(c.Key()) {
		case "tokens":
			a.tokens.read(c, scan.Str)
		case "token_logprobs":
			a.logprobs.read(c, scan.Num)
		case "top_logprobs":
			a.tops.read(c, scan.Obj)
		case "text_offset":
			a.offsets.read(c, scan.Num)
			if i := scan.Space(c.B, a.offsets.all.start+1); c.Err == nil && a.offsets.n > 0 {
				a.unknown = c.B[i] == '-'
			}
		default:
			c.Skip()
		}
	}
}

// guard says whether the answer holds a log-probability for every token of every prompt: null for the first,
// which has none, and a number for each after it, with its map of alternatives where these were asked for.
func (j *Job) guard(a *Answer) error {
	if j.mode == promptLogprobs && j.v.Endpoint == body.Chat {
		return guardList(&a.prompt, "prompt_logprobs", 0, 0)
	}
	per := j.perPrompt()
	if want := (a.part.To - a.part.From) * per; len(a.choices) != want {
		return missing("%d choices, expected %d", len(a.choices), want)
	}
	seen := make([]bool, len(a.choices))
	total := 0
	for i := range a.choices {
		ch := &a.choices[i]
		if ch.local < 0 || ch.local >= len(seen) || seen[ch.local] {
			return missing("the indexes of its choices are not 0 to %d", len(seen)-1)
		}
		seen[ch.local] = true
		n, err := j.guardChoice(a, ch, a.part.From+ch.local/per)
		if err != nil {
			return err
		}
		total += n
	}
	if want := per * a.sum.Prompt; j.mode == echo && !a.native && a.sum.Prompt >= 0 && (total < want || total > want && j.maxTokens() == 0) {
		return missing("%d tokens in its choices, but its usage says %d prompt tokens", total, want)
	}
	return nil
}

// guardChoice guards one choice of prompt and returns how many tokens it has log-probabilities for.
func (j *Job) guardChoice(a *Answer, ch *choice, prompt int) (int, error) {
	tokens := j.tokens(prompt)
	if a.part.To-a.part.From == 1 && a.sum.Prompt >= 0 {
		tokens = a.sum.Prompt
	}
	if a.native {
		return 0, j.guardNative(ch, prompt)
	}
	if j.v.PromptLogprobs >= 0 {
		if err := guardList(&ch.prompt, "prompt_logprobs", prompt, tokens); err != nil || j.mode != echo {
			return ch.prompt.n, err
		}
	}
	f := &ch.found
	if !f.there {
		return 0, missing("prompt %d has no logprobs", prompt)
	}
	if err := guardList(&f.logprobs, "token_logprobs", prompt, tokens); err != nil {
		return 0, err
	}
	n := f.logprobs.n
	if f.tokens.n != n {
		return 0, missing("prompt %d has %d tokens but %d token_logprobs", prompt, f.tokens.n, n)
	}
	if f.offsets.there && f.offsets.n != n {
		return 0, missing("prompt %d has %d text_offset but %d token_logprobs", prompt, f.offsets.n, n)
	}
	if j.v.Logprobs > 0 {
		if err := guardTops(&f.tops, n, "top_logprobs", prompt); err != nil {
			return 0, err
		}
	}
	return n, guardZeros(&f.logprobs, prompt, max(tokens, n-j.maxTokens()))
}

// guardList guards an array with an element for each of at least tokens tokens, the first of which is null.
func guardList(l *list, name string, prompt, tokens int) error {
	switch {
	case !l.there:
		return missing("prompt %d has no %s", prompt, name)
	case l.n == 0:
		return missing("%s of prompt %d is empty", name, prompt)
	case l.n < tokens:
		return missing("%s of prompt %d has %d elements, expected one for each of %d tokens", name, prompt, l.n, tokens)
	case !l.null:
		return missing("%s of prompt %d does not begin with null: it is not the prompt's", name, prompt)
	case l.bad > 0:
		return missing("%s of prompt %d holds no value for token %d", name, prompt, l.bad)
	}
	return nil
}

// guardTops guards the maps beside n log-probabilities.
func guardTops(l *list, n int, name string, prompt int) error {
	switch {
	case !l.there:
		return missing("prompt %d has no %s", prompt, name)
	case l.n != n:
		return missing("prompt %d has %d %s but %d token_logprobs", prompt, l.n, name, n)
	case l.bad > 0:
		return missing("%s of prompt %d is null or empty for token %d", name, prompt, l.bad)
	}
	return nil
}

// guardZeros refuses a prompt of which every log-probability is 0: no model is as sure as that, but an engine
// that did not compute them may say so.
func guardZeros(l *list, prompt, tokens int) error {
	if l.zeros >= 2 && l.zeros >= tokens-1 {
		return missing("every log-probability of prompt %d is 0", prompt)
	}
	return nil
}

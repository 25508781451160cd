package scoring

import "penstock/gateway/body"

// Part is a stretch of a batch's prompts, [From, To), that is sent in one request.
type Part struct {
	From, To int
	Tokens   int // as estimated by Split's caller
}

// SplitOptions bound the parts.
type SplitOptions struct {
	Parts      int // how many are wanted: the replicas that could take one
	MinTokens  int // a part is not made smaller than this, but for the last ones; 0: no bound
	MaxTokens  int // nor larger than this, unless one prompt is; 0: no bound
	MaxPrompts int // engines refuse more prompts in one request; 0: no bound
}

// MaxPromptsOf is how many prompts an engine of that kind takes in one request; 0: any number.
func MaxPromptsOf(kind string) int {
	if kind == KindVLLM {
		return 1024
	}
	return 0
}

// Split deals the batch out in stretches of nearly equal token counts, the largest as small as can be. tokens
// estimates prompt i. What is no batch is one part.
func (j *Job) Split(tokens func(i int) int, o SplitOptions) []Part {
	n := j.prompts()
	total := 0
	for i := range n {
		total += tokens(i)
	}
	whole := []Part{{From: 0, To: n, Tokens: total}}
	if n == 1 || j.v.Endpoint != body.Completions || !j.Whole() {
		return whole
	}
	want := o.Parts
	if o.MinTokens > 0 {
		want = min(want, total/o.MinTokens)
	}
	if o.MaxTokens > 0 {
		want = max(want, (total+o.MaxTokens-1)/o.MaxTokens)
	}
	want = max(1, min(want, n))
	if want == 1 && (o.MaxPrompts <= 0 || n <= o.MaxPrompts) {
		return whole
	}
	// The least bound on a part's tokens with which no more than want parts are made.
	low, high := (total+want-1)/want, total
	for low < high {
		mid := (low + high) / 2
		if len(pack(n, tokens, mid, 0)) <= want {
			high = mid
		} else {
			low = mid + 1
		}
	}
	return pack(n, tokens, low, o.MaxPrompts)
}

// pack fills parts in order, each up to bound tokens and prompts (0: any number).
func pack(n int, tokens func(i int) int, bound, prompts int) []Part {
	parts := []Part{{}}
	for i := range n {
		p := &parts[len(parts)-1]
		t := tokens(i)
		if p.To > p.From && (p.Tokens+t > bound || prompts > 0 && p.To-p.From >= prompts) {
			parts = append(parts, Part{From: i, To: i})
			p = &parts[len(parts)-1]
		}
		p.To = i + 1
		p.Tokens += t
	}
	return parts
}

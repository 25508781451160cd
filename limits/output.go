package limits

// Output is what a request says of its answer's length.
type Output struct {
	// Max is the first given of max_completion_tokens, max_tokens and
	// max_output_tokens; -1 where none is.
	Max int64
	// N is n, BestOf best_of; 0 is 1. The larger counts.
	N, BestOf int
	// Prompts is the number of prompts in the batch; 0 is 1.
	Prompts int
	// Input is the estimate of all prompts' tokens, Context the model's context
	// length in tokens (0: unknown): an answer ends where the context does.
	Input, Context int64
	// Default is limits.default_output_tokens.
	Default int64
	// None: the endpoint makes no tokens, as embeddings and rerank.
	None bool
}

// Tokens are the output tokens to reserve: max × n (or best_of) × prompts.
func (o Output) Tokens() int64 {
	if o.None || o.Max == 0 {
		return 0
	}
	each := o.Max
	if each < 0 {
		each = o.Default
	}
	prompts := int64(max(1, o.Prompts))
	if o.Context > 0 {
		each = min(each, max(0, o.Context-o.Input/prompts))
	}
	each = min(each, maxTokens)
	choices := int64(max(1, o.N, o.BestOf))
	if each > 0 && choices > maxTokens/each {
		return maxTokens
	}
	all := each * choices
	if all > 0 && prompts > maxTokens/all {
		return maxTokens
	}
	return all * prompts
}

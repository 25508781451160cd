package scoring

import "penstock/gateway/body"

// mode is where a request asks for its log-probabilities.
type mode uint8

const (
	none           mode = iota
	echo                // completions: echo with logprobs
	promptLogprobs      // completions or chat: prompt_logprobs
	generate            // SGLang's own /generate
)

// modeOf tells how v asks for log-probabilities of its prompt.
func modeOf(v *body.View) mode {
	switch {
	case v.Endpoint == body.Completions && v.Echo && v.Logprobs >= 0:
		return echo
	case (v.Endpoint == body.Completions || v.Endpoint == body.Chat) && v.PromptLogprobs >= 0:
		return promptLogprobs
	case v.Endpoint == body.Generate && v.ReturnLogprob && v.LogprobStartLen == 0:
		return generate
	}
	return none
}

// Scores says whether v asks for the log-probabilities of its prompt: echo with logprobs that are not null,
// prompt_logprobs, or /generate's return_logprob from the first token on.
func Scores(v *body.View) bool { return modeOf(v) != none }

// Job is one scoring request. It looks at the view, and is valid as long as that is.
type Job struct {
	v    *body.View
	mode mode
	cuts bool // the engine cuts prompts (truncate_prompt_tokens); asked once, since the view searches the whole body for it
}

// New makes the job of a request for which Scores is true.
func New(v *body.View) Job { return Job{v: v, mode: modeOf(v), cuts: v.Has("truncate_prompt_tokens")} }

// Whole says whether the answer is to be read whole, checked and merged, and asked for without a stream
// (which Merge makes again). Otherwise it is relayed as it comes: a stream that the engine alone understands.
func (j *Job) Whole() bool { return j.mode == echo || !j.v.Stream }

// prompts is how many prompts the request has; a conversation is one.
func (j *Job) prompts() int { return j.v.PromptCount() }

// perPrompt is how many choices each prompt has.
func (j *Job) perPrompt() int { return j.v.N }

// maxTokens is how many tokens at most a choice generates; completions default to 16.
func (j *Job) maxTokens() int {
	const defaultTokens = 16
	if j.v.MaxTokens < 0 {
		return defaultTokens
	}
	return j.v.MaxTokens
}

// tokens is how many tokens prompt i has for certain; 0: only the engine knows.
func (j *Job) tokens(i int) int {
	if i < len(j.v.Prompts) && j.v.Prompts[i].Kind == body.Tokens && !j.cuts {
		return j.v.Prompts[i].Tokens
	}
	return 0
}

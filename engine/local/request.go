package local

import (
	"encoding/json"
	"errors"
	"math"
	"slices"
	"strings"

	"penstock/engine/local/lm"
)

// wire is what a client sends to the OpenAI routes, chat and completions alike.
// Fields that are not here are ignored, as the engines do.
type wire struct {
	Model               string          `json:"model"`
	Messages            []message       `json:"messages"`
	Tools               json.RawMessage `json:"tools"`
	ToolChoice          json.RawMessage `json:"tool_choice"`
	ResponseFormat      *responseFormat `json:"response_format"`
	Prompt              json.RawMessage `json:"prompt"`
	Stream              bool            `json:"stream"`
	StreamOptions       *streamOptions  `json:"stream_options"`
	N                   *int            `json:"n"`
	BestOf              *int            `json:"best_of"`
	MaxTokens           *int            `json:"max_tokens"`
	MaxCompletionTokens *int            `json:"max_completion_tokens"`
	MinTokens           int             `json:"min_tokens"`
	Temperature         *float64        `json:"temperature"`
	TopP                *float64        `json:"top_p"`
	TopK                *int            `json:"top_k"`
	MinP                float64         `json:"min_p"`
	Seed                *int64          `json:"seed"`
	Stop                stringList      `json:"stop"`
	StopTokenIDs        []uint32        `json:"stop_token_ids"`
	IgnoreEOS           bool            `json:"ignore_eos"`
	IncludeStop         bool            `json:"include_stop_str_in_output"`
	NoStopTrim          bool            `json:"no_stop_trim"`
	Logprobs            json.RawMessage `json:"logprobs"`
	TopLogprobs         *int            `json:"top_logprobs"`
	PromptLogprobs      *int            `json:"prompt_logprobs"`
	Echo                bool            `json:"echo"`
	ReturnTokenIDs      bool            `json:"return_token_ids"`
	RoutedDPRank        *int            `json:"routed_dp_rank"`
	DataParallelRank    *int            `json:"data_parallel_rank"`
	RID                 json.RawMessage `json:"rid"`
}

type streamOptions struct {
	IncludeUsage    bool `json:"include_usage"`
	ContinuousUsage bool `json:"continuous_usage_stats"`
}

type responseFormat struct {
	Type string `json:"type"`
}

type message struct {
	Role      string          `json:"role"`
	Content   content         `json:"content"`
	ToolCalls json.RawMessage `json:"tool_calls"`
}

// content is a string, a list of parts, or null.
type content string

// UnmarshalJSON reads one of the forms.
func (c *content) UnmarshalJSON(b []byte) error {
	bad := badRequest("messages", "messages: content must be a string or a list of parts.")
	if b[0] != '[' {
		s, ok := unquote(b)
		if !ok && string(b) != "null" {
			return bad
		}
		*c = content(s)
		return nil
	}
	var parts []struct {
		Type string      `json:"type"`
		Text contentText `json:"text"`
	}
	if err := json.Unmarshal(b, &parts); err != nil {
		return bad
	}
	var s strings.Builder
	for _, p := range parts {
		if p.Type != "text" && p.Type != "input_text" && p.Type != "output_text" {
			return badRequest("messages", "messages: a part of type %q: this model reads text only.", p.Type)
		}
		s.WriteString(string(p.Text))
	}
	*c = content(s.String())
	return nil
}

// contentText is a string, read without a second validation.
type contentText string

// UnmarshalJSON reads a string or null.
func (t *contentText) UnmarshalJSON(b []byte) error {
	s, ok := unquote(b)
	if !ok && string(b) != "null" {
		return errors.New("expected a string")
	}
	*t = contentText(s)
	return nil
}

// stringList is a string, a list of strings, or null.
type stringList []string

func (l *stringList) UnmarshalJSON(b []byte) error {
	switch b[0] {
	case '"':
		*l = []string{""}
		return json.Unmarshal(b, &(*l)[0])
	case 'n':
		return nil
	}
	var list []string
	if err := json.Unmarshal(b, &list); err != nil {
		return errors.New("expected a string or a list of strings")
	}
	*l = list
	return nil
}

// call is one request, understood and checked.
type call struct {
	chat    bool
	model   string
	rid     string
	prompts []prompt
	rank    int  // the data-parallel rank asked for, or -1
	ranked  bool // one was asked for

	stream, includeUsage, continuousUsage bool

	n, bestOf            int
	maxTokens, minTokens int // maxTokens -1: as far as the context goes
	how                  lm.Sampling
	seed                 uint64
	seeded               bool
	stops                []string
	stopIDs              []uint32
	ignoreEOS            bool
	keepStop             bool
	echo                 bool
	logprobs             int // alternatives per token, or -1: no logprobs at all
	promptLogprobs       int // likewise for the prompt
	returnIDs            bool
	native               *native // set for /generate
}

// wantsPrompt tells whether log-probabilities of the prompt are asked for; then
// all of it must be computed.
func (c *call) wantsPrompt() bool {
	return c.echo && c.logprobs >= 0 || c.promptLogprobs >= 0
}

// prompt is one prompt: its tokens, and its text where one was given.
type prompt struct {
	tokens []uint32
	text   string
	isText bool
}

// parse reads a request to the OpenAI routes.
func (s *Server) parse(body []byte, chat bool) (*call, error) {
	var w wire
	if err := json.Unmarshal(body, &w); err != nil {
		return nil, jsonError(err)
	}
	c := &call{
		chat: chat, model: w.Model, rank: -1, stream: w.Stream, stops: w.Stop, stopIDs: w.StopTokenIDs,
		ignoreEOS: w.IgnoreEOS, keepStop: w.IncludeStop || w.NoStopTrim, echo: w.Echo && !chat,
		minTokens: w.MinTokens, returnIDs: w.ReturnTokenIDs, n: 1, maxTokens: -1, logprobs: -1, promptLogprobs: -1,
	}
	if w.StreamOptions != nil {
		c.includeUsage, c.continuousUsage = w.StreamOptions.IncludeUsage, w.StreamOptions.ContinuousUsage
	}
	if w.PromptLogprobs != nil {
		c.promptLogprobs = *w.PromptLogprobs
	}
	for _, r := range []*int{w.DataParallelRank, w.RoutedDPRank} {
		if r != nil && s.opts.Kind == SGLang {
			c.rank, c.ranked = *r, true
		}
	}
	_ = json.Unmarshal(w.RID, &c.rid)
	for _, step := range []func(*call, *wire) error{s.checkModel, s.readPrompts, readSampling, s.readLimits, s.readLogprobs, refuseUnsupported} {
		if err := step(c, &w); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// checkModel refuses names that are not served; SGLang serves any.
func (s *Server) checkModel(c *call, _ *wire) error {
	if c.model == "" || s.opts.Kind == SGLang || c.model == s.opts.Model {
		return nil
	}
	return &apiError{status: 404, kind: "NotFoundError", param: "model", message: "The model `" + c.model + "` does not exist. Valid aliases: " + s.opts.Model + "."}
}

func jsonError(err error) error {
	if e, ok := errors.AsType[*apiError](err); ok {
		return e
	}
	if e, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return badRequest(e.Field, "1 validation error: %s: expected %s, got %s", e.Field, e.Type, e.Value)
	}
	return badRequest("", "1 validation error: JSON decode error: %v", err)
}

func readSampling(c *call, w *wire) error {
	c.how = lm.Sampling{Temperature: 1, TopP: 1, MinP: w.MinP}
	if w.Temperature != nil {
		c.how.Temperature = *w.Temperature
	}
	if t := c.how.Temperature; t < 0 || math.IsInf(t, 0) || math.IsNaN(t) {
		return badRequest("temperature", "temperature must be a non-negative finite number, got %v.", t)
	}
	if w.TopP != nil {
		c.how.TopP = *w.TopP
	}
	if p := c.how.TopP; p <= 0 || p > 1 {
		return badRequest("top_p", "top_p must be in (0, 1], got %v.", p)
	}
	if w.TopK != nil {
		c.how.TopK = *w.TopK
	}
	if k := c.how.TopK; k < -1 {
		return badRequest("top_k", "top_k must be -1 or 0 (all), or at least 1, got %d.", k)
	}
	if w.MinP < 0 || w.MinP > 1 {
		return badRequest("min_p", "min_p must be in [0, 1], got %v.", w.MinP)
	}
	if w.Seed != nil {
		c.seed, c.seeded = uint64(*w.Seed), true
	}
	if slices.Contains(c.stops, "") {
		return badRequest("stop", "stop cannot contain an empty string.")
	}
	return nil
}

func (s *Server) readLimits(c *call, w *wire) error {
	if w.N != nil {
		c.n = *w.N
	}
	c.bestOf = c.n
	if w.BestOf != nil && !c.chat {
		c.bestOf = *w.BestOf
	}
	switch {
	case c.n < 1 || c.n > maxChoices:
		return badRequest("n", "n must be between 1 and %d, got %d.", maxChoices, c.n)
	case c.bestOf < c.n || c.bestOf > maxChoices:
		return badRequest("best_of", "best_of must be at least n and at most %d, got %d.", maxChoices, c.bestOf)
	case c.bestOf > c.n && c.stream:
		return badRequest("best_of", "best_of above n cannot be streamed.")
	}
	name, limit := "max_tokens", w.MaxTokens
	if w.MaxCompletionTokens != nil && c.chat {
		name, limit = "max_completion_tokens", w.MaxCompletionTokens
	}
	if limit == nil {
		if !c.chat {
			c.maxTokens = 16 // as OpenAI and both engines do
		}
		return s.checkLength(c)
	}
	c.maxTokens = *limit
	if s.quirky(c) && c.maxTokens == 0 {
		return badRequest("", "1 validation error: max_tokens must be positive")
	}
	if c.maxTokens < 0 || c.maxTokens == 0 && !c.echo && s.opts.Kind == VLLM {
		return badRequest(name, "%s must be at least 1, got %d.", name, c.maxTokens)
	}
	return s.checkLength(c)
}

// quirky tells whether c is to be treated as badly as SGLang's completions do.
func (s *Server) quirky(c *call) bool {
	return s.opts.Quirks && s.opts.Kind == SGLang && c.native == nil && !c.chat
}

// maxChoices bounds n and best_of.
const maxChoices = 128

// checkLength refuses what does not fit the context.
func (s *Server) checkLength(c *call) error {
	limit := s.maxInput()
	for _, p := range c.prompts {
		if n := len(p.tokens); n > limit {
			if s.opts.Kind == VLLM {
				return badRequest("input_tokens", "This model's maximum context length is %d tokens. However, your prompt contains at least %d input tokens, which exceeds this limit even without any output tokens. Please reduce the length of the input prompt.", limit, limit+1)
			}
			return badRequest("", "The input (%d tokens) is longer than the model's context length (%d tokens).", n, limit)
		} else if c.maxTokens > s.opts.ContextLen-n {
			return badRequest("max_tokens", "max_tokens is too large: %d. The prompt has %d tokens, and the model's context length is %d tokens.", c.maxTokens, n, s.opts.ContextLen)
		}
	}
	return nil
}

// maxInput is how long a prompt may be: the context, if the cache can hold it.
func (s *Server) maxInput() int { return min(s.opts.ContextLen, s.opts.KVTokens-s.opts.PageSize) }

// maxTopLogprobs is vLLM's limit on alternatives.
const maxTopLogprobs = 20

func (s *Server) readLogprobs(c *call, w *wire) error {
	raw := strings.TrimSpace(string(w.Logprobs))
	switch {
	case raw == "" || raw == "null" || raw == "false":
		if c.chat && w.TopLogprobs != nil && *w.TopLogprobs > 0 {
			return badRequest("top_logprobs", "top_logprobs needs logprobs to be true.")
		}
	case c.chat && raw == "true":
		c.logprobs = 0
		if w.TopLogprobs != nil {
			c.logprobs = *w.TopLogprobs
		}
	default:
		if err := json.Unmarshal(w.Logprobs, &c.logprobs); err != nil || c.chat || c.logprobs < 0 {
			return badRequest("logprobs", "logprobs: expected %s, got %s.", map[bool]string{true: "true or false", false: "an integer, 0 or more"}[c.chat], raw)
		}
	}
	if s.quirky(c) && c.logprobs == 0 {
		c.logprobs = -1
	}
	top := max(c.logprobs, c.promptLogprobs)
	if top > s.model.Size() || s.opts.Kind == VLLM && top > maxTopLogprobs {
		return badRequest("logprobs", "Requested sample logprobs of %d, which is greater than max allowed: %d", top, min(s.model.Size(), maxTopLogprobs))
	}
	if c.chat && c.logprobs < -1 {
		return badRequest("top_logprobs", "top_logprobs must be 0 or more, got %d.", c.logprobs)
	}
	return nil
}

// refuseUnsupported says no to what the model cannot do, rather than ignore it.
func refuseUnsupported(_ *call, w *wire) error {
	if f := w.ResponseFormat; f != nil && f.Type != "text" && f.Type != "" {
		return badRequest("response_format", "response_format %q: this model writes plain text only.", f.Type)
	}
	switch tc := strings.TrimSpace(string(w.ToolChoice)); tc {
	case "", "null", `"auto"`, `"none"`:
		return nil
	default:
		return badRequest("tool_choice", "tool_choice %s: this model cannot be made to call a tool; auto and none are accepted.", tc)
	}
}

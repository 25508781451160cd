package local

import (
	"encoding/json"
	"time"

	"github.com/valyala/fasthttp"

	"penstock/engine/local/lm"
)

// native is what only SGLang's own /generate has.
type native struct {
	list     bool  // the answer is a list
	logprobs bool  // return_logprob
	startLen []int // logprob_start_len of each prompt; -1: none of the prompt's
	top      int   // top_logprobs_num
	texts    bool  // return_text_in_logprobs
}

// nativeWire is the body of /generate.
type nativeWire struct {
	Text             json.RawMessage `json:"text"`
	InputIDs         json.RawMessage `json:"input_ids"`
	SamplingParams   json.RawMessage `json:"sampling_params"`
	RID              json.RawMessage `json:"rid"`
	ReturnLogprob    json.RawMessage `json:"return_logprob"`
	LogprobStartLen  json.RawMessage `json:"logprob_start_len"`
	TopLogprobsNum   json.RawMessage `json:"top_logprobs_num"`
	TextsInLogprobs  bool            `json:"return_text_in_logprobs"`
	Stream           bool            `json:"stream"`
	RoutedDPRank     *int            `json:"routed_dp_rank"`
	DataParallelRank *int            `json:"data_parallel_rank"`
}

// nativeSampling are sampling_params.
type nativeSampling struct {
	MaxNewTokens *int       `json:"max_new_tokens"`
	MinNewTokens int        `json:"min_new_tokens"`
	Temperature  *float64   `json:"temperature"`
	TopP         *float64   `json:"top_p"`
	TopK         *int       `json:"top_k"`
	MinP         float64    `json:"min_p"`
	Seed         *int64     `json:"sampling_seed"`
	Stop         stringList `json:"stop"`
	StopTokenIDs []uint32   `json:"stop_token_ids"`
	IgnoreEOS    bool       `json:"ignore_eos"`
	NoStopTrim   bool       `json:"no_stop_trim"`
	N            *int       `json:"n"`
}

func (s *Server) serveGenerate(ctx *fasthttp.RequestCtx) error {
	c, err := s.parseNative(ctx.PostBody())
	if err != nil {
		return err
	}
	return s.answerCall(ctx, c)
}

func (s *Server) parseNative(body []byte) (*call, error) {
	var w nativeWire
	if err := json.Unmarshal(body, &w); err != nil {
		return nil, jsonError(err)
	}
	c := &call{rank: -1, n: 1, stream: w.Stream, logprobs: -1, promptLogprobs: -1, native: &native{texts: w.TextsInLogprobs}}
	_ = json.Unmarshal(w.RID, &c.rid)
	for _, r := range []*int{w.DataParallelRank, w.RoutedDPRank} {
		if r != nil {
			c.rank, c.ranked = *r, true
		}
	}
	if err := s.nativePrompts(c, &w); err != nil {
		return nil, err
	}
	sampling, err := c.native.sampling(w.SamplingParams)
	if err != nil {
		return nil, err
	}
	if err := s.nativeSampling(c, sampling); err != nil {
		return nil, err
	}
	return c, c.readNativeLogprobs(&w, s.model)
}

func (s *Server) nativePrompts(c *call, w *nativeWire) error {
	raw := w.Text
	if len(raw) == 0 {
		raw = w.InputIDs
	}
	if len(raw) == 0 || len(w.Text) > 0 && len(w.InputIDs) > 0 {
		return badRequest("", "Either text or input_ids should be provided, and not both.")
	}
	prompts, err := s.completionPrompts(raw)
	if err != nil {
		return err
	}
	c.prompts = prompts
	_, single := readIDs(raw)
	c.native.list = raw[0] == '[' && !single
	return nil
}

// sampling reads one set of parameters, or a list of one for each prompt, of
// which the first counts for all.
func (n *native) sampling(raw json.RawMessage) (p nativeSampling, err error) {
	if len(raw) > 0 && raw[0] == '[' {
		var list []json.RawMessage
		if err := json.Unmarshal(raw, &list); err != nil || len(list) == 0 {
			return p, badRequest("sampling_params", "sampling_params: expected an object or a list of objects.")
		}
		raw = list[0]
	}
	if len(raw) == 0 {
		return p, nil
	}
	if err := json.Unmarshal(raw, &p); err != nil {
		return p, jsonError(err)
	}
	return p, nil
}

func (s *Server) nativeSampling(c *call, p nativeSampling) error {
	w := &wire{
		Temperature: p.Temperature, TopP: p.TopP, TopK: p.TopK, MinP: p.MinP, Seed: p.Seed, N: p.N, MaxTokens: p.MaxNewTokens,
	}
	if w.MaxTokens == nil {
		w.MaxTokens = new(128) // SGLang's default
	}
	c.stops, c.stopIDs, c.ignoreEOS, c.keepStop, c.minTokens = p.Stop, p.StopTokenIDs, p.IgnoreEOS, p.NoStopTrim, p.MinNewTokens
	if err := readSampling(c, w); err != nil {
		return err
	}
	if err := s.readLimits(c, w); err != nil {
		return err
	}
	c.native.list = c.native.list || c.n > 1
	return nil
}

// readNativeLogprobs reads fields that are one value for all or a list of one
// for each prompt.
func (c *call) readNativeLogprobs(w *nativeWire, m *lm.Model) error {
	n := c.native
	want, err := each[bool](w.ReturnLogprob, "return_logprob", len(c.prompts), false)
	if err != nil {
		return err
	}
	from, err := each(w.LogprobStartLen, "logprob_start_len", len(c.prompts), -1)
	if err != nil {
		return err
	}
	top, err := each(w.TopLogprobsNum, "top_logprobs_num", len(c.prompts), 0)
	if err != nil {
		return err
	}
	n.startLen = from
	for i := range c.prompts {
		if !want[i] {
			n.startLen[i] = -1
			continue
		}
		n.logprobs = true
		c.logprobs = max(c.logprobs, top[i])
		n.top = max(n.top, top[i])
		if from[i] >= len(c.prompts[i].tokens) {
			return badRequest("logprob_start_len", "logprob_start_len (%d) is higher than the number of input tokens (%d).", from[i], len(c.prompts[i].tokens))
		}
		if from[i] >= 0 {
			c.promptLogprobs = max(c.promptLogprobs, 0) // all of the prompt is computed
		}
	}
	if n.top < 0 || n.top > m.Size() {
		return badRequest("top_logprobs_num", "top_logprobs_num: %d is not between 0 and the vocabulary's %d.", n.top, m.Size())
	}
	return nil
}

func each[T any](raw json.RawMessage, name string, n int, other T) ([]T, error) {
	list := make([]T, n)
	switch {
	case len(raw) == 0 || string(raw) == "null":
		for i := range list {
			list[i] = other
		}
	case raw[0] == '[':
		var given []T
		if json.Unmarshal(raw, &given) != nil || len(given) != n {
			return nil, badRequest(name, "%s: expected one value, or a list of one for each of the %d prompts.", name, n)
		}
		list = given
	default:
		var v T
		if json.Unmarshal(raw, &v) != nil {
			return nil, badRequest(name, "%s: expected one value, or a list of one for each of the %d prompts.", name, n)
		}
		for i := range list {
			list[i] = v
		}
	}
	return list, nil
}

// wholeNative writes the answer that is not streamed.
func (x *exchange) wholeNative(b []byte) []byte {
	if x.call.native.list {
		b = append(b, '[')
	}
	for i, g := range x.gens {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(x.nativeChoice(b, i, g, len(g.tokens), g.text), '}')
	}
	if x.call.native.list {
		b = append(b, ']')
	}
	return b
}

// nativeChoice writes one choice as far as its first to tokens, left open.
func (x *exchange) nativeChoice(b []byte, i int, g *gen, to int, text []byte) []byte {
	b = append(b, `{"text":`...)
	b = appendString(b, text)
	b = appendIDs(append(b, `,"output_ids":`...), g.tokens[:to])
	b = append(b, `,"meta_info":{"id":`...)
	b = appendString(b, x.id)
	b = append(b, `,"finish_reason":`...)
	if to == len(g.tokens) {
		b = appendNativeReason(b, g)
	} else {
		b = append(b, "null"...)
	}
	b = appendInt(append(b, `,"prompt_tokens":`...), len(g.prompt))
	b = append(b, `,"weight_version":"default"`...)
	if n := x.call.native; n.logprobs {
		b = x.nativeLogprobs(b, g, n.startLen[i/x.call.bestOf], to)
	}
	b = appendInt(append(b, `,"completion_tokens":`...), to)
	b = appendInt(append(b, `,"cached_tokens":`...), g.cached)
	b = appendFloat(append(b, `,"e2e_latency":`...), time.Since(x.born).Seconds())
	return append(b, '}')
}

func appendNativeReason(b []byte, g *gen) []byte {
	switch g.reason {
	case "length":
		return append(appendInt(append(b, `{"type":"length","length":`...), len(g.tokens)), '}')
	case "stop":
		b = append(b, `{"type":"stop","matched":`...)
		switch {
		case g.matched != "":
			b = appendString(b, g.matched)
		case len(g.tokens) > 0:
			b = appendInt(b, g.tokens[len(g.tokens)-1])
		}
		return append(b, '}')
	case reasonAbort:
		return append(b, `{"type":"abort","message":"Aborted"}`...)
	}
	return append(b, "null"...)
}

// nativeLogprobs writes the four lists: of the prompt from a token on, whose
// first entry is null, and of the answer.
func (x *exchange) nativeLogprobs(b []byte, g *gen, from, to int) []byte {
	m := x.srv.model
	sc := newScorer(m, false, nil)
	input := g.prompt[len(g.prompt):]
	if from >= 0 {
		input = g.prompt[from:]
		sc.state = m.AdvanceAll(m.Begin(), g.prompt[:from])
	}
	start := sc.state
	b = x.tuples(append(b, `,"input_token_logprobs":`...), sc, input, true)
	if x.call.native.top > 0 {
		sc.state = start
		b = x.topTuples(append(b, `,"input_top_logprobs":`...), sc, input, true)
	}
	sc.state = g.first
	b = x.tuples(append(b, `,"output_token_logprobs":`...), sc, g.tokens[:to], false)
	if x.call.native.top > 0 {
		sc.state = g.first
		b = x.topTuples(append(b, `,"output_top_logprobs":`...), sc, g.tokens[:to], false)
	}
	return b
}

// tuples writes [log-probability, id, text] for each token.
func (x *exchange) tuples(b []byte, sc *scorer, tokens []uint32, firstNull bool) []byte {
	b = append(b, '[')
	for i, w := range tokens {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, '[')
		if i == 0 && firstNull {
			b = append(b, "null"...)
		} else {
			b = appendFloat(b, sc.m.LogProb(sc.state, w))
		}
		b = x.endTuple(b, w)
		sc.state = sc.m.Advance(sc.state, w)
	}
	return append(b, ']')
}

func (x *exchange) topTuples(b []byte, sc *scorer, tokens []uint32, firstNull bool) []byte {
	b = append(b, '[')
	for i, w := range tokens {
		if i > 0 {
			b = append(b, ',')
		}
		if i == 0 && firstNull {
			b = append(b, "null"...)
		} else {
			b = append(b, '[')
			for j, c := range sc.choices(x.call.native.top) {
				if j > 0 {
					b = append(b, ',')
				}
				b = x.endTuple(appendFloat(append(b, '['), logOf(c)), c.Token)
			}
			b = append(b, ']')
		}
		sc.state = sc.m.Advance(sc.state, w)
	}
	return append(b, ']')
}

func (x *exchange) endTuple(b []byte, w uint32) []byte {
	b = appendInt(append(b, ','), w)
	if x.call.native.texts {
		b = appendString(append(b, ','), x.srv.model.Text(w))
	} else {
		b = append(b, `,null`...)
	}
	return append(b, ']')
}

// nativeEvents are the events of /generate: each repeats all that has come.
type nativeEvents struct{ x *exchange }

func (e *nativeEvents) open(b []byte, _ int, _ *position) []byte { return b }

func (e *nativeEvents) event(b []byte, i int, p *position, to int, _ []byte, _ bool) []byte {
	text := p.g.text
	if to < len(p.g.tokens) {
		text = text[:max(p.text, p.g.shown[to-1])]
	}
	b = e.x.nativeChoice(append(b, "data: "...), i, p.g, to, text)
	if e.x.call.native.list {
		b = appendInt(append(b, `,"index":`...), i)
	}
	return append(b, "}\n\n"...)
}

func (e *nativeEvents) close(b []byte) []byte { return b }

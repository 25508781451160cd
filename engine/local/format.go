package local

import (
	"math"

	"penstock/engine/local/lm"
)

func logOf(c lm.Choice) float64 { return math.Log(c.P) }

// head writes what all answers of one exchange begin with.
func (x *exchange) head(b []byte, object string) []byte {
	b = append(b, `{"id":`...)
	b = appendString(b, x.id)
	b = append(b, `,"object":"`...)
	b = append(b, object...)
	b = append(b, `","created":`...)
	b = appendInt(b, x.born.Unix())
	b = append(b, `,"model":`...)
	return appendString(b, x.modelName())
}

// modelName is the name in answers: SGLang echoes whatever was asked for.
func (x *exchange) modelName() string {
	if x.call.model != "" && x.srv.opts.Kind == SGLang {
		return x.call.model
	}
	return x.srv.opts.Model
}

// whole writes the answer that is not streamed.
func (x *exchange) whole(b []byte) []byte {
	if x.call.native != nil {
		return x.wholeNative(b)
	}
	chat, vllm := x.call.chat, x.srv.opts.Kind == VLLM
	object := "text_completion"
	if chat {
		object = "chat.completion"
	}
	b = append(x.head(b, object), `,"choices":[`...)
	for i, g := range x.chosen() {
		if i > 0 {
			b = append(b, ',')
		}
		if chat {
			b = x.chatChoice(b, i, g)
		} else {
			b = x.textChoice(b, i, g)
		}
	}
	b = append(b, ']')
	if vllm {
		b = append(b, `,"service_tier":null,"system_fingerprint":"penstock-local"`...)
	}
	b = append(b, `,"usage":`...)
	b = x.usage(b)
	switch {
	case vllm && chat:
		b = append(b, `,"prompt_logprobs":`...)
		b = x.promptLogprobs(b, x.gens[0])
		b = x.ids(b, `,"prompt_token_ids":`, x.gens[0].prompt)
		b = append(b, `,"kv_transfer_params":null`...)
	case vllm:
		b = append(b, `,"kv_transfer_params":null`...)
	default:
		b = append(b, `,"metadata":{"weight_version":"default"}`...)
	}
	return append(b, '}')
}

func (x *exchange) chatChoice(b []byte, index int, g *gen) []byte {
	b = append(b, `{"index":`...)
	b = appendInt(b, index)
	b = append(b, `,"message":{"role":"assistant","content":`...)
	b = appendString(b, g.text)
	if x.srv.opts.Kind == VLLM {
		b = append(b, `,"refusal":null,"annotations":null,"audio":null,"function_call":null,"reasoning":null`...)
	} else {
		b = append(b, `,"reasoning_content":null,"tool_calls":null`...)
	}
	b = append(b, `},"logprobs":`...)
	if x.call.logprobs >= 0 {
		b = x.newScorer(&g.first).chat(b, g.tokens, x.call.logprobs)
	} else {
		b = append(b, "null"...)
	}
	return append(x.ids(x.finishReason(b, g), `,"token_ids":`, g.tokens), '}')
}

func (x *exchange) textChoice(b []byte, index int, g *gen) []byte {
	c := x.call
	b = append(b, `{"index":`...)
	b = appendInt(b, index)
	b = append(b, `,"text":`...)
	text := g.text
	if c.echo {
		text = append([]byte(x.promptText(g)), text...)
	}
	b = appendString(b, text)
	b = append(b, `,"logprobs":`...)
	switch {
	case c.logprobs < 0:
		b = append(b, "null"...)
	case c.echo:
		all := append(append(make([]uint32, 0, len(g.prompt)+len(g.tokens)), g.prompt...), g.tokens...)
		b = x.newScorer(nil).completion(b, all, c.logprobs)
	default:
		b = x.newScorer(&g.first).completion(b, g.tokens, c.logprobs)
	}
	b = x.ids(x.finishReason(b, g), `,"token_ids":`, g.tokens)
	if x.srv.opts.Kind == VLLM {
		b = append(b, `,"prompt_logprobs":`...)
		b = x.promptLogprobs(b, g)
	}
	return append(x.ids(b, `,"prompt_token_ids":`, g.prompt), '}')
}

// promptText is what echo repeats: the text as it was sent, or that of the ids.
func (x *exchange) promptText(g *gen) string {
	for i := range x.call.prompts {
		if p := &x.call.prompts[i]; &p.tokens[0] == &g.prompt[0] && p.isText {
			return p.text
		}
	}
	var d lm.Detok
	var out []byte
	for _, id := range g.prompt {
		out = d.Append(out, x.srv.model.Text(id))
	}
	return string(d.Flush(out))
}

func (x *exchange) promptLogprobs(b []byte, g *gen) []byte {
	top := x.call.promptLogprobs
	if x.call.echo && x.call.logprobs >= 0 {
		top = max(top, x.call.logprobs) // vLLM sends them twice
	}
	if top < 0 {
		return append(b, "null"...)
	}
	return x.newScorer(nil).prompt(b, g.prompt, top)
}

// ids writes a field of token ids if they are asked for; where they are not,
// vLLM writes null and SGLang nothing.
func (x *exchange) ids(b []byte, field string, ids []uint32) []byte {
	switch {
	case x.call.returnIDs:
		return appendIDs(append(b, field...), ids)
	case x.srv.opts.Kind == VLLM:
		return append(append(b, field...), "null"...)
	}
	return b
}

func appendIDs(b []byte, ids []uint32) []byte {
	b = append(b, '[')
	for i, id := range ids {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendInt(b, id)
	}
	return append(b, ']')
}

// finishReason writes why a choice ended.
func (x *exchange) finishReason(b []byte, g *gen) []byte {
	b = append(b, `,"finish_reason":`...)
	b = appendStringOrNull(b, g.reason)
	if x.srv.opts.Kind == VLLM {
		b = append(b, `,"stop_reason":`...)
		return appendStringOrNull(b, g.matched)
	}
	b = append(b, `,"matched_stop":`...)
	if g.eos {
		return appendInt(b, lm.EndTurn)
	}
	return appendStringOrNull(b, g.matched)
}

// usage writes the token counts of the whole exchange.
func (x *exchange) usage(b []byte) []byte {
	in, cached, out := 0, 0, 0
	for i, g := range x.gens {
		if i%x.call.bestOf == 0 {
			in += len(g.prompt)
			cached += g.cached
		}
		out += len(g.tokens)
	}
	return x.counts(b, in, out, cached)
}

// counts writes a usage object, without details if cached is negative.
func (x *exchange) counts(b []byte, in, out, cached int) []byte {
	b = append(b, `{"prompt_tokens":`...)
	b = appendInt(b, in)
	b = append(b, `,"total_tokens":`...)
	b = appendInt(b, in+out)
	b = append(b, `,"completion_tokens":`...)
	b = appendInt(b, out)
	if cached >= 0 {
		b = append(b, `,"prompt_tokens_details":{"cached_tokens":`...)
		b = appendInt(b, cached)
		b = append(b, '}')
	}
	if x.srv.opts.Kind == SGLang {
		b = append(b, `,"reasoning_tokens":0`...)
	}
	return append(b, `,"completion_tokens_details":null}`...)
}

// newScorer begins with the state after, or before the first token if it is nil.
func (x *exchange) newScorer(after *lm.State) *scorer {
	return newScorer(x.srv.model, x.srv.quirky(x.call), after)
}

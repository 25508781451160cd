package body

import (
	"math"

	"penstock/gateway/body/scan"
)

// Parse reads b, sent to ep, into v. The error is an *Error. b must not change while v is in use.
func Parse(ep Endpoint, b []byte, v *View) error {
	v.reset(ep, b)
	p := parser{b: b, v: v}
	var err *Error
	if ep == Audio && scan.KindAt(b, scan.Space(b, 0)) != scan.Obj {
		err = v.form()
	} else {
		err = p.document()
	}
	if err == nil {
		err = v.complete()
	}
	if err != nil {
		return err
	}
	return nil
}

// parser is one pass over a body: i stands before the next token that is no white space.
type parser struct {
	b     []byte
	i     int
	depth int
	seen  [fieldCount]bool
	v     *View
}

// document reads the whole body.
func (p *parser) document() *Error {
	if len(p.b) > math.MaxInt32 {
		return invalid("", "The request body is longer than 2 GiB.")
	}
	p.i = scan.Space(p.b, 0)
	if scan.KindAt(p.b, p.i) != scan.Obj {
		if err := p.skip(); err != nil {
			return err
		}
		return &Error{Code: CodeInvalidJSON, Message: "The request body is not a JSON object."}
	}
	p.v.open = int32(p.i) + 1
	more, err := p.enter()
	p.v.last = p.v.open
	for ; more && err == nil; more, err = p.next('}') {
		if err = p.member(); err != nil {
			return err
		}
	}
	if err != nil {
		return err
	}
	if p.i = scan.Space(p.b, p.i); p.i < len(p.b) {
		return syntax(&scan.SyntaxError{Offset: p.i, Reason: "unexpected bytes after the JSON object"})
	}
	return nil
}

// member reads one top-level key and its value.
func (p *parser) member() *Error {
	at := p.i
	key, escaped, err := p.key()
	if err != nil {
		return err
	}
	f := fieldOf(key)
	if escaped {
		if f = fieldOf(p.decode(key)); f != unknown {
			return escapedKey(string(p.decode(key)))
		}
	}
	if f != unknown && f != fEngine {
		if p.seen[f] {
			return duplicate(fieldName(f))
		}
		p.seen[f] = true
	}
	val := p.i
	if err = p.value(f); err != nil {
		return err
	}
	v := p.v
	here := place{key: int32(at), val: int32(val), end: int32(p.i)}
	if v.members > 0 {
		here.prev = v.last
	}
	v.at[f], v.last = here, here.end
	v.members++
	if f.steers() && v.steers == nil && scan.KindAt(p.b, val) != scan.Null {
		v.steers = key
	}
	return nil
}

// value reads the value of field f.
func (p *parser) value(f field) *Error {
	v := p.v
	if scan.KindAt(p.b, p.i) == scan.Null { // as good as left out, in every engine
		return p.skip()
	}
	switch f {
	case fModel:
		return p.text(f, &v.Model)
	case fUser:
		return p.text(f, &v.User)
	case fPromptCacheKey:
		return p.text(f, &v.Session)
	case fPreviousResponseID:
		return p.text(f, &v.PreviousResponseID)
	case fCacheSalt, fExtraKey, fLoraPath:
		return p.seed(f)
	case fStream:
		return p.boolean("stream", &v.Stream)
	case fEcho:
		return p.boolean("echo", &v.Echo)
	case fReturnTokenIDs:
		return p.boolean("return_token_ids", &v.ReturnTokenIDs)
	case fStreamOptions:
		return p.streamOptions()
	case fN:
		return p.integer("n", 1, v.MaxN, &v.N)
	case fBestOf:
		return p.integer("best_of", 1, v.MaxN, &v.BestOf)
	case fMaxCompletionTokens, fMaxTokens, fMaxOutputTokens:
		return p.maxTokens(f)
	case fSamplingParams, fReturnLogprob, fLogprobStartLen, fTopLogprobsNum, fImageData, fAudioData, fVideoData:
		return p.generate(f)
	case fLogprobs, fTopLogprobs, fPromptLogprobs:
		return p.logprobs(f)
	case fPrompt, fInput, fText, fInputIDs, fMessages, fTools, fFunctions, fSystem, fInstructions:
		return p.prompt(f)
	}
	return p.skip()
}

// complete checks what only the whole body tells.
func (v *View) complete() *Error {
	given := func(f field) bool { return v.at[f].end > 0 && v.Body[v.at[f].val] != 'n' }
	switch v.Endpoint {
	case Chat, Messages:
		if !given(fMessages) {
			return missing("messages")
		}
	case Completions:
		if !given(fPrompt) && !given(fPromptEmbeds) {
			return missing("prompt")
		}
	case Embeddings:
		if !given(fInput) && !given(fMessages) {
			return missing("input")
		}
	case Rerank, Score, Pooling: // engines differ in their fields, but nearly all of the body is text
		v.TextBytes = len(v.Body)
	case Generate:
		if !given(fText) && !given(fInputIDs) && !given(fInputEmbeds) {
			return missing("text")
		}
	}
	return nil
}

// maxTokens keeps the one that counts: the newest name goes before the older ones.
func (p *parser) maxTokens(f field) *Error {
	n := 0
	if err := p.integer(fieldName(f), 0, math.MaxInt32, &n); err != nil {
		return err
	}
	for newer := fMaxCompletionTokens; newer < f; newer++ {
		if at := p.v.at[newer]; at.end > 0 && p.b[at.val] != 'n' {
			return nil
		}
	}
	p.v.MaxTokens = n
	return nil
}

// logprobs reads the fields that ask for log-probabilities; logprobs itself is a boolean in chat and a number
// in completions.
func (p *parser) logprobs(f field) *Error {
	v := p.v
	switch {
	case f == fTopLogprobs:
		return p.integer("top_logprobs", 0, math.MaxInt32, &v.TopLogprobs)
	case f == fPromptLogprobs:
		if err := p.integer("prompt_logprobs", -1, math.MaxInt32, &v.PromptLogprobs); err != nil {
			return err
		}
		if v.PromptLogprobs < 0 {
			v.PromptLogprobs = AllLogprobs
		}
		return nil
	case v.Endpoint == Completions:
		return p.integer("logprobs", 0, math.MaxInt32, &v.Logprobs)
	case v.Endpoint == Chat:
		asked := false
		err := p.boolean("logprobs", &asked)
		if asked {
			v.Logprobs = 0
		}
		return err
	}
	return p.skip()
}

// streamOptions reads stream_options, and where its include_usage stands.
func (p *parser) streamOptions() *Error {
	if scan.KindAt(p.b, p.i) != scan.Obj {
		return wrongType("stream_options", "an object", p.b, p.i)
	}
	v := p.v
	v.options = 0
	more, err := p.enter()
	for ; more && err == nil; more, err = p.next('}') {
		at := p.i
		key, escaped, err := p.key()
		if err != nil {
			return err
		}
		v.options++
		if string(p.plain(key, escaped)) != "include_usage" {
			if err = p.skip(); err != nil {
				return err
			}
			continue
		}
		if escaped {
			return escapedKey("stream_options.include_usage")
		}
		if v.usage.end > 0 {
			return duplicate("stream_options.include_usage")
		}
		v.usage = place{key: int32(at), val: int32(p.i)}
		if scan.KindAt(p.b, p.i) == scan.Null {
			err = p.skip()
		} else {
			err = p.boolean("stream_options.include_usage", &v.IncludeUsage)
		}
		if err != nil {
			return err
		}
		v.usage.end = int32(p.i)
	}
	return err
}

// generate reads the fields that only SGLang's /generate has. Elsewhere they pass.
func (p *parser) generate(f field) *Error {
	v := p.v
	if v.Endpoint != Generate {
		return p.skip()
	}
	switch f {
	case fSamplingParams:
		return p.each("sampling_params", p.samplingParams)
	case fReturnLogprob:
		return p.each("return_logprob", func(param string) *Error {
			asked := false
			err := p.boolean(param, &asked)
			v.ReturnLogprob = v.ReturnLogprob || asked
			return err
		})
	case fLogprobStartLen:
		return p.each("logprob_start_len", func(param string) *Error {
			n := 0
			err := p.integer(param, -1, math.MaxInt32, &n)
			if n >= 0 && (v.LogprobStartLen < 0 || n < v.LogprobStartLen) {
				v.LogprobStartLen = n
			}
			return err
		})
	case fTopLogprobsNum:
		return p.each("top_logprobs_num", func(param string) *Error {
			n := 0
			err := p.integer(param, 0, math.MaxInt32, &n)
			v.TopLogprobsNum = max(v.TopLogprobsNum, n)
			return err
		})
	}
	return p.media() // image_data, audio_data, video_data
}

// samplingParams reads one object of sampling_params; of several, the largest values count.
func (p *parser) samplingParams(param string) *Error {
	if scan.KindAt(p.b, p.i) != scan.Obj {
		return wrongType(param, "an object", p.b, p.i)
	}
	v := p.v
	var length, count bool
	more, err := p.enter()
	for ; more && err == nil; more, err = p.next('}') {
		raw, escaped, err := p.key()
		if err != nil {
			return err
		}
		n, seen := -1, (*bool)(nil)
		key := p.plain(raw, escaped)
		switch string(key) {
		case "max_new_tokens":
			seen = &length
		case "n":
			seen = &count
		}
		if seen == nil || scan.KindAt(p.b, p.i) == scan.Null {
			err = p.skip()
		} else {
			name := param + "." + string(key)
			switch {
			case escaped:
				err = escapedKey(name)
			case *seen:
				err = duplicate(name)
			case seen == &length:
				err = p.integer(name, 0, math.MaxInt32, &n)
				v.MaxTokens = max(v.MaxTokens, n)
			default:
				err = p.integer(name, 1, v.MaxN, &n)
				v.N = max(v.N, n)
			}
			*seen = true
		}
		if err != nil {
			return err
		}
	}
	return err
}

// each calls read on the value, or on each element of it if it is an array: /generate takes one value for the
// whole batch or one for each prompt.
func (p *parser) each(param string, read func(param string) *Error) *Error {
	if scan.KindAt(p.b, p.i) != scan.Arr {
		return read(param)
	}
	more, err := p.enter()
	for ; more && err == nil; more, err = p.next(']') {
		if scan.KindAt(p.b, p.i) == scan.Null {
			err = p.skip()
		} else {
			err = read(param)
		}
		if err != nil {
			return err
		}
	}
	return err
}

// seed reads a field that seeds the prefix key: a string, or (lora_path of a batch) anything, taken as it is.
func (p *parser) seed(f field) *Error {
	out := &p.v.CacheSalt
	switch f {
	case fExtraKey:
		out = &p.v.ExtraKey
	case fLoraPath:
		out = &p.v.LoRA
	}
	if scan.KindAt(p.b, p.i) == scan.Str {
		return p.text(f, out)
	}
	from := p.i
	err := p.skip()
	*out = p.b[from:p.i]
	return err
}

package local

// chatEvents are the chunks of a chat completion.
type chatEvents struct{ x *exchange }

func (e *chatEvents) open(b []byte, i int, p *position) []byte {
	e.x.score(p)
	b = e.x.beginChunk(b, "chat.completion.chunk", i)
	b = append(b, `,"delta":{"role":"assistant","content":""},"logprobs":null`...)
	return e.x.endChunk(b, p, 0, false)
}

func (e *chatEvents) event(b []byte, i int, p *position, to int, text []byte, last bool) []byte {
	tokens := p.g.tokens[p.tokens:to]
	b = append(e.x.beginChunk(b, "chat.completion.chunk", i), `,"delta":{"content":`...)
	b = append(appendString(b, text), `},"logprobs":`...)
	if p.score != nil {
		b = p.score.chat(b, tokens, e.x.call.logprobs)
	} else {
		b = append(b, "null"...)
	}
	if e.x.call.returnIDs {
		b = appendIDs(append(b, `,"token_ids":`...), tokens)
	}
	return e.x.endChunk(b, p, to, last)
}

func (e *chatEvents) close(b []byte) []byte { return e.x.usageChunk(b, "chat.completion.chunk") }

// textEvents are the chunks of a completion.
type textEvents struct{ x *exchange }

func (e *textEvents) open(b []byte, i int, p *position) []byte {
	e.x.score(p)
	c := e.x.call
	if !c.echo {
		return b
	}
	b = append(e.x.beginChunk(b, "text_completion", i), `,"text":`...)
	b = append(appendString(b, e.x.promptText(p.g)), `,"logprobs":`...)
	if c.logprobs >= 0 {
		p.score = e.x.newScorer(nil)
		b = p.score.completion(b, p.g.prompt, c.logprobs)
	} else {
		b = append(b, "null"...)
	}
	return e.x.endChunk(b, p, 0, false)
}

func (e *textEvents) event(b []byte, i int, p *position, to int, text []byte, last bool) []byte {
	tokens := p.g.tokens[p.tokens:to]
	b = append(e.x.beginChunk(b, "text_completion", i), `,"text":`...)
	b = append(appendString(b, text), `,"logprobs":`...)
	if p.score != nil && len(tokens) > 0 {
		b = p.score.completion(b, tokens, e.x.call.logprobs)
	} else {
		b = append(b, "null"...)
	}
	if e.x.call.returnIDs {
		b = appendIDs(append(b, `,"token_ids":`...), tokens)
	}
	return e.x.endChunk(b, p, to, last)
}

func (e *textEvents) close(b []byte) []byte { return e.x.usageChunk(b, "text_completion") }

// score gives a choice what its log-probabilities are written with.
func (x *exchange) score(p *position) {
	if x.call.logprobs >= 0 {
		p.score = x.newScorer(&p.g.first)
	}
}

func (x *exchange) beginChunk(b []byte, object string, i int) []byte {
	b = append(x.head(append(b, "data: "...), object), `,"choices":[{"index":`...)
	return appendInt(b, i)
}

// endChunk closes a chunk whose choice has sent its first tokens tokens.
func (x *exchange) endChunk(b []byte, p *position, tokens int, last bool) []byte {
	if last {
		b = x.finishReason(b, p.g)
	} else {
		b = append(b, `,"finish_reason":null`...)
	}
	b = append(b, `}]`...)
	switch {
	case x.call.continuousUsage:
		b = x.counts(append(b, `,"usage":`...), len(p.g.prompt), tokens, -1)
	case x.srv.opts.Kind == SGLang:
		b = append(b, `,"usage":null`...)
	}
	return append(b, "}\n\n"...)
}

func (x *exchange) usageChunk(b []byte, object string) []byte {
	if !x.call.includeUsage {
		return b
	}
	b = append(x.head(append(b, "data: "...), object), `,"choices":[],"usage":`...)
	return append(x.usage(b), "}\n\n"...)
}

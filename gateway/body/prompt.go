package body

import (
	"strconv"

	"penstock/gateway/body/scan"
)

// prompt reads a field that is part of the prompt at this endpoint, and passes it where it is something else
// (Responses' text is a format, its prompt a template).
func (p *parser) prompt(f field) *Error {
	v := p.v
	switch f {
	case fMessages:
		switch v.Endpoint {
		case Chat, Messages, Embeddings, Tokenize:
			return p.messages("messages")
		}
	case fPrompt:
		if v.Endpoint == Completions {
			return p.prompts("prompt", scan.Invalid)
		}
	case fInput:
		switch v.Endpoint {
		case Embeddings:
			return p.prompts("input", scan.Obj)
		case Responses:
			return p.input()
		}
	case fText:
		if v.Endpoint == Generate {
			return p.prompts("text", scan.Invalid)
		}
	case fInputIDs:
		if v.Endpoint == Generate {
			return p.prompts("input_ids", scan.Invalid)
		}
	case fTools, fFunctions:
		switch v.Endpoint {
		case Chat, Messages, Responses:
			return p.tools(f)
		}
	case fSystem:
		if v.Endpoint == Messages {
			return p.content("system")
		}
	case fInstructions:
		if v.Endpoint == Responses {
			return p.content("instructions")
		}
	}
	return p.skip()
}

// tools reads a list of tools; it enters the key as it is.
func (p *parser) tools(f field) *Error {
	if scan.KindAt(p.b, p.i) != scan.Arr {
		return wrongType(fieldName(f), "an array of objects", p.b, p.i)
	}
	from := p.i
	err := p.skip()
	p.v.TextBytes += p.i - from
	return err
}

// prompts reads a prompt in any of its forms: a string, strings, token ids, lists of them, and, where extra is
// scan.Obj, objects.
func (p *parser) prompts(param string, extra scan.Kind) *Error {
	const forms = "a string or an array of strings, of token ids or of arrays of token ids"
	switch scan.KindAt(p.b, p.i) {
	case scan.Str:
		return p.onePrompt(param)
	case scan.Arr:
	default:
		return wrongType(param, forms, p.b, p.i)
	}
	start := p.i
	more, err := p.enter()
	if err != nil {
		return err
	}
	if !more {
		return emptyArray(param)
	}
	first := scan.KindAt(p.b, p.i)
	switch {
	case first == scan.Num:
		n, err := p.ids(param)
		p.addPrompt(start, Tokens, n)
		return err
	case first == scan.Str, first == scan.Arr, first == extra && extra != scan.Invalid:
	default:
		return wrongType(param, forms, p.b, p.i)
	}
	for ; more && err == nil; more, err = p.next(']') {
		if len(p.v.Prompts) >= MaxPrompts {
			return tooMany(param, MaxPrompts)
		}
		if scan.KindAt(p.b, p.i) != first {
			return wrongType(element(param, len(p.v.Prompts)), first.String()+" like the first element", p.b, p.i)
		}
		if err = p.onePrompt(param); err != nil {
			return err
		}
	}
	return err
}

// onePrompt reads a string, an array of token ids or an object as one prompt.
func (p *parser) onePrompt(param string) *Error {
	start := p.i
	switch scan.KindAt(p.b, p.i) {
	case scan.Str:
		if err := p.skip(); err != nil {
			return err
		}
		if p.i == start+2 {
			return emptyString(param)
		}
		p.v.TextBytes += p.i - start - 2
		p.addPrompt(start, Text, 0)
		return nil
	case scan.Arr:
		more, err := p.enter()
		if err != nil {
			return err
		}
		if !more {
			return emptyArray(element(param, len(p.v.Prompts)))
		}
		n, err := p.ids(param)
		p.addPrompt(start, Tokens, n)
		return err
	}
	err := p.skip()
	p.v.TextBytes += p.i - start
	p.addPrompt(start, Object, 0)
	return err
}

func (p *parser) addPrompt(start int, kind Kind, tokens int) {
	p.v.Prompts = append(p.v.Prompts, Prompt{Start: start, End: p.i, Kind: kind, Tokens: tokens})
	p.v.TokenIDs += tokens
}

// ids reads token ids up to and with the closing bracket. A loop of its own, since such prompts are made of
// nothing else.
func (p *parser) ids(param string) (n int, err *Error) {
	for {
		i := p.i
		for i < len(p.b) && p.b[i]-'0' <= 9 {
			i++
		}
		switch {
		case i == p.i || i-p.i > 18 || p.b[p.i] == '0' && i > p.i+1, i < len(p.b) && (p.b[i] == '.' || p.b[i]|0x20 == 'e'):
			return n, p.badID(param, n)
		}
		n++
		p.i = i
		if i+1 < len(p.b) && p.b[i] == ',' && p.b[i+1]-'0' <= 9 {
			p.i++
			continue
		}
		if more, err := p.next(']'); err != nil || !more {
			return n, err
		}
	}
}

// badID tells apart what is no JSON and what is no token id.
func (p *parser) badID(param string, n int) *Error {
	at := p.i
	if err := p.skip(); err != nil {
		return err
	}
	if _, err := p.next(']'); err != nil { // a second digit after a leading zero
		return err
	}
	return wrongType(element(param, n), "a token id", p.b, at)
}

// media reads /generate's image_data and the like: a string, or arrays of them, each one a medium.
func (p *parser) media() *Error {
	if scan.KindAt(p.b, p.i) != scan.Arr {
		p.v.Media++
		return p.skip()
	}
	more, err := p.enter()
	for ; more && err == nil; more, err = p.next(']') {
		if err = p.media(); err != nil {
			return err
		}
	}
	return err
}

func element(param string, i int) string { return param + "[" + strconv.Itoa(i) + "]" }

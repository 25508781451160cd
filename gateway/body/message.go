package body

import (
	"penstock/gateway/body/scan"
)

// nestedParts bounds how deep parts inside parts (a tool result that holds an image) are looked at. Deeper ones
// are text like any other.
const nestedParts = 4

// messages reads an array of messages.
func (p *parser) messages(param string) *Error {
	if scan.KindAt(p.b, p.i) != scan.Arr {
		return wrongType(param, "an array of objects", p.b, p.i)
	}
	more, err := p.enter()
	if err == nil && !more {
		return emptyArray(param)
	}
	for ; more && err == nil; more, err = p.next(']') {
		if len(p.v.messages) >= MaxMessages {
			return tooMany(param, MaxMessages)
		}
		if err = p.message(param); err != nil {
			return err
		}
	}
	return err
}

// input reads Responses' input: a string, or items of which some are messages.
func (p *parser) input() *Error {
	switch scan.KindAt(p.b, p.i) {
	case scan.Str:
		if p.i+1 < len(p.b) && p.b[p.i+1] == '"' {
			return emptyString("input")
		}
		var m message
		from := p.i
		err := p.str("input", &m.content)
		p.v.TextBytes += p.i - from
		p.v.messages = append(p.v.messages, m)
		return err
	case scan.Arr:
		return p.messages("input")
	}
	return wrongType("input", "a string or an array of items", p.b, p.i)
}

// message reads one message, or one item of Responses' input.
func (p *parser) message(param string) *Error {
	n := len(p.v.messages)
	if scan.KindAt(p.b, p.i) != scan.Obj {
		return wrongType(element(param, n), "an object", p.b, p.i)
	}
	m := message{whole: span{start: int32(p.i)}}
	text := p.v.TextBytes
	more, err := p.enter()
	for ; more && err == nil; more, err = p.next('}') {
		key, escaped, err := p.key()
		if err != nil {
			return err
		}
		if escaped {
			return escapedKey(element(param, n) + "." + string(p.decode(key)))
		}
		if err = p.messageField(&m, param, n, key); err != nil {
			return err
		}
	}
	if err != nil {
		return err
	}
	m.whole.end = int32(p.i)
	if !m.role.there() {
		if p.v.Endpoint != Responses {
			return missing(element(param, n) + ".role")
		}
		if !m.content.there() { // a function call, its output, a reference: text as it stands
			p.v.TextBytes = text + int(m.whole.end-m.whole.start)
		}
	}
	p.v.messages = append(p.v.messages, m)
	return nil
}

// messageField reads one field of message m.
func (p *parser) messageField(m *message, param string, n int, key []byte) *Error {
	var at *span
	switch string(key) {
	case "role":
		at = &m.role
	case "content":
		at = &m.content
	case "tool_calls", "function_call":
		at = &m.calls
	case "output":
		if p.v.Endpoint == Responses && scan.KindAt(p.b, p.i) != scan.Null {
			return p.content("input[].output")
		}
	}
	if at == nil || scan.KindAt(p.b, p.i) == scan.Null {
		return p.skip()
	}
	if at.there() && at != &m.calls {
		return duplicate(element(param, n) + "." + string(key))
	}
	from := p.i
	var err *Error
	switch at {
	case &m.role:
		if scan.KindAt(p.b, p.i) != scan.Str {
			return wrongType(element(param, n)+".role", "a string", p.b, p.i)
		}
		err = p.skip()
	case &m.content:
		if k := scan.KindAt(p.b, p.i); k != scan.Str && k != scan.Arr {
			return wrongType(element(param, n)+".content", "a string or an array of parts", p.b, p.i)
		}
		err = p.content("messages[].content")
	default:
		err = p.skip()
		p.v.TextBytes += p.i - from
	}
	*at = span{int32(from), int32(p.i)}
	return err
}

// content reads a message's content, a system prompt or a tool's output: a string, parts, or one part.
func (p *parser) content(param string) *Error {
	switch scan.KindAt(p.b, p.i) {
	case scan.Str:
		from := p.i
		err := p.skip()
		p.v.TextBytes += p.i - from - 2
		return err
	case scan.Arr:
		return p.parts(0)
	case scan.Obj:
		return p.part(0)
	}
	return wrongType(param, "a string or an array of parts", p.b, p.i)
}

// parts reads an array of content parts, inside level others.
func (p *parser) parts(level int) *Error {
	more, err := p.enter()
	for ; more && err == nil; more, err = p.next(']') {
		if scan.KindAt(p.b, p.i) == scan.Obj {
			err = p.part(level)
		} else {
			from := p.i
			err = p.skip()
			p.v.TextBytes += p.i - from
		}
		if err != nil {
			return err
		}
	}
	return err
}

// part reads one content part, to count what is text and what is a medium.
func (p *parser) part(level int) *Error {
	var at part
	from, media, text := p.i, p.v.Media, p.v.TextBytes
	nested := 0 // bytes of the parts inside, which count for themselves
	more, err := p.enter()
	for ; more && err == nil; more, err = p.next('}') {
		key, _, err := p.key()
		if err != nil {
			return err
		}
		start := p.i
		if string(key) == "content" && scan.KindAt(p.b, p.i) == scan.Arr && level < nestedParts {
			err = p.parts(level + 1)
			nested += p.i - start
		} else {
			err = p.skip()
		}
		if err != nil {
			return err
		}
		at.field(key, p.b, start, p.i)
	}
	if err != nil {
		return err
	}
	switch at.form() {
	case partMedia:
		p.v.Media, p.v.TextBytes = media+1, text
	case partText:
		p.v.TextBytes = text + len(at.text) - 2
	default:
		p.v.TextBytes += p.i - from - nested
	}
	return nil
}

// part is what tells a content part's form.
type part struct {
	kind  []byte // the inside of type; nil: none
	text  []byte // the string, quotes included; nil: none
	media bool   // has a field that holds a medium
}

// The forms of a content part.
const (
	partText  = iota // its text enters the key
	partMedia        // its hash does
	partOther        // all of it does (a tool's use or result, and what is not known)
)

// field notes the part's field key, whose value is b[start:end].
func (a *part) field(key, b []byte, start, end int) {
	switch string(key) {
	case "type":
		if b[start] == '"' {
			a.kind = b[start+1 : end-1]
		}
	case "text":
		if b[start] == '"' {
			a.text = b[start:end]
		}
	case "image_url", "image", "image_embeds", "image_pil", "input_image", "input_audio", "audio_url", "audio", "audio_embeds",
		"video_url", "video", "input_video", "file", "input_file", "file_data":
		a.media = a.media || b[start] != 'n'
	}
}

// form tells the part's form by its type, or, where it has none, by what it holds.
func (a *part) form() int {
	switch string(a.kind) {
	case "text", "input_text", "output_text":
		if a.text != nil {
			return partText
		}
	case "image_url", "image", "image_embeds", "image_pil", "input_image", "input_audio", "audio_url", "audio", "audio_embeds",
		"video_url", "video", "input_video", "file", "input_file", "document":
		return partMedia
	case "":
		if a.text != nil && !a.media {
			return partText
		}
	}
	if a.media {
		return partMedia
	}
	return partOther
}

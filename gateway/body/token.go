package body

import (
	"bytes"

	"penstock/gateway/body/scan"
)

// enter steps into the array or object at i and says whether it has a first element.
func (p *parser) enter() (more bool, err *Error) {
	if p.depth++; p.depth > scan.MaxDepth {
		return false, syntax(&scan.SyntaxError{Offset: p.i, Reason: "nested too deeply"})
	}
	closing := p.b[p.i] + 2
	p.i = scan.Space(p.b, p.i+1)
	if p.i < len(p.b) && p.b[p.i] == closing {
		p.i++
		p.depth--
		return false, nil
	}
	return true, nil
}

// next steps over the comma after a member or element, or out of the array or object.
func (p *parser) next(closing byte) (more bool, err *Error) {
	p.i = scan.Space(p.b, p.i)
	switch {
	case p.i >= len(p.b):
		return false, syntax(&scan.SyntaxError{Offset: p.i, Reason: "unexpected end of the JSON text"})
	case p.b[p.i] == ',':
		p.i = scan.Space(p.b, p.i+1)
		return true, nil
	case p.b[p.i] == closing:
		p.i++
		p.depth--
		return false, nil
	case closing == '}':
		return false, syntax(&scan.SyntaxError{Offset: p.i, Reason: "expected a comma or } after an object's member"})
	}
	return false, syntax(&scan.SyntaxError{Offset: p.i, Reason: "expected a comma or ] after an array's element"})
}

// key reads an object's key, without its quotes, and steps to its value.
func (p *parser) key() (key []byte, escaped bool, err *Error) {
	from := p.i
	end, escaped, val, bad := scan.Key(p.b, from)
	if bad != nil {
		return nil, false, syntax(bad)
	}
	p.i = val
	return p.b[from+1 : end-1], escaped, nil
}

// skip validates a value and steps over it.
func (p *parser) skip() *Error {
	end, err := scan.Value(p.b, p.i, p.depth)
	if err != nil {
		return syntax(err)
	}
	p.i = end
	return nil
}

// span validates a value, steps over it and remembers where it was.
func (p *parser) span(s *span) *Error {
	from := p.i
	err := p.skip()
	*s = span{int32(from), int32(p.i)}
	return err
}

// str reads a string that is there for its place only.
func (p *parser) str(param string, s *span) *Error {
	if scan.KindAt(p.b, p.i) != scan.Str {
		return wrongType(param, "a string", p.b, p.i)
	}
	return p.span(s)
}

// text reads field f as a string and decodes it.
func (p *parser) text(f field, out *[]byte) *Error {
	var s span
	if err := p.str(fieldName(f), &s); err != nil {
		return err
	}
	*out = p.decode(s.inner(p.b))
	return nil
}

// decode returns what raw stands for: raw itself where it has no escapes, else bytes in the view's scratch.
func (p *parser) decode(raw []byte) []byte {
	if bytes.IndexByte(raw, '\\') < 0 {
		return raw
	}
	from := len(p.v.scratch)
	p.v.scratch = scan.AppendDecoded(p.v.scratch, raw)
	return p.v.scratch[from:len(p.v.scratch):len(p.v.scratch)]
}

// plain is a key without its escapes.
func (p *parser) plain(key []byte, escaped bool) []byte {
	if !escaped {
		return key
	}
	return p.decode(key)
}

// boolean reads true or false.
func (p *parser) boolean(param string, out *bool) *Error {
	if scan.KindAt(p.b, p.i) != scan.Bool {
		return wrongType(param, "a boolean", p.b, p.i)
	}
	*out = p.b[p.i] == 't'
	return p.skip()
}

// integer reads a whole number between minimum and maximum.
func (p *parser) integer(param string, minimum, maximum int, out *int) *Error {
	if scan.KindAt(p.b, p.i) != scan.Num {
		return wrongType(param, "an integer", p.b, p.i)
	}
	end, whole, bad := scan.Number(p.b, p.i)
	if bad != nil {
		return syntax(bad)
	}
	raw := p.b[p.i:end]
	n, fits := scan.Int(raw)
	switch {
	case !whole:
		return wrongType(param, "an integer", p.b, p.i)
	case !fits && raw[0] == '-', fits && n < int64(minimum):
		return belowMin(param, minimum, raw)
	case !fits, n > int64(maximum):
		return aboveMax(param, maximum, raw)
	}
	p.i = end
	*out = int(n)
	return nil
}

package sse

import (
	"bytes"

	"penstock/gateway/body/scan"
)

// Payload is what a relay must know of an event's data, or of a whole answer. Its bytes lie in the data, with
// JSON's escapes left in.
type Payload struct {
	Done         bool   // it is [DONE]
	Type         []byte // the top-level type, as Responses and Messages have it
	Error        []byte // the error: the value of error, or all of it where the body itself is one; nil: none
	Status       int    // the error's code where that is an HTTP status, else 0
	Message      []byte // the error's message
	HasChoices   bool
	EmptyChoices bool // choices is there and empty: a chunk that only carries usage
	HasUsage     bool
	Usage        Usage
	Index        int // which answer of a /generate batch it belongs to; -1: it does not say
}

// Look reads one payload. Text that is no JSON says nothing.
func Look(data []byte) Payload {
	p := Payload{Usage: NoUsage(), Index: -1}
	i := scan.Space(data, 0)
	if scan.KindAt(data, i) != scan.Obj {
		p.Done = string(bytes.TrimSpace(data)) == "[DONE]"
		return p
	}
	flat := false
	var code, message []byte
	w := scan.Walk(data, i)
	for w.Next() {
		value := data[w.Start:w.End]
		switch string(w.Key) {
		case "type":
			p.Type = inner(value)
			flat = flat || string(p.Type) == "error"
		case "object":
			flat = flat || string(inner(value)) == "error"
		case "code", "status_code":
			code = value
		case "message":
			message = value
		case "error":
			p.lookError(value)
		case "choices":
			p.HasChoices = value[0] == '['
			p.EmptyChoices = p.HasChoices && scan.Space(value, 1) == len(value)-1
		case "usage", "meta_info":
			p.usage(value)
		case "index":
			number(value, &p.Index)
		}
		if value[0] == '{' && (string(w.Key) == "response" || string(w.Key) == "message") {
			p.wrapped(value)
		}
	}
	if flat && p.Error == nil && w.Err == nil {
		p.Error, p.Message, p.Status = data, inner(message), status(code)
	}
	if p.Error != nil && p.Status == 0 {
		p.Status = status(code)
	}
	return p
}

// wrapped reads the object that Responses' and Messages' events wrap the answer in.
func (p *Payload) wrapped(value []byte) {
	for w := scan.Walk(value, 0); w.Next(); {
		switch string(w.Key) {
		case "usage":
			p.usage(value[w.Start:w.End])
		case "error":
			p.lookError(value[w.Start:w.End])
		}
	}
}

func (p *Payload) usage(value []byte) {
	if value[0] != '{' {
		return
	}
	p.HasUsage = true
	p.Usage = UsageOf(value)
}

// lookError reads the value of error: an object, or a message alone.
func (p *Payload) lookError(value []byte) {
	switch value[0] {
	case '"':
		p.Error, p.Message = value, inner(value)
	case '{':
		p.Error = value
		for w := scan.Walk(value, 0); w.Next(); {
			switch string(w.Key) {
			case "message":
				p.Message = inner(value[w.Start:w.End])
			case "code", "status", "status_code":
				if s := status(value[w.Start:w.End]); s != 0 {
					p.Status = s
				}
			}
		}
	}
}

// inner is the inside of a JSON string, nil of anything else.
func inner(value []byte) []byte {
	if len(value) < 2 || value[0] != '"' {
		return nil
	}
	return value[1 : len(value)-1]
}

// status reads a code that is an HTTP error status, as a number or a string.
func status(value []byte) int {
	if s := inner(value); s != nil {
		value = s
	}
	if len(value) != 3 || value[0] < '4' || value[0] > '5' || value[1]-'0' > 9 || value[2]-'0' > 9 {
		return 0
	}
	return int(value[0]-'0')*100 + int(value[1]-'0')*10 + int(value[2]-'0')
}

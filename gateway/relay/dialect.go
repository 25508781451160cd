package relay

import (
	"bytes"

	"penstock/gateway/sse"
)

// Dialect is how an endpoint's stream ends.
type Dialect uint8

// The dialects.
const (
	// DialectDone ends with data: [DONE]: chat, completions, /generate.
	DialectDone Dialect = iota
	// DialectResponses ends with response.completed, .incomplete or .failed: /v1/responses.
	DialectResponses
	// DialectMessages ends with message_stop: /v1/messages.
	DialectMessages
	// DialectNone needs no end marker: the end of the body is its end, or data: [DONE]
	// where it comes, as with vLLM's transcriptions.
	DialectNone
)

// isEnd reports whether an event of that type is the last one.
func (d Dialect) isEnd(typ []byte) bool {
	switch d {
	case DialectResponses:
		switch string(typ) {
		case "response.completed", "response.incomplete", "response.failed":
			return true
		}
	case DialectMessages:
		return string(typ) == "message_stop"
	}
	return false
}

// looked is what one event says to a relay.
type looked struct {
	data      bool   // it has data; others are comments and the like
	done      bool   // it is [DONE]
	end       bool   // it is the endpoint's end marker, [DONE] apart
	usage     bool   // it reports usage
	usageOnly bool   // it holds nothing else
	text      []byte // its data
	payload   sse.Payload
}

// look reads an event as far as it matters. Most events hold tokens and nothing
// else, so their JSON is read only if it may hold more.
func (x *exchange) look(ev []byte) (k looked) {
	e := sse.Parse(ev, &x.stream.scratch)
	if !e.HasData {
		return k
	}
	k.data, k.text = true, e.Data
	if x.stream.first && x.req.Dialect == DialectDone && !mayMatter(e.Data) {
		return k
	}
	p := sse.Look(e.Data)
	k.done = p.Done
	typ := e.Name
	if len(typ) == 0 {
		typ = p.Type
	}
	k.end = x.req.Dialect.isEnd(typ)
	k.usage = p.HasUsage
	k.usageOnly = p.HasUsage && p.EmptyChoices
	k.payload = p
	return k
}

// mayMatter reports whether the data of an event, after the first, may be more
// than tokens: an end marker, an error or usage.
func mayMatter(data []byte) bool {
	return len(data) == 0 || data[0] != '{' || bytes.Contains(data, []byte(`"usage"`)) ||
		bytes.Contains(data, []byte(`"error"`)) || bytes.Contains(data, []byte(`"meta_info"`))
}

// errorStatus is the HTTP status of an error that came as an event: its code,
// where that is one, else what its type stands for, else 500.
func errorStatus(p *sse.Payload) int {
	if p.Status != 0 {
		return p.Status
	}
	for _, t := range [...]struct {
		text   string
		status int
	}{
		{"overloaded_error", 503},
		{"rate_limit_error", 429},
		{"invalid_request_error", 400},
		{"BadRequestError", 400},
		{"not_found_error", 404},
		{"NotFoundError", 404},
		{"timeout_error", 504},
	} {
		if bytes.Contains(p.Error, []byte(t.text)) {
			return t.status
		}
	}
	return 500
}

package engine

import (
	"encoding/json"
	"errors"
	"strconv"
)

// What the admin calls of a Fleet fail with; each is wrapped with the details.
var (
	// ErrNotFound: no replica or model of that name.
	ErrNotFound = errors.New("not found")
	// ErrConflict: the configuration file, not the admin API, decides on that replica.
	ErrConflict = errors.New("conflict")
	// ErrInvalid: the call's own values are wrong.
	ErrInvalid = errors.New("invalid")
	// ErrClosed: the fleet is closed.
	ErrClosed = errors.New("the fleet is closed")
	// ErrOpen: the replica's breaker lets nothing through now; choose another.
	ErrOpen = errors.New("circuit breaker is open")
)

// EngineError is an engine's error answer, read from any of their shapes.
type EngineError struct {
	Message string
	Type    string
	Param   string
	Code    string
}

// ReadError reads the error shapes that engines use: OpenAI's nested one
// (vLLM), SGLang's flat one and FastAPI's {"detail": …}. ok is false when the
// body is none of them.
func ReadError(body []byte) (e EngineError, ok bool) {
	type shape struct {
		Message string          `json:"message"`
		Type    string          `json:"type"`
		Param   any             `json:"param"`
		Code    json.RawMessage `json:"code"`
	}
	var all struct {
		shape
		Error  json.RawMessage `json:"error"`
		Detail any             `json:"detail"`
	}
	if json.Unmarshal(body, &all) != nil {
		return e, false
	}
	s := all.shape
	var text string
	switch {
	case json.Unmarshal(all.Error, &text) == nil && text != "":
		s.Message = text
	case len(all.Error) > 0 && json.Unmarshal(all.Error, &s) != nil:
		return e, false
	}
	if s.Message == "" && all.Detail != nil {
		if text, isText := all.Detail.(string); isText {
			s.Message = text
		} else if b, err := json.Marshal(all.Detail); err == nil {
			s.Message = string(b)
		}
	}
	e = EngineError{Message: s.Message, Type: s.Type, Code: codeText(s.Code)}
	if p, isText := s.Param.(string); isText {
		e.Param = p
	}
	return e, e.Message != ""
}

// codeText is the code as text: engines send a number, OpenAI a string.
func codeText(raw json.RawMessage) string {
	var s string
	if json.Unmarshal(raw, &s) == nil {
		return s
	}
	var n int
	if json.Unmarshal(raw, &n) == nil {
		return strconv.Itoa(n)
	}
	return ""
}

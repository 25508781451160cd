package gateway

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/valyala/fasthttp"
)

// Error is the one error type that a client sees. Everything that goes wrong
// on the way of a request is turned into one by asError.
type Error struct {
	Status  int    // HTTP status; 499 is for log and metrics only
	Type    string // OpenAI's coarse type, such as invalid_request_error
	Code    string // the fine code that docs/limits.md and docs/operations.md list
	Param   string // the request parameter at fault, or empty
	Message string // names the limit or thing, its value and the configuration key; never an upstream address

	RetryAfter time.Duration // how long to wait; 0: not said
	Retry      retryHint     // x-should-retry
	Allow      string        // the Allow header of a 405
	Cause      error         // logged, never shown
}

// retryHint is what x-should-retry tells the SDKs, which otherwise decide by status.
type retryHint int8

const (
	retryUnsaid retryHint = iota
	retryYes
	retryNo
)

// Types of errors, as OpenAI writes them.
const (
	typeInvalid     = "invalid_request_error"
	typeServer      = "server_error"
	typeConcurrency = "concurrency"
	typeQueue       = "queue"
)

func (e *Error) Error() string {
	if e.Cause != nil {
		return fmt.Sprintf("%d %s: %s: %v", e.Status, e.Code, e.Message, e.Cause)
	}
	return fmt.Sprintf("%d %s: %s", e.Status, e.Code, e.Message)
}

func (e *Error) Unwrap() error { return e.Cause }

// clientGone is the outcome of a request whose client left; nobody reads it.
var errClientGone = &Error{Status: 499, Type: typeInvalid, Code: "client_closed_request", Message: "The client closed the connection."}

func invalid(code, param, format string, args ...any) *Error {
	return &Error{Status: fasthttp.StatusBadRequest, Type: typeInvalid, Code: code, Param: param, Message: fmt.Sprintf(format, args...)}
}

func serverError(status int, code, format string, args ...any) *Error {
	return &Error{Status: status, Type: typeServer, Code: code, Message: fmt.Sprintf(format, args...)}
}

// internalError hides what it wraps: an unknown error is a 500 without details.
func internalError(cause error) *Error {
	return &Error{
		Status: fasthttp.StatusInternalServerError, Type: typeServer, Code: "internal_error",
		Message: "An error inside the gateway. Its log names it by this answer's x-request-id.", Cause: cause,
	}
}

// body is the error as the endpoint's own clients expect it.
func (e *Error) body(s shape, requestID string) []byte {
	var v any
	switch s {
	case shapeAnthropic:
		v = anthropicError{Type: "error", Error: anthropicDetail{Type: anthropicType(e.Status), Message: e.Message}, RequestID: requestID}
	default:
		v = openAIError{Error: openAIDetail{Message: e.Message, Type: e.Type, Param: nullable(e.Param), Code: nullable(e.Code)}}
	}
	return encode(v)
}

// encode is v as JSON, with < and > as they are. v holds strings only, so it cannot fail.
func encode(v any) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		panic(err)
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}

// event is the error as the last server-sent event of a stream.
func (e *Error) event(s shape, requestID string) []byte {
	switch s {
	case shapeAnthropic:
		return fmt.Appendf(nil, "event: error\ndata: %s\n\n", e.body(s, requestID))
	case shapeResponses:
		b := encode(responsesError{
			Type: "error", Code: nullable(e.Code), Message: e.Message, Param: nullable(e.Param),
			Error: openAIDetail{Message: e.Message, Type: e.Type, Param: nullable(e.Param), Code: nullable(e.Code)},
		})
		return fmt.Appendf(nil, "event: error\ndata: %s\n\n", b)
	default:
		return fmt.Appendf(nil, "data: %s\n\n", e.body(s, requestID))
	}
}

// write puts the error into the response: status, body and the headers that SDKs act on.
func (e *Error) write(ctx *fasthttp.RequestCtx, s shape, requestID string) {
	r := &ctx.Response
	r.ResetBody()
	r.SetStatusCode(e.Status)
	r.Header.SetContentType("application/json")
	e.headers(r.Header.Set)
	r.SetBodyRaw(e.body(s, requestID))
}

// headers sets those that SDKs act on.
func (e *Error) headers(set func(name, value string)) {
	if e.Allow != "" {
		set("Allow", e.Allow)
	}
	if e.RetryAfter > 0 {
		seconds := int64(math.Ceil(e.RetryAfter.Seconds()))
		set("Retry-After", strconv.FormatInt(max(1, seconds), 10))
		millis := (e.RetryAfter + time.Millisecond - 1) / time.Millisecond
		set("retry-after-ms", strconv.FormatInt(int64(millis), 10))
	}
	switch e.Retry {
	case retryYes:
		set("x-should-retry", "true")
	case retryNo:
		set("x-should-retry", "false")
	}
	if e.Status == fasthttp.StatusUnauthorized {
		set("WWW-Authenticate", "Bearer")
	}
}

// shape is whose form an endpoint's errors and events take.
type shape uint8

const (
	shapeOpenAI shape = iota
	shapeResponses
	shapeAnthropic
)

type openAIError struct {
	Error openAIDetail `json:"error"`
}

type openAIDetail struct {
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Param   *string `json:"param"`
	Code    *string `json:"code"`
}

type responsesError struct {
	Type    string       `json:"type"`
	Code    *string      `json:"code"`
	Message string       `json:"message"`
	Param   *string      `json:"param"`
	Error   openAIDetail `json:"error"` // the Python SDK raises on this field
}

type anthropicError struct {
	Type      string          `json:"type"`
	Error     anthropicDetail `json:"error"`
	RequestID string          `json:"request_id,omitempty"`
}

type anthropicDetail struct {
	Type    string `json:"type"`
	Message string `json:"message"`
}

func anthropicType(status int) string {
	switch status {
	case 401:
		return "authentication_error"
	case 403:
		return "permission_error"
	case 404, 405:
		return "not_found_error"
	case 413:
		return "request_too_large"
	case 429:
		return "rate_limit_error"
	case 503:
		return "overloaded_error"
	case 504:
		return "timeout_error"
	}
	if status >= 500 {
		return "api_error"
	}
	return typeInvalid
}

func nullable(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

package local

import (
	"fmt"
	"strconv"

	"github.com/valyala/fasthttp"
)

// apiError is an answer that is no success. Its body takes the kind's shape.
type apiError struct {
	status     int
	kind       string // "type" in the body
	param      string // "" is null
	message    string
	retryAfter int // seconds; 0 sends no header
}

func (e *apiError) Error() string { return e.message }

func badRequest(param, format string, args ...any) *apiError {
	return &apiError{status: fasthttp.StatusBadRequest, kind: "BadRequestError", param: param, message: fmt.Sprintf(format, args...)}
}

// appendError writes the body of e: flat for SGLang, nested for vLLM.
func appendError(b []byte, kind Kind, e *apiError) []byte {
	if kind == VLLM {
		b = append(b, `{"error":{"message":`...)
		b = appendString(b, e.message)
		b = append(b, `,"type":`...)
		b = appendString(b, e.kind)
		b = append(b, `,"param":`...)
		b = appendStringOrNull(b, e.param)
		b = append(b, `,"code":`...)
		b = strconv.AppendInt(b, int64(e.status), 10)
		return append(b, "}}"...)
	}
	b = append(b, `{"object":"error","message":`...)
	b = appendString(b, e.message)
	b = append(b, `,"type":`...)
	b = appendString(b, e.kind)
	b = append(b, `,"param":`...)
	b = appendStringOrNull(b, e.param)
	b = append(b, `,"code":`...)
	b = strconv.AppendInt(b, int64(e.status), 10)
	return append(b, '}')
}

// appendStreamError writes e as the event that an engine sends inside a 200 stream.
func appendStreamError(b []byte, kind Kind, e *apiError) []byte {
	b = append(b, "data: "...)
	if kind == VLLM {
		b = appendError(b, kind, e)
	} else {
		b = append(b, `{"error":`...)
		b = appendError(b, kind, e)
		b = append(b, '}')
	}
	return append(b, "\n\n"...)
}

func writeError(ctx *fasthttp.RequestCtx, kind Kind, e *apiError) {
	ctx.Response.Reset()
	ctx.SetStatusCode(e.status)
	ctx.SetContentType("application/json")
	if e.retryAfter > 0 {
		ctx.Response.Header.Set("Retry-After", strconv.Itoa(e.retryAfter))
	}
	ctx.SetBody(appendError(nil, kind, e))
}

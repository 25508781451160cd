package gateway

import (
	"bytes"
	"errors"
	"net"
	"time"

	"github.com/valyala/fasthttp"
)

// bodySpeed is the slowest body that is read to its end: one second more for
// each so many bytes.
const bodySpeed = 100 << 10

// headersRead sets the bounds of a request's body: its size, and the time that
// it may take, by its length. A body of unknown length has four times read_body.
func (s *Server) headersRead(h *fasthttp.RequestHeader) fasthttp.RequestConfig {
	cfg := s.snapshot.Load().cfg
	d := cfg.Timeouts.ReadBody
	if n := h.ContentLength(); n >= 0 {
		d += time.Duration(n/bodySpeed) * time.Second
	} else {
		d *= 4
	}
	return fasthttp.RequestConfig{ReadTimeout: d, MaxRequestBodySize: int(cfg.MaxBody)}
}

// expected answers Expect: 100-continue: a body that is too large is refused
// before it is sent.
func (s *Server) expected(ctx *fasthttp.RequestCtx) int {
	if n := ctx.Request.Header.ContentLength(); n > int(s.snapshot.Load().cfg.MaxBody) {
		s.readFailed(ctx, fasthttp.ErrBodyTooLarge)
		return fasthttp.StatusRequestEntityTooLarge
	}
	return fasthttp.StatusContinue
}

// readFailed answers a request that could not be read.
func (s *Server) readFailed(ctx *fasthttp.RequestCtx, err error) {
	r := s.begin(ctx)
	defer s.contain(r)
	r.route = &route{shape: shapeOf(ctx.Path()), path: "unread", counted: true}
	lingerOn(ctx.Conn())
	ctx.SetConnectionClose()
	r.fail(s.intakeError(err))
}

func (s *Server) intakeError(err error) *Error {
	cfg := s.snapshot.Load().cfg
	if errors.Is(err, fasthttp.ErrBodyTooLarge) {
		return &Error{
			Status: fasthttp.StatusRequestEntityTooLarge, Type: typeInvalid, Code: "request_too_large",
			Message: "The request body is larger than " + cfg.MaxBody.String() + " (max_body).",
		}
	}
	if _, ok := errors.AsType[*fasthttp.ErrSmallBuffer](err); ok {
		return &Error{
			Status: fasthttp.StatusRequestHeaderFieldsTooLarge, Type: typeInvalid, Code: "headers_too_large",
			Message: "The request headers are larger than " + cfg.MaxHeaders.String() + " (max_headers).",
		}
	}
	if ne, ok := errors.AsType[net.Error](err); ok && ne.Timeout() {
		return &Error{
			Status: fasthttp.StatusRequestTimeout, Type: typeInvalid, Code: "request_timeout",
			Message: "The request did not arrive in time (timeouts.read_headers " + cfg.Timeouts.ReadHeaders.String() + ", timeouts.read_body " + cfg.Timeouts.ReadBody.String() + ").",
		}
	}
	return &Error{
		Status: fasthttp.StatusBadRequest, Type: typeInvalid, Code: "invalid_request",
		Message: "The request could not be read as HTTP/1.1.", Cause: err,
	}
}

// compressed refuses a body that cannot be read since it is compressed.
func compressed(encoding string) error {
	return invalid("invalid_request", "", "The request body has the Content-Encoding %q. Expected one that is not compressed.", encoding)
}

// misframed refuses a request of which another server could think that it ends
// elsewhere, and take its rest for a request of its own. fasthttp has refused
// most of them; what it makes sense of is found in the header as it came.
func misframed(h *fasthttp.RequestHeader) error {
	raw := h.RawHeaders()
	switch {
	case bytes.Contains(raw, []byte("\n ")) || bytes.Contains(raw, []byte("\n\t")):
		return invalid("invalid_request", "", "A header of the request goes on in the next line.")
	case h.ContentLength() == -1 && hasHeader(raw, "content-length"):
		return invalid("invalid_request", "", "The request has both Content-Length and Transfer-Encoding.")
	case !h.IsHTTP11() && hasHeader(raw, "transfer-encoding"):
		return invalid("invalid_request", "", "The request has Transfer-Encoding, which HTTP/1.0 does not know.")
	}
	return nil
}

// hasHeader finds a header by its name, in lower case, in a header block.
func hasHeader(raw []byte, name string) bool {
	for line := range bytes.Lines(raw) {
		key, _, ok := bytes.Cut(line, []byte(":"))
		if ok && asciiEqualFold(bytes.TrimSpace(key), name) {
			return true
		}
	}
	return false
}

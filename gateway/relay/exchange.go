package relay

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"strconv"
	"syscall"
	"time"

	"github.com/valyala/fasthttp"
)

// exchange is one request on its way to an engine and its answer on the way
// back. But for the call's cancellation it belongs to one goroutine. It is
// pooled: nothing outside this package holds one beyond its end.
type exchange struct {
	up   *Upstream
	call *Call
	req  *Request
	resp *fasthttp.Response

	conn  *conn
	br    *bufio.Reader
	frame frame
	keep  bool // the engine keeps the connection open
	phase Phase
	sent  bool      // a part of the request has been written
	began bool      // a part of the answer has come
	limit until     // the deadline of what is being waited for
	first until     // the first event's, or the headers'
	heard time.Time // when bytes last came
	idle  time.Time // since when the engine is waited for

	head   []byte      // the request's header block
	pieces net.Buffers // header block and body, where they are written apart
	body   []byte      // what is read of a whole body before it is decided on
	stream stream
	whole  whole

	sink     Sink
	result   Result
	done     bool // the sink has been told
	written  bool // the server has begun to write the body
	panicked bool
}

// Do sends the request and reads the answer as far as it can be taken back: to
// its first event if it is a stream, to its end if it is not and is no longer
// than Options.MaxBuffered. The answer's status and headers are in resp, its
// hop-by-hop headers removed. The error, if any, is an *Error and everything is
// released; otherwise the Answer must be ended by Relay or Discard.
//
// An idle connection that turns out to be closed is replaced by a new one, once.
func (u *Upstream) Do(call *Call, req *Request, resp *fasthttp.Response) (Answer, error) {
	x := u.relay.exchanges.Get().(*exchange)
	x.up, x.call, x.req, x.resp = u, call, req, resp
	a, err := x.attempt(false)
	if err != nil && x.meetsStale(err) {
		u.CloseIdle() // closed with it, most likely
		x.restart()
		if a, err = x.attempt(true); err == nil {
			a.Resent = true
		}
	}
	if err != nil {
		x.recycle()
		return Answer{}, err
	}
	return a, nil
}

// meetsStale reports whether the attempt failed as it does when the engine has
// closed an idle connection.
func (x *exchange) meetsStale(err error) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && e.Kind == KindDisconnected && e.Reused && !e.AfterBytes && !x.req.Once && isBroken(e.Err)
}

// restart forgets a failed attempt, but not its deadlines' start.
func (x *exchange) restart() { x.sent, x.began, x.keep = false, false, false }

func (x *exchange) attempt(fresh bool) (a Answer, err error) {
	now := time.Now()
	x.setLimits(now)
	x.phase = PhaseConnect
	if x.conn, err = x.up.acquire(x.call, fresh, now); err != nil {
		return a, x.connectError(err)
	}
	err = x.request(now)
	if err == nil {
		a, err = x.readAnswer()
	}
	if err != nil {
		e := x.fail(err)
		x.hangUp(time.Time{})
		return a, e
	}
	return a, nil
}

// setLimits sets the deadline of the headers and the first event. A retry on a
// fresh connection keeps the first one's.
func (x *exchange) setLimits(now time.Time) {
	if x.first.limit == 0 {
		x.first = x.call.total()
		if x.req.Streamed {
			x.first = x.first.sooner(deadline(now, x.call.Timeouts.First), LimitFirst)
		}
	}
	x.limit = x.first
}

// request writes the request. An engine that refuses it may answer and hang up
// before it has read everything, so a broken connection is no error yet: the
// answer, if there is one, is read.
func (x *exchange) request(now time.Time) error {
	x.phase = PhaseSend
	err := x.send(now)
	x.sent = true
	if err != nil && (!isBroken(err) || errors.Is(err, io.EOF)) {
		return err
	}
	x.phase = PhaseHeaders
	x.br = x.up.relay.readers.Get().(*bufio.Reader)
	x.br.Reset(x.conn)
	if aerr := x.conn.armRead(x.limit.at, now); aerr != nil {
		return aerr
	}
	return nil
}

// maxInterim is how many 1xx responses may come before the answer.
const maxInterim = 8

func (x *exchange) readAnswer() (a Answer, err error) {
	h := &x.resp.Header
	for n := 0; ; n++ {
		if err := x.readHeaders(h); err != nil {
			return a, err
		}
		switch status := h.StatusCode(); {
		case status == fasthttp.StatusSwitchingProtocols:
			return a, x.protocol(errUpgrade)
		case status >= 200:
			return x.takeAnswer(h)
		case n == maxInterim:
			return a, x.protocol(errInterim)
		}
	}
}

// readHeaders reads one header block.
func (x *exchange) readHeaders(h *fasthttp.ResponseHeader) error {
	if err := x.fill(); err != nil {
		return err
	}
	x.began = true
	whole := bytes.Contains(x.buffered(), []byte("\r\n\r\n"))
	if !whole {
		// The rest is waited for by fasthttp, which does not know of early deadlines.
		if err := x.conn.rearmRead(x.limit.at); err != nil {
			return err
		}
	}
	err := h.Read(x.br)
	if !whole {
		x.heard = time.Now()
	}
	if err == nil || isTimeout(err) || isBroken(err) || errors.Is(err, net.ErrClosed) {
		return err
	}
	if _, ok := errors.AsType[*fasthttp.ErrSmallBuffer](err); ok {
		return x.protocol(errHeadersLarge)
	}
	return x.protocol(errBadHeaders)
}

// takeAnswer reads on from the headers, as far as Do promises.
func (x *exchange) takeAnswer(h *fasthttp.ResponseHeader) (a Answer, err error) {
	status := h.StatusCode()
	length := h.ContentLength()
	x.keep = !h.ConnectionClose()
	a = Answer{Status: status, FirstAt: x.heard, RetryAfter: retryAfter(h), Reused: x.conn.reused(), x: x}
	x.idle = a.FirstAt
	x.frame.start(length)
	if x.req.isHead() || status == fasthttp.StatusNoContent || status == fasthttp.StatusNotModified {
		x.frame.none()
	}
	isStream := status == fasthttp.StatusOK && !x.frame.ended && isEventStream(h)
	if err := x.notAnAnswer(status, h, isStream); err != nil {
		return a, x.protocol(err)
	}
	stripHeaders(h)
	if isStream && !x.req.Whole {
		return x.startStream(a)
	}
	return x.startWhole(a, length)
}

// notAnAnswer finds what a 200 cannot be: SDKs would take it for an answer, and
// an empty one at that.
func (x *exchange) notAnAnswer(status int, h *fasthttp.ResponseHeader, isStream bool) error {
	switch {
	case status != fasthttp.StatusOK || x.req.isHead():
		return nil
	case hasType(h, "text/html"):
		return errHTML
	case isStream || !x.req.Streamed || x.req.Dialect == DialectNone:
		return nil
	case !plainEncoding(h):
		return errCompressed
	}
	return errNoStream
}

// isEventStream reports whether the answer is server-sent events that can be
// read. A compressed one is passed on as bytes, never parsed.
func isEventStream(h *fasthttp.ResponseHeader) bool {
	return hasType(h, "text/event-stream") && plainEncoding(h)
}

// hasType reports whether the content type is that one, whatever its parameters.
func hasType(h *fasthttp.ResponseHeader, want string) bool {
	ct := h.ContentType()
	return len(ct) >= len(want) && equalFold(ct[:len(want)], want)
}

func plainEncoding(h *fasthttp.ResponseHeader) bool {
	e := h.ContentEncoding()
	return len(e) == 0 || equalFold(e, "identity")
}

// stripHeaders removes what belongs to the engine's connection, what it lets
// browsers' pages do, which is for the gateway to say, and the protocol version
// and reason, which the server writes itself.
func stripHeaders(h *fasthttp.ResponseHeader) {
	var found [12]string
	drop := found[:0]
	for k := range h.All() {
		switch string(k) {
		case "Keep-Alive", "Proxy-Connection", "Proxy-Authenticate", "Te", "Upgrade", "Trailer", "Transfer-Encoding", "Connection",
			"Access-Control-Allow-Origin", "Access-Control-Allow-Credentials", "Access-Control-Expose-Headers":
			if len(drop) < len(found) {
				drop = append(drop, string(k))
			}
		}
	}
	h.ResetConnectionClose()
	for _, k := range drop {
		h.Del(k)
	}
	h.SetProtocol(nil)
	h.SetStatusMessage(nil)
}

// retryAfter is what the engine asks for, in whole seconds, or 0.
func retryAfter(h *fasthttp.ResponseHeader) time.Duration {
	v := h.Peek(fasthttp.HeaderRetryAfter)
	if len(v) == 0 {
		return 0
	}
	n, err := strconv.Atoi(string(v))
	if err != nil || n < 0 || n > 24*3600 {
		return 0
	}
	return time.Duration(n) * time.Second
}

// buffered is what has been read and not yet dealt with.
func (x *exchange) buffered() []byte {
	b, _ := x.br.Peek(x.br.Buffered())
	return b
}

// fill waits until at least one byte is buffered, or x.limit.
func (x *exchange) fill() error {
	for {
		_, err := x.br.Peek(1)
		if err == nil {
			x.hear()
			return nil
		}
		if err = x.early(err); err != nil {
			return err
		}
	}
}

// hear notes that bytes have come. The clock is read once for all that want to
// know when they did.
func (x *exchange) hear() {
	x.heard = time.Now()
	if x.call.OnBytes != nil {
		x.call.OnBytes(x.heard)
	}
}

// early is nil if err is a deadline that was armed earlier than x.limit (see
// conn.armRead), which is then armed; else it is err.
func (x *exchange) early(err error) error {
	if !isTimeout(err) || (!x.limit.at.IsZero() && !time.Now().Before(x.limit.at)) {
		return err
	}
	return x.conn.rearmRead(x.limit.at)
}

// hangUp gives the connection and the reader back; the connection can serve
// again only after a clean end, which was at that time. Zero: it was not clean.
func (x *exchange) hangUp(clean time.Time) {
	if x.conn == nil {
		return
	}
	// Detach first: a cancel between the end of the answer and the release would
	// otherwise put a closed connection into the pool.
	reusable := x.call.detach() && !clean.IsZero() && x.keep && x.frame.ended && x.br != nil && x.br.Buffered() == 0
	if x.br != nil {
		x.br.Reset(nil)
		x.up.relay.readers.Put(x.br)
		x.br = nil
	}
	x.up.release(x.conn, reusable, clean)
	x.conn = nil
}

// keepBuffer is the largest buffer that a pooled exchange keeps.
const keepBuffer = 64 << 10

// recycle gives the exchange back. It may not be touched afterwards.
func (x *exchange) recycle() {
	r := x.up.relay
	head, pieces, body := x.head[:0], x.pieces[:0], x.body[:0]
	if cap(head) > keepBuffer {
		head = nil
	}
	if cap(body) > keepBuffer {
		body = nil
	}
	st := x.stream.reset()
	tail := x.whole.tail[:0]
	*x = exchange{head: head, pieces: pieces, body: body, stream: st}
	x.whole.tail = tail
	r.exchanges.Put(x)
}

// protocol is an error about what came.
func (x *exchange) protocol(reason error) *Error {
	return x.newError(KindProtocol, reason)
}

func (x *exchange) newError(k Kind, err error) *Error {
	e := &Error{Kind: k, Phase: x.phase, AfterBytes: x.began, Sent: x.sent, Err: err}
	e.Reused = x.conn != nil && x.conn.reused()
	return e
}

// fail turns what a socket, or this package, says into an *Error. A
// cancellation comes first: it is why the socket says it.
func (x *exchange) fail(err error) *Error {
	if cause := x.call.Cause(); cause != nil {
		return x.newError(KindCanceled, cause)
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	if isTimeout(err) {
		e := x.newError(KindTimeout, nil)
		e.Limit = x.limit.limit
		return e
	}
	return x.newError(KindDisconnected, err)
}

// connectError is fail for a connection that did not come about.
func (x *exchange) connectError(err error) *Error {
	if cause := x.call.Cause(); cause != nil {
		return x.newError(KindCanceled, cause)
	}
	if !isTimeout(err) || errors.Is(err, syscall.ETIMEDOUT) {
		return x.newError(KindConnect, err)
	}
	e := x.newError(KindTimeout, nil)
	e.Limit = LimitConnect
	if t := x.call.total(); !t.at.IsZero() && !time.Now().Before(t.at) {
		e.Limit = LimitRequest
	}
	return e
}

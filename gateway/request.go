package gateway

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/valyala/fasthttp"
	"go.opentelemetry.io/otel/trace"

	"penstock/engine"
	"penstock/gateway/body"
	"penstock/gateway/relay"
	"penstock/limits"
	"penstock/metrics"
	"penstock/router"
)

// request is one request on its way. It belongs to the goroutine that serves
// its connection: the handler first, then the writing of the answer.
type request struct {
	s        *Server
	ctx      *fasthttp.RequestCtx
	response *fasthttp.Response // ctx's, or that of a part
	leg      *leg               // of a scoring request; nil: the request is whole
	snap     *snapshot
	route    *route
	id       string
	start    time.Time

	// Who leaves is noticed by watch, which ends wait.
	watch relay.Watch
	wait  waiting

	client *client
	target target
	owner  *router.Replica // of the response that this one continues
	asked  string          // the model's name as the client sent it; empty: none
	steers bool            // the client may direct the engine
	look   *look
	lane   router.Lane

	reservation *limits.Reservation
	ticket      *limits.Ticket
	sized       limits.Size
	input       int           // estimated prompt tokens
	output      int           // reserved output tokens
	clientWait  time.Duration // x-penstock-max-wait; 0: not given
	noQueue     bool          // x-penstock-no-queue
	rankHeader  bool          // the client says a data-parallel rank itself

	choice  router.Request
	attempt *attempt                   // the current one
	calling atomic.Pointer[relay.Call] // what the client's leaving cancels
	tried   int                        // attempts so far
	died    int                        // of these, on how many the replica died

	used limits.Actual // the zero value: everything is given back

	record record
	trace  *traced // nil: tracing is off
	ended  bool
}

// look is a request's body as seen by the gateway, kept for reuse.
type look struct {
	view  body.View
	key   *router.KeyBuilder
	edits body.Edits
	segs  body.Segments
}

// reset makes the look that of a request without a body.
func (l *look) reset() {
	_ = body.Parse(body.Other, []byte("{}"), &l.view) // cannot fail
	l.key.Reset("", "", "")
}

// attempt is one try on one replica, with all that must be given back after it.
type attempt struct {
	r        *request
	member   *member
	lease    *router.Lease
	call     relay.Call
	sent     relay.Request
	set      [3]relay.Header // sent's own headers, mostly
	engine   engine.Attempt
	span     trace.Span           // nil: not traced
	breaker  func(engine.Outcome) // asked to be called once, at the first byte or failure
	judged   bool
	released bool
	path     string
	addr     engine.Addressing
	streamed bool
	status   int // of the answer that is delivered; 0: none
	first    time.Time
}

// record is what a request leaves behind: the access line, the metrics and the
// recent-requests list are made from it.
type record struct {
	status     int
	code       string
	replica    string
	decision   router.Decision
	queued     time.Duration
	firstToken time.Duration
	total      time.Duration
	prompt     int
	cached     int
	completion int
	events     int
	bytes      int64
	retries    []string // why each further attempt was made
	attempts   []string // the attempts' ids, as the engines were told them
	message    string   // what the client was told
	err        string   // the cause, for the log
	streamed   bool
}

func laneName(l router.Lane) string {
	switch l {
	case router.Score:
		return "score"
	case router.Embed:
		return "embed"
	default:
		return "generate"
	}
}

// fail answers the request with err, unless an answer is on its way already.
func (r *request) fail(err error) {
	e := asError(err)
	r.stopWatching()
	r.record.status, r.record.code, r.record.message = e.Status, e.Code, e.Message
	if e.Cause != nil {
		r.record.err = e.Cause.Error()
	}
	if e.Status != errClientGone.Status {
		e.write(r.ctx, r.shape(), r.id)
	} else { // one that only half-closed may still read: not a 200
		r.ctx.SetStatusCode(e.Status)
		r.ctx.SetConnectionClose()
	}
	if f, ok := errors.AsType[*limits.Refusal](err); ok {
		r.s.refused(f.Key, f)
	}
	r.limitHeaders(err)
	r.ownHeaders()
	r.settle(time.Now())
}

// headers are those of every answer that an engine has a part in.
func (r *request) headers() {
	r.ctx.Response.Header.Del("Server")
	r.limitHeaders(nil)
	r.ownHeaders()
}

// finish ends a request whose answer is in the response.
func (r *request) finish() {
	r.stopWatching()
	r.headers()
	r.settle(time.Now())
}

// refusalReason is a refusal as the metrics count it.
func refusalReason(f *limits.Refusal) string {
	if f.TooLarge {
		return metrics.ReasonTooLarge
	}
	return f.Kind.String()
}

// letGo gives back the body and what was seen of it, once no other attempt can
// need them: a stream may last an hour.
func (r *request) letGo() {
	r.s.looks.Put(r.look)
	r.look = nil
	r.choice.Key = router.Key{}
	r.ctx.Request.ReleaseBody(keptBody)
}

// keptBody is the size up to which a connection keeps its body buffer for the
// next request.
const keptBody = 64 << 10

func (r *request) shape() shape {
	if r.route == nil {
		return shapeOpenAI
	}
	return r.route.shape
}

// stopWatching must precede every further read from the connection.
func (r *request) stopWatching() {
	if r.watch.Stop() {
		r.wait.end(errClientGone)
	}
}

// over is why the request is not to go on: its client has left, or the drain is
// over. nil: it is to.
func (r *request) over() error {
	switch cause := r.wait.why(); {
	case cause == nil:
		return nil
	case errors.Is(cause, relay.ErrDraining):
		return relay.ErrDraining
	}
	return relay.ErrClientGone // or another part of the request has failed
}

// gone says that the client has left.
func (r *request) gone() bool { return errors.Is(r.over(), relay.ErrClientGone) }

package gateway

import (
	"cmp"
	"errors"
	"runtime/debug"
	"time"

	"github.com/valyala/fasthttp"

	"penstock/gateway/body"
	"penstock/gateway/relay"
	"penstock/gateway/sse"
	"penstock/limits"
	"penstock/router"
)

// handle is where a request comes in. What its route does is answered when
// handle returns, but for streams, which are written after it.
func (s *Server) handle(ctx *fasthttp.RequestCtx) {
	r := s.begin(ctx)
	defer s.contain(r)
	// Has the server send this answer also when the client's next request is
	// there already (pipelining); the deadline itself is the connection's own.
	_ = ctx.SetWriteDeadline(time.Time{})
	rt, err := s.findRoute(ctx)
	r.route = rt
	if s.tracer != nil && rt.counted {
		r.trace = s.tracer.begin(r)
	}
	if bad := misframed(&ctx.Request.Header); bad != nil {
		ctx.SetConnectionClose()
		r.fail(bad)
		return
	}
	if s.crossOrigin(r) {
		return
	}
	if err == nil {
		err = s.accepts(r)
	}
	if err != nil {
		r.fail(err)
		return
	}
	rt.serve(s, r)
	if !ctx.Request.Header.IsHTTP11() {
		endWithConnection(ctx)
	}
}

// begin takes the request in.
func (s *Server) begin(ctx *fasthttp.RequestCtx) *request {
	return &request{
		s: s, ctx: ctx, response: &ctx.Response, snap: s.snapshot.Load(), start: time.Now(),
		id: requestID(ctx.Request.Header.Peek("X-Request-Id")),
	}
}

// accepts refuses what must not be served now, or at all.
func (s *Server) accepts(r *request) error {
	if s.draining.Load() && !r.route.whileDraining {
		r.ctx.SetConnectionClose()
		return &Error{
			Status: fasthttp.StatusServiceUnavailable, Type: typeServer, Code: "draining", RetryAfter: time.Second, Retry: retryYes,
			Message: "This gateway is shutting down and takes no new requests. Another one, or its successor, will.",
		}
	}
	return nil
}

// contain turns a panic of one request into its own 500. Whatever it held is
// given back.
func (s *Server) contain(r *request) {
	v := recover()
	if v == nil {
		return
	}
	defer s.containAgain(r)
	s.panicked(r, v)
	r.ctx.Response.Reset()
	r.ctx.SetConnectionClose()
	r.fail(internalError(errPanic))
}

// containAgain is for a panic in the answering of a panic.
func (s *Server) containAgain(r *request) {
	if v := recover(); v != nil {
		s.reportPanic(r.id, v)
		r.ctx.Response.Reset()
		r.ctx.SetConnectionClose()
		r.ctx.SetStatusCode(fasthttp.StatusInternalServerError)
	}
}

// reportPanic logs and counts a panic; it is called by the function that recovered.
func (s *Server) reportPanic(requestID string, v any) {
	s.metrics.Panic()
	s.log.Error("a request panicked; this is a bug in Penstock", "request_id", requestID, "panic", v, "stack", string(debug.Stack()),
		"hint", "please report it with this line; no other request was touched")
}

// inBackground runs f while nobody waits for it but Shutdown.
func (s *Server) inBackground(f func()) {
	s.background.Go(func() {
		defer func() {
			if v := recover(); v != nil {
				s.reportPanic("", v)
			}
		}()
		f()
	})
}

// panicked reports a panic and gives back what the attempt held.
func (s *Server) panicked(r *request, v any) {
	s.reportPanic(r.id, v)
	if a := r.attempt; a != nil {
		a.call.Cancel(errPanic)
		a.end(time.Now(), relay.Result{Usage: sse.NoUsage()}, limits.OutcomeFailed)
	}
}

// generate is the way of a request that an engine answers.
func (s *Server) generate(r *request) {
	err := s.identify(r)
	if err == nil {
		err = s.admit(r)
	}
	if err == nil && r.splits() {
		if err = s.score(r); err != nil {
			r.fail(err)
		}
		return
	}
	for again := true; err == nil && again; {
		if err = s.choose(r); err == nil {
			again, err = s.relayAttempt(r)
		}
	}
	if err != nil {
		r.fail(err)
	}
}

// identify finds out who asks, what for, and of which model.
func (s *Server) identify(r *request) error {
	var err error
	if r.client, err = r.snap.identify(r.ctx, r.start); err != nil {
		return err
	}
	r.watchClient()
	if err := r.readHeaders(); err != nil {
		return err
	}
	r.look = s.looks.Get().(*look) //nolint:forcetypeassert // the pool holds nothing else
	if err := r.view(); err != nil {
		return err
	}
	if err := r.findModel(); err != nil {
		return err
	}
	if err := r.checkEngineFields(); err != nil {
		return err
	}
	r.keyPrompt()
	return r.followResponse()
}

// watchClient begins to notice the client's leaving.
func (r *request) watchClient() {
	r.wait.parent = r.s.waits
	r.s.relay.Watch(&r.watch, r.ctx.Conn(), r)
}

// ClientLeft ends what is being waited for.
func (r *request) ClientLeft() {
	r.wait.end(errClientGone)
	if c := r.calling.Load(); c != nil {
		c.Cancel(relay.ErrClientGone)
	}
}

// view reads the body, in one pass.
func (r *request) view() error {
	v := &r.look.view
	if err := body.Parse(r.route.endpoint, r.ctx.PostBody(), v); err != nil {
		if enc := trimSpace(r.ctx.Request.Header.ContentEncoding()); len(enc) > 0 && !asciiEqualFold(enc, "identity") {
			return compressed(clip(string(enc), 40))
		}
		return err
	}
	r.record.streamed = v.Stream
	r.asked = string(v.Model)
	return nil
}

// findModel finds the pool, and whether the client may use it.
func (r *request) findModel() error {
	tg, err := r.s.pools.find(r.asked, r.client)
	if e, ok := errors.AsType[*Error](err); ok && e.Status == fasthttp.StatusNotFound && r.s.fleet.Unknown() {
		return noReplica(clip(r.asked, 200)) // an engine that is not up yet may have it
	}
	if err != nil {
		return err
	}
	r.target = tg
	asked := r.asked
	if asked == "" {
		asked = defaultModel
	}
	if !r.client.mayUse(tg, asked) {
		return notAllowed(r.client, cmp.Or(r.asked, tg.pool.name))
	}
	return nil
}

// checkEngineFields refuses what would let a client steer an engine, where keys
// are configured and its key has no allow_engine_fields.
func (r *request) checkEngineFields() error {
	r.steers = len(r.snap.clients) == 0 || r.client.key.AllowEngineFields
	if r.steers {
		return nil
	}
	field := r.look.view.EngineField()
	if field == "" && r.rankHeader {
		field = engineRankHeader
	}
	if field == "" {
		return nil
	}
	return invalid("invalid_value", field, "'%s' directs the engine and is not allowed for the key %s (keys[].allow_engine_fields).", field, r.client.name)
}

// keyPrompt hashes the prompt for the router.
func (r *request) keyPrompt() {
	v, k := &r.look.view, r.look.key
	r.lane = r.laneOf()
	salt := r.salt()
	lora := string(v.LoRA)
	if r.target.lora != "" {
		lora = r.target.lora
	}
	k.Reset(r.target.pool.name, lora, salt)
	if r.lane == router.Generate {
		v.KeyPrompt(k, 0) // of a batch the first prompt stands for all: they mostly share their beginning
	}
}

// salt keeps the prefixes of clients apart where they must not be shared.
func (r *request) salt() string {
	if s := r.client.key.CacheSalt; s != "" {
		return s
	}
	v := &r.look.view
	if len(v.ExtraKey) == 0 {
		return string(v.CacheSalt)
	}
	return string(v.CacheSalt) + "\x00" + string(v.ExtraKey)
}

// laneOf is how the request uses an engine.
func (r *request) laneOf() router.Lane {
	v := &r.look.view
	switch v.Endpoint {
	case body.Chat, body.Completions, body.Responses, body.Messages, body.Generate:
		if isScoring(v) {
			return router.Score
		}
		return router.Generate
	default:
		return router.Embed
	}
}

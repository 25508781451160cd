package gateway

import (
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/valyala/fasthttp"
	"go.opentelemetry.io/otel/trace"

	"penstock/engine"
	"penstock/gateway/body"
	"penstock/gateway/relay"
	"penstock/gateway/scoring"
	"penstock/gateway/sse"
	"penstock/limits"
	"penstock/metrics"
	"penstock/router"
)

var errPanic = errors.New("a panic in the gateway")

// engineRankHeader is the header by which an engine is told a data-parallel rank.
const engineRankHeader = engine.RankHeader

// bind reserves a replica that its breaker lets through. Breakers refuse only
// beyond their trials, so few rounds are needed.
func (r *request) bind(now time.Time) error {
	pl := r.target.pool
	for range 4 {
		lease, err := pl.router.Choose(now, &r.choice)
		if err != nil {
			return err
		}
		m := (*pl.members.Load())[lease.Replica()]
		if m == nil { // removed between the choice and now
			lease.Done(now, noUsage())
			r.choice.Avoid = append(r.choice.Avoid, lease.Replica())
			continue
		}
		done, err := m.engine.Allow()
		if err != nil {
			lease.Done(now, noUsage())
			r.choice.Avoid = append(r.choice.Avoid, lease.Replica())
			continue
		}
		r.attempt = r.newAttempt(m, lease, done)
		r.trace.bound(now)
		return nil
	}
	return router.ErrNoReplica
}

// newAttempt takes over a lease; its end gives everything back.
func (r *request) newAttempt(m *member, lease *router.Lease, done func(engine.Outcome)) *attempt {
	r.tried++
	a := &attempt{r: r, member: m, lease: lease, breaker: done, streamed: r.look.view.Stream, path: r.pathFor(m.engine)}
	a.addr = m.engine.Address(a.path)
	a.engine = m.engine.Begin(a.addr.Ok && !r.saysRank())
	a.call.ID = newID()
	a.call.Start = r.start
	a.call.Timeouts = r.timeouts()
	a.call.OnBytes = m.answering
	if r.tried == 1 {
		r.s.budget.Load().Request(a.call.Start)
	}
	r.record.replica = m.engine.ID()
	r.record.attempts = append(r.record.attempts, a.call.ID)
	r.record.decision = lease.Decision()
	m.metrics.Request()
	m.metrics.Predicted(r.input, r.record.decision.Matched)
	return a
}

// timeouts are the model's, where it has its own, else the gateway's.
func (r *request) timeouts() relay.Timeouts {
	g, m := &r.snap.cfg.Timeouts, &r.target.pool.config.Load().Timeouts
	or := func(own, global time.Duration) time.Duration {
		if own > 0 {
			return own
		}
		return global
	}
	return relay.Timeouts{
		Connect: or(m.Connect, g.Connect), First: or(m.FirstToken, g.FirstToken), Idle: or(m.Idle, g.Idle),
		Request: or(m.Request, g.Request),
	}
}

// relayAttempt sends the request to the replica it is bound to and starts its
// answer. It reports whether another replica is to be tried.
func (s *Server) relayAttempt(r *request) (again bool, err error) {
	a := r.attempt
	up, err := s.pools.upstream(a.member.engine.Conn())
	if err != nil {
		a.end(time.Now(), relay.Result{Usage: sse.NoUsage()}, limits.OutcomeFailed)
		return false, internalError(err)
	}
	a.span = r.trace.upstream(a)
	s.attempts.add(a)
	r.calling.Store(&a.call)
	if cause := r.over(); cause != nil {
		a.call.Cancel(cause)
	}
	ans, err := up.Do(&a.call, a.request(), r.response)
	s.attempts.sent(a)
	a.spanAnswered(ans, err)
	facts := a.facts(ans, err)
	v := relay.Decide(facts)
	if v.Pass && ans.Complete && !r.saysRank() && a.member.engine.RefusedRank(ans.Status, r.response.Body()) {
		// The rank was the gateway's mistake, not the client's.
		v = relay.Verdict{Status: fasthttp.StatusBadGateway, Code: "upstream_error", Retry: facts.Others && facts.Attempt < facts.MaxAttempts}
	}
	a.judge(v.Health, err)
	switch {
	case v.Pass && r.leg != nil:
		return false, r.leg.take(a, ans)
	case v.Pass:
		a.deliver(ans)
		return false, nil
	}
	if err == nil {
		ans.Discard()
	}
	r.response.Reset()
	if v.Retry && r.retryAllowed() {
		a.abandon(ans, err)
		return true, nil
	}
	out := limits.OutcomeFailed
	if v.Status == errClientGone.Status {
		out = limits.OutcomeAborted
		if e, ok := errors.AsType[*relay.Error](err); ok && !e.Sent && r.died == 0 {
			out = limits.OutcomeReturned
		}
		a.abort(up)
	} else {
		a.member.fail(failReason(ans, err))
	}
	a.end(time.Now(), relay.Result{Usage: sse.NoUsage()}, out)
	return false, verdictError(v, ans, err)
}

// deliver starts the answer: the response has its status, headers and body.
func (a *attempt) deliver(ans relay.Answer) {
	r := a.r
	a.first, a.status = ans.FirstAt, ans.Status
	if ans.Streamed {
		a.lease.First(ans.FirstAt)
		r.target.pool.queue.Kick() // what waits for this prefix can follow
		r.record.firstToken = ans.FirstAt.Sub(r.start)
		a.member.firstToken(ans.FirstAt, r.record.firstToken, r.trace.traceID())
	}
	r.record.status, r.record.code = ans.Status, ""
	if ans.Status >= 400 {
		r.record.code = "upstream"
	}
	r.headers()
	switch r.look.view.Endpoint {
	case body.Responses:
		a.rememberResponse(ans.Head())
	case body.Detokenize:
		if ans.Complete && ans.Status == fasthttp.StatusOK { // SGLang's and vLLM's shapes differ; clients read either
			r.ctx.Response.SetBodyRaw(scoring.Detokenized(r.ctx.Response.Body()))
		}
	}
	if !ans.Complete {
		r.letGo()
	}
	ans.Relay(a)
}

// request is what is sent: the client's bytes but for the fields that are the gateway's.
func (a *attempt) request() *relay.Request {
	r := a.r
	v, e := &r.look.view, &r.look.edits
	e.Reset()
	q := &a.sent
	*q = relay.Request{
		Method: method(r.ctx.Method()), Path: a.path, Header: &r.ctx.Request.Header,
		Dialect: dialect(v.Endpoint), Streamed: v.Stream, Once: r.lane == router.Score,
		Set: append(a.set[:0], relay.Header{Name: "X-Request-Id", Value: a.call.ID}), Pace: r.target.pool.metrics,
	}
	if qs := r.ctx.URI().QueryString(); len(qs) > 0 {
		q.Path += "?" + string(qs)
	}
	q.Drop = droppedHeaders
	if v.Endpoint == body.Generate {
		q.Choices = max(1, v.N)
		q.Answers = min(q.Choices*v.PromptCount(), body.MaxPrompts)
	}
	r.trace.tell(a, q)
	if len(r.ctx.PostBody()) == 0 {
		return q
	}
	if name := a.upstreamModel(); name != "" && name != r.asked {
		e.Set("model", jsonString(name))
	}
	if v.Stream && !v.IncludeUsage && (v.Endpoint == body.Chat || v.Endpoint == body.Completions) {
		e.SetIncludeUsage()
		q.DropUsage = true
	}
	if salt := r.client.key.CacheSalt; salt != "" {
		e.Set(saltField(a), jsonString(salt))
	}
	a.tellRank(q, e)
	if a.abortable(v) {
		e.Set("rid", jsonString(a.call.ID))
	}
	if l := r.leg; l != nil {
		q.Header, q.Streamed, q.Whole, q.Dialect = &l.header, false, true, relay.DialectNone
		l.sent = l.job.Request(string(a.member.engine.Tongue()), l.part, e, r.look.segs[:0])
		r.look.segs = l.sent.Body
		q.Body = l.sent.Body
		return q
	}
	if e.Empty() {
		q.Body = [][]byte{r.ctx.PostBody()}
		return q
	}
	r.look.segs = v.Apply(e, r.look.segs[:0])
	q.Body = r.look.segs
	return q
}

// method is the method's name, not spelled anew where it is the usual one.
func method(m []byte) string {
	if string(m) == fasthttp.MethodPost {
		return fasthttp.MethodPost
	}
	return string(m)
}

// saysRank says that the client directs its request to a data-parallel rank
// itself. The engine's refusal of it is then the client's, and where the
// request runs says nothing about the ranks that the gateway sends.
func (r *request) saysRank() bool {
	return r.steers && (r.rankHeader || r.look.view.Has("routed_dp_rank") || r.look.view.Has("data_parallel_rank"))
}

// tellRank adds the data-parallel rank, unless the client may and does say one itself.
func (a *attempt) tellRank(q *relay.Request, e *body.Edits) {
	if a.r.saysRank() {
		return
	}
	if a.addr.HeaderName != "" {
		q.Set = append(q.Set, relay.Header{Name: a.addr.HeaderName, Value: a.addr.HeaderValue})
	}
	if a.addr.BodyField != "" {
		e.Set(a.addr.BodyField, []byte(a.addr.BodyValue))
	}
}

// abortable says that the engine can be told to give up this request by its id.
// SGLang notices by itself within 0.3 s that the client of a stream left, but
// only within 2 s that of a whole answer.
func (a *attempt) abortable(v *body.View) bool {
	if a.member.engine.Tongue() != engine.KindSGLang || v.Stream || v.Has("rid") {
		return false
	}
	return v.Endpoint == body.Chat || v.Endpoint == body.Completions || v.Endpoint == body.Generate
}

// abortTimeout bounds the telling.
const abortTimeout = 2 * time.Second

// abort tells the engine to give up, without anybody waiting for it.
func (a *attempt) abort(up *relay.Upstream) {
	if !a.abortable(&a.r.look.view) {
		return
	}
	s, id := a.r.s, a.call.ID
	s.inBackground(func() {
		call := relay.Call{ID: id, Start: time.Now(), Timeouts: relay.Timeouts{Connect: abortTimeout, Request: abortTimeout}}
		var resp fasthttp.Response
		q := &relay.Request{
			Path: "/abort_request", Dialect: relay.DialectNone, Body: [][]byte{[]byte(`{"rid":"` + id + `"}`)},
			Set: []relay.Header{{Name: "Content-Type", Value: "application/json"}},
		}
		if ans, err := up.Do(&call, q, &resp); err == nil {
			ans.Discard()
		}
	})
}

// saltField is the field by which this engine keeps prefixes apart.
func saltField(a *attempt) string {
	if a.path == "/generate" {
		return "extra_key"
	}
	return "cache_salt"
}

// droppedHeaders are the client's that are the gateway's affair alone.
var droppedHeaders = []string{"x-request-id", "x-penstock-no-queue", "x-penstock-max-wait", "cookie"}

// upstreamModel is the name by which this engine knows the model asked for.
func (a *attempt) upstreamModel() string {
	r := a.r
	if r.target.lora != "" {
		return r.target.lora
	}
	if up := r.target.pool.config.Load().Upstream; up != "" {
		return up
	}
	if a.member.engine.Serves(r.target.pool.name) {
		return r.target.pool.name
	}
	for _, m := range a.member.engine.Served() {
		if m.Parent == "" {
			return m.ID
		}
	}
	return r.target.pool.name
}

func dialect(ep body.Endpoint) relay.Dialect {
	switch ep {
	case body.Chat, body.Completions, body.Generate:
		return relay.DialectDone
	case body.Responses:
		return relay.DialectResponses
	case body.Messages:
		return relay.DialectMessages
	default:
		return relay.DialectNone
	}
}

// facts is what the retry decision is made of.
func (a *attempt) facts(ans relay.Answer, err error) relay.Facts {
	r := a.r
	if e, ok := errors.AsType[*relay.Error](err); ok && e.Died() {
		r.died++
	}
	return relay.Facts{
		Err: err, Status: ans.Status, RetryAfter: ans.RetryAfter,
		Attempt: r.tried, MaxAttempts: r.snap.cfg.Retry.Attempts, Died: r.died,
		Scoring: r.lane == router.Score, Others: (err != nil || ans.Status >= fasthttp.StatusTooManyRequests) && r.others(),
	}
}

// others says whether another replica could take the request, now or as soon as
// the fleet has told of it.
func (r *request) others() bool {
	for route, m := range *r.target.pool.members.Load() {
		if route == r.attempt.lease.Replica() || slices.Contains(r.choice.Avoid, route) || r.choice.Only != nil && !r.choice.Only(route) {
			continue
		}
		if m.engine.Usable() {
			return true
		}
	}
	return r.owner == nil && r.s.arriving(r.target.pool)
}

// retryAllowed asks the budget for one more attempt.
func (r *request) retryAllowed() bool {
	if r.s.budget.Load().Allow(time.Now()) {
		return true
	}
	r.target.pool.metrics.RetryBudgetSpent()
	return false
}

// abandon gives up the attempt in favour of another replica.
func (a *attempt) abandon(ans relay.Answer, err error) {
	r := a.r
	reason := failReason(ans, err)
	a.member.fail(reason)
	r.target.pool.metrics.Retried(reason)
	r.record.retries = append(r.record.retries, a.member.engine.ID()+": "+reason)
	now := time.Now()
	a.release(now, noUsage())
	r.choice.Avoid = append(r.choice.Avoid, a.lease.Replica())
	if r.ticket != nil { // what needs no room has not queued
		r.target.pool.queue.Settle(now, r.ticket, 0, 0)
	}
	r.attempt = nil
}

// judge tells the breaker what the attempt says of its engine, once.
func (a *attempt) judge(h relay.Health, err error) {
	if a.judged {
		return
	}
	a.judged = true
	e, _ := errors.AsType[*relay.Error](err)
	switch {
	case h == relay.Healthy:
		a.breaker(engine.Success)
	case h == relay.Failing && e != nil && e.Kind == relay.KindConnect:
		a.breaker(engine.Unreachable)
	case h == relay.Failing:
		a.breaker(engine.Failure)
	default:
		a.breaker(engine.Neutral)
	}
}

// failReason is why an attempt failed, as the metrics count it.
func failReason(ans relay.Answer, err error) string {
	e, ok := errors.AsType[*relay.Error](err)
	if !ok {
		switch {
		case ans.InStream:
			return metrics.FailEvent
		case ans.Status == 429 || ans.Status == 503:
			return metrics.FailOverloaded
		default:
			return metrics.FailStatus
		}
	}
	switch e.Kind {
	case relay.KindConnect:
		return metrics.FailConnect
	case relay.KindTimeout:
		return metrics.FailTimeout
	case relay.KindProtocol, relay.KindTooLarge:
		return metrics.FailProtocol
	case relay.KindCanceled:
		return metrics.FailUnhealthy
	default:
		return metrics.FailDisconnected
	}
}

func noUsage() router.Usage {
	return router.Usage{PromptTokens: -1, CachedTokens: -1, OutputTokens: -1}
}

// release gives back what the attempt holds on its replica.
func (a *attempt) release(now time.Time, u router.Usage) {
	if a.released {
		return
	}
	a.released = true
	if a.span != nil {
		a.span.End(trace.WithTimestamp(a.r.start.Add(now.Sub(a.r.start)))) // by the same clock as the request, whose end it must not follow
	}
	a.judge(relay.Neutral, nil)
	a.r.calling.CompareAndSwap(&a.call, nil)
	a.r.s.attempts.remove(a)
	a.lease.Done(now, u)
	a.engine.End(u.OK)
	a.r.target.pool.queue.Kick()
}

// attempts is every attempt that is under way.
type attempts struct {
	mu  sync.Mutex
	all map[*attempt]bool // whether a byte may have gone to the client
}

func newAttempts() *attempts { return &attempts{all: map[*attempt]bool{}} }

func (s *attempts) add(a *attempt) {
	s.mu.Lock()
	s.all[a] = false
	s.mu.Unlock()
}

func (s *attempts) sent(a *attempt) {
	s.mu.Lock()
	s.all[a] = true
	s.mu.Unlock()
}

func (s *attempts) remove(a *attempt) {
	s.mu.Lock()
	delete(s.all, a)
	s.mu.Unlock()
}

// cancelOn cancels the attempts on a replica of which nothing has gone to the client.
func (s *attempts) cancelOn(m *member, cause error) {
	for _, a := range s.list(func(a *attempt, sent bool) bool { return a.member == m && !sent }) {
		a.call.Cancel(cause)
	}
}

// cancelAll cancels everything under way.
func (s *attempts) cancelAll(cause error) int {
	all := s.list(func(*attempt, bool) bool { return true })
	for _, a := range all {
		a.call.Cancel(cause)
	}
	return len(all)
}

func (s *attempts) list(want func(*attempt, bool) bool) []*attempt {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []*attempt
	for a, sent := range s.all {
		if want(a, sent) {
			out = append(out, a)
		}
	}
	return slices.Clip(out)
}

func (s *attempts) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.all)
}

// jsonString is s as a JSON string.
func jsonString(s string) []byte {
	b, err := json.Marshal(s)
	if err != nil { // strings cannot fail
		panic(err)
	}
	return b
}

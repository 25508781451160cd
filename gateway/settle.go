package gateway

import (
	"strconv"
	"time"

	"penstock/gateway/relay"
	"penstock/limits"
	"penstock/router"
)

// ErrorEvent is the failure of a stream as its last event.
func (a *attempt) ErrorEvent(err *relay.Error) []byte {
	e := asError(err)
	return e.event(a.r.shape(), a.r.id)
}

// Done takes an answer's end: the client has had all of it, or what there was.
func (a *attempt) Done(res relay.Result) {
	defer a.contain()
	r, now := a.r, time.Now()
	out := limits.OutcomeDone
	switch {
	case res.EngineError:
		out, r.record.code = limits.OutcomeAborted, "upstream_error" // what was delivered stays charged
	case res.Err == nil:
	case clientFault(res.Err):
		out = limits.OutcomeAborted
		r.record.status, r.record.code = errClientGone.Status, errClientGone.Code
	default:
		out = limits.OutcomeAborted // what was delivered stays charged
		e := asError(res.Err)
		r.record.code, r.record.message, r.record.err = e.Code, e.Message, res.Err.Error()
		a.member.fail(failReason(relay.Answer{}, res.Err))
		if v := relay.Decide(relay.Facts{Err: res.Err, Started: true}); v.Health == relay.Failing {
			a.member.engine.Failed()
		}
	}
	a.end(now, res, out)
	r.stopWatching()
	r.settle(now)
}

// contain gives back everything also when its end panics: the server writes
// answers outside of the handler, where nobody else would.
func (a *attempt) contain() {
	if v := recover(); v != nil {
		a.r.record.code = "internal_error"
		a.r.s.panicked(a.r, v)
		a.r.stopWatching()
		a.r.settle(time.Now())
	}
}

// clientFault says that the client left, or did not read.
func clientFault(e *relay.Error) bool {
	return e.Kind == relay.KindClient || e.Kind == relay.KindCanceled && e.Err == relay.ErrClientGone //nolint:errorlint // a cause, as it was given
}

// end ends the attempt and the limits' reservation with what was used.
func (a *attempt) end(now time.Time, res relay.Result, out limits.Outcome) {
	r := a.r
	r.record.bytes, r.record.events = res.Bytes, res.Events
	a.spanDone(res)
	used := a.used(res, out)
	ok := res.Err == nil && a.status > 0 && a.status < 400
	a.release(now, router.Usage{PromptTokens: res.Usage.Prompt, CachedTokens: res.Usage.Cached, OutputTokens: res.Usage.Completion, OK: ok})
	r.used = used
	if ok {
		r.learn(res)
	}
}

// used is what the limits are charged in the end. What the engine did not
// report is estimated: the prompt as before, the output by the events counted.
func (a *attempt) used(res relay.Result, out limits.Outcome) limits.Actual {
	r := a.r
	u := limits.Actual{Outcome: out, Input: int64(res.Usage.Prompt), Output: int64(res.Usage.Completion)}
	if a.status >= 400 { // the engine refused it: nothing was computed
		u.Outcome, u.Input, u.Output = limits.OutcomeFailed, 0, 0
		return u
	}
	switch cut := res.Err != nil || out == limits.OutcomeAborted; {
	case cut: // what was reported until then may be a beginning's 0
		u.Output = max(u.Output, int64(res.Events))
	case res.Usage.Completion < 0 && a.streamed:
		u.Output = int64(res.Events)
	}
	r.record.prompt, r.record.cached, r.record.completion = res.Usage.Prompt, res.Usage.Cached, int(u.Output)
	return u
}

// learn feeds what the engine reported to the estimates and the metrics.
func (r *request) learn(res relay.Result) {
	pl, u := r.target.pool, res.Usage
	if u.Prompt >= 0 {
		pl.estimator.Learn(pl.name, r.sized, int64(r.input), int64(u.Prompt))
		pl.metrics.Estimated(r.input, u.Prompt, r.output, max(u.Completion, 0))
	}
	r.attempt.member.metrics.Reported(u.Prompt, u.Cached)
	if r.record.streamed && u.Completion > 1 && !r.attempt.first.IsZero() {
		pl.metrics.PerToken(res.LastAt.Sub(r.attempt.first) / time.Duration(u.Completion-1))
	}
}

// settle ends the request, once: limits, queue, metrics, log.
func (r *request) settle(now time.Time) {
	if r.ended {
		return
	}
	r.ended = true
	r.wait.end(nil)
	if r.reservation != nil {
		r.reservation.Settle(now, r.used) // the zero value returns all of it
	}
	if r.ticket != nil {
		r.target.pool.queue.Settle(now, r.ticket, r.uncachedUsed(), max(0, int(r.used.Output)))
	}
	r.record.total = now.Sub(r.start)
	r.count()
	if r.route == nil || !r.route.whileDraining { // probes would push the others out
		r.s.recent.add(r)
	}
	r.logLine(now)
	r.trace.end(r)
	if r.look != nil {
		r.s.looks.Put(r.look)
		r.look = nil
	}
}

// uncachedUsed is the input that the engine had to compute.
func (r *request) uncachedUsed() int {
	switch {
	case r.used.Outcome == limits.OutcomeReturned || r.used.Outcome == limits.OutcomeFailed:
		return 0
	case r.record.prompt > 0 && r.record.cached >= 0:
		return r.record.prompt - r.record.cached
	default:
		return r.record.decision.Uncached
	}
}

// count puts the request into the metrics.
func (r *request) count() {
	model, key := "", ""
	if r.target.pool != nil {
		model = r.target.pool.name
	}
	if r.client != nil {
		key = r.client.name
	}
	if r.route == nil || !r.route.counted {
		return
	}
	r.s.pulse.add(&r.record)
	c := r.s.metrics.Client(model, key)
	c.Done(r.record.status, r.record.code)
	if r.record.prompt > 0 || r.record.completion > 0 {
		c.Tokens(max(r.record.prompt, 0), max(r.record.cached, 0), max(r.record.completion, 0))
	}
	if r.target.pool != nil {
		r.target.pool.metrics.Total(r.record.total, r.trace.traceID())
	}
}

// ownHeaders are on every answer.
func (r *request) ownHeaders() {
	h := &r.ctx.Response.Header
	h.Set("X-Request-Id", r.id)
	h.Set("X-Penstock-Queue-Ms", strconv.FormatInt(r.record.queued.Milliseconds(), 10))
	r.corsHeaders()
}

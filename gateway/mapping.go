package gateway

import (
	"context"
	"errors"
	"math"
	"strconv"
	"time"

	"github.com/valyala/fasthttp"

	"penstock/gateway/body"
	"penstock/gateway/relay"
	"penstock/limits"
	"penstock/router"
)

// asError is the one place where whatever went wrong becomes what a client
// sees. What is not known is a 500 without details.
func asError(err error) *Error {
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	if e, ok := errors.AsType[*body.Error](err); ok {
		return invalid(e.Code, e.Param, "%s", e.Message)
	}
	if e, ok := errors.AsType[*limits.Refusal](err); ok {
		return refusalError(e)
	}
	if e, ok := errors.AsType[*relay.Error](err); ok {
		return verdictError(relay.Decide(relay.Facts{Err: e, Started: true}), relay.Answer{}, e)
	}
	switch {
	case errors.Is(err, relay.ErrClientGone), errors.Is(err, context.Canceled):
		return errClientGone
	case errors.Is(err, relay.ErrDraining): // it was still waiting
		return verdictError(relay.Verdict{Status: fasthttp.StatusServiceUnavailable, Code: "draining"}, relay.Answer{}, err)
	case errors.Is(err, router.ErrNoReplica):
		return noReplica("")
	case errors.Is(err, router.ErrNoRoom): // of those that do not queue
		e := serverError(fasthttp.StatusServiceUnavailable, "engine_overloaded", "No replica has room for this request now.")
		e.RetryAfter, e.Retry = time.Second, retryYes
		return e
	}
	return internalError(err)
}

// noReplica is what a request gets of whose model no replica answers.
func noReplica(model string) *Error {
	e := serverError(fasthttp.StatusServiceUnavailable, "no_healthy_replica", "No replica can take requests now. GET /replicas on the admin listener says why.")
	if model != "" {
		e.Message = "No replica of model " + model + " can take requests now. GET /replicas on the admin listener says why."
	}
	e.RetryAfter, e.Retry = 2*time.Second, retryYes
	return e
}

// refusalError is a limit's refusal: 429 for what is the caller's, 503 for our capacity.
func refusalError(f *limits.Refusal) *Error {
	e := &Error{Status: fasthttp.StatusTooManyRequests, Code: "rate_limit_exceeded", Type: f.Kind.Type(), Message: f.Error(), RetryAfter: f.RetryAfter, Retry: retryYes}
	switch f.Kind {
	case limits.KindQueueFull:
		e.Code, e.Type = "queue_full", typeQueue
	case limits.KindQueueTimeout:
		e.Status, e.Code, e.Type = fasthttp.StatusServiceUnavailable, "queue_timeout", typeServer
	case limits.KindUnavailable:
		e.Status, e.Code, e.Type = fasthttp.StatusServiceUnavailable, "limits_unavailable", typeServer
	}
	if f.TooLarge {
		e.Retry, e.RetryAfter = retryNo, 0
	}
	return e
}

// verdictError is a failed attempt, after which no other is tried.
func verdictError(v relay.Verdict, ans relay.Answer, cause error) *Error {
	e := serverError(v.Status, v.Code, "%s", verdictMessage(v.Code, ans))
	e.Cause = cause
	switch v.Code {
	case "engine_overloaded", "draining", "no_healthy_replica":
		e.RetryAfter, e.Retry = max(time.Second, v.RetryAfter), retryYes
	case "internal_error":
		return internalError(cause)
	case errClientGone.Code:
		return errClientGone
	}
	return e
}

func verdictMessage(code string, ans relay.Answer) string {
	switch code {
	case "engine_overloaded":
		return "The engine answered " + strconv.Itoa(ans.Status) + ": it is overloaded, and so were the others that could be tried."
	case "upstream_disconnected":
		return "The engine closed the connection before its answer was complete."
	case "first_token_timeout":
		return "The engine sent no first token within timeouts.first_token."
	case "stream_idle_timeout":
		return "The engine sent nothing more for timeouts.idle."
	case "upstream_timeout":
		return "The engine did not finish within timeouts.request."
	case "draining":
		return "The gateway is shutting down and timeouts.drain is over."
	case "no_healthy_replica":
		return "The replica that had the request was taken away, and no other can take it."
	}
	if ans.Status > 0 {
		return "The engine failed with status " + strconv.Itoa(ans.Status) + "."
	}
	return "The engine could not be reached, or what it answered could not be read."
}

// limitHeaders are on every answer of a limited key: the state as of the
// decision, of the refusal where that is the answer, or of now.
func (r *request) limitHeaders(err error) {
	var st limits.State
	mode := r.s.limiter.Mode()
	if f, ok := errors.AsType[*limits.Refusal](err); ok {
		st, mode = f.State, f.Mode
	} else if r.reservation != nil {
		st = r.reservation.State()
		if m := r.reservation.Mode(); m.Degraded() { // before the breaker has noticed
			mode = m
		}
	} else if r.client != nil { // it did not come as far as its limits
		limited := r.limited(limits.Cost{})
		st = r.s.limiter.Peek(time.Now(), &limited)
	}
	h := &r.ctx.Response.Header
	if mode.Degraded() {
		h.Set("X-Penstock-Limits-Mode", mode.String())
	}
	setLevel(h, &requestLevels, st.Requests)
	setLevel(h, &tokenLevels, st.Tokens)
	if r.snap.cfg.Limits.IETFHeaders {
		if policy, limit := st.IETF(); policy != "" {
			h.Set("RateLimit-Policy", policy)
			h.Set("RateLimit", limit)
		}
	}
}

// The headers of a level: limit, remaining, reset.
var (
	requestLevels = [3][]byte{[]byte("X-Ratelimit-Limit-Requests"), []byte("X-Ratelimit-Remaining-Requests"), []byte("X-Ratelimit-Reset-Requests")}
	tokenLevels   = [3][]byte{[]byte("X-Ratelimit-Limit-Tokens"), []byte("X-Ratelimit-Remaining-Tokens"), []byte("X-Ratelimit-Reset-Tokens")}
)

// setLevel writes x-ratelimit-* as fasthttp spells headers, so that it need not be asked for the spelling.
func setLevel(h *fasthttp.ResponseHeader, names *[3][]byte, l limits.Level) {
	if l.Limit == 0 {
		return
	}
	var buf [24]byte
	h.SetCanonical(names[0], strconv.AppendInt(buf[:0], l.Limit, 10))
	h.SetCanonical(names[1], strconv.AppendInt(buf[:0], max(0, l.Remaining), 10))
	h.SetCanonical(names[2], append(buf[:0], limits.FormatReset(l.Reset)...))
}

func millis(d time.Duration) float64 {
	return math.Round(float64(d)/float64(time.Microsecond)) / 1000
}

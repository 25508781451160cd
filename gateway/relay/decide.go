package relay

import (
	"errors"
	"time"
)

// Facts are what is known when an attempt has come to its end, or to an answer
// of which the client has seen nothing.
type Facts struct {
	// Err is what Do, or relaying, failed with; nil: an answer came.
	Err error
	// Status, RetryAfter and InStream are the answer's.
	Status     int
	RetryAfter time.Duration
	// Attempt is 1 for the first; MaxAttempts bounds them.
	Attempt, MaxAttempts int
	// Died is how many attempts of this request, this one included, ended with
	// the replica failing while it had it (see Error.Died).
	Died int
	// Scoring requests can kill engines: they are never sent to a second
	// replica once one has had them.
	Scoring bool
	// Started: the client has been sent a part of an answer.
	Started bool
	// Others: another replica could take the request.
	Others bool
}

// Verdict is what is to be done.
type Verdict struct {
	// Pass: the answer goes to the client as it is.
	Pass bool
	// Retry: another replica is tried, if the budget allows it.
	Retry bool
	// Status and Code are what the client is told otherwise.
	Status int
	Code   string
	// RetryAfter is what the engine asked for, where that is passed on; 0: nothing.
	RetryAfter time.Duration
	// Health is what the attempt says of the replica.
	Health Health
}

// Health is what an attempt says of a replica, for its breaker.
type Health uint8

const (
	// Neutral: nothing. The client left, or the engine asked for patience.
	Neutral Health = iota
	// Healthy: it answered, even if that was an error of the client's.
	Healthy
	// Failing: no connection, a server error, or no first token in time.
	Failing
)

// Decide says what becomes of a request after an attempt. It holds all the
// rules for retries: only before the client has seen anything, only on another
// replica, for failed connections, 429, 503 and other 5xx; a request that a
// replica died on is tried once more at most, and a scoring request that a
// replica has had never.
func Decide(f Facts) Verdict {
	v, retryable := judge(f)
	if v.Pass {
		return v
	}
	v.Retry = retryable && !f.Started && f.Others && f.Attempt < f.MaxAttempts && !spent(f)
	return v
}

// spent reports whether a replica died on the request, and it has been tried
// once more since.
func spent(f Facts) bool {
	e, ok := errors.AsType[*Error](f.Err)
	now := ok && e.Died()
	return f.Died > 1 || (f.Died == 1 && !now)
}

// judge is the verdict without a retry, and whether the failure is of a kind
// that another replica may not have.
func judge(f Facts) (v Verdict, retryable bool) {
	if f.Err != nil {
		e, ok := errors.AsType[*Error](f.Err)
		if !ok {
			return Verdict{Status: 500, Code: "internal_error"}, false
		}
		return judgeError(e, f.Scoring)
	}
	switch {
	case f.Status == 429 || f.Status == 503 || f.Status == 529: // busy: it has not worked on the request
		return Verdict{Status: 503, Code: "engine_overloaded", RetryAfter: f.RetryAfter}, true
	case f.Status >= 500:
		return Verdict{Status: 502, Code: "upstream_error", Health: Failing}, !f.Scoring
	}
	return Verdict{Pass: true, Health: Healthy}, false
}

func judgeError(e *Error, scoring bool) (v Verdict, retryable bool) {
	switch e.Kind {
	case KindConnect:
		if e.Local() { // another engine would not be reached either
			return Verdict{Status: 502, Code: "upstream_error"}, false
		}
		return Verdict{Status: 502, Code: "upstream_error", Health: Failing}, true
	case KindTimeout:
		return judgeTimeout(e.Limit)
	case KindDisconnected, KindTruncated:
		return Verdict{Status: 502, Code: "upstream_disconnected", Health: Failing}, !scoring || !e.Sent
	case KindProtocol:
		return Verdict{Status: 502, Code: "upstream_error", Health: Failing}, !scoring
	case KindTooLarge: // another replica would say the same
		return Verdict{Status: 502, Code: "upstream_error"}, false
	case KindClient:
		return gone(), false
	case KindCanceled:
		return judgeCancel(e, scoring)
	}
	return Verdict{Status: 500, Code: "internal_error"}, false
}

func judgeTimeout(l Limit) (v Verdict, retryable bool) {
	switch l {
	case LimitConnect:
		return Verdict{Status: 502, Code: "upstream_error", Health: Failing}, true
	case LimitFirst:
		return Verdict{Status: 504, Code: "first_token_timeout", Health: Failing}, false
	case LimitIdle:
		return Verdict{Status: 504, Code: "stream_idle_timeout", Health: Failing}, false
	}
	return Verdict{Status: 504, Code: "upstream_timeout"}, false
}

func judgeCancel(e *Error, scoring bool) (v Verdict, retryable bool) {
	switch {
	case errors.Is(e.Err, ErrClientGone):
		return gone(), false
	case errors.Is(e.Err, ErrDraining):
		return Verdict{Status: 503, Code: "draining"}, false
	case errors.Is(e.Err, ErrUnhealthy) && scoring && e.Sent:
		return Verdict{Status: 504, Code: "upstream_timeout"}, false
	case errors.Is(e.Err, ErrUnhealthy):
		return Verdict{Status: 502, Code: "upstream_disconnected"}, true
	}
	return Verdict{Status: 503, Code: "no_healthy_replica"}, true // its replica was taken away
}

// gone is for a client that left: for log and metrics only.
func gone() Verdict { return Verdict{Status: 499, Code: "client_closed_request"} }

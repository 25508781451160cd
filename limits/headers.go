package limits

import (
	"fmt"
	"strings"
	"time"
)

// State is what the rate limit headers of one answer tell: for requests and for
// tokens the limit nearest to its end. It is as of the decision, so after the
// request's own cost.
type State struct {
	Requests, Tokens Level
}

// Level is one limit's state.
type Level struct {
	// Limit is per minute; 0: there is no such limit, and no headers.
	Limit int64
	// Remaining is what is left of the bucket.
	Remaining int64
	// Reset is the time until the bucket is full again.
	Reset time.Duration
	// Scope and Kind tell whose and which it is.
	Scope Scope
	Kind  Kind
}

// State is the state of the limits as of the decision.
func (r *Reservation) State() State {
	var st State
	for i := range r.n {
		s := &r.scopes[i]
		for k := range rates {
			rt := s.rate(k, r.share)
			if rt.limit == 0 || r.where == inNothing {
				continue
			}
			l := Level{
				Limit: rt.limit, Remaining: max(0, level(s.used[k], rt.burst)), Scope: s.scope, Kind: k,
				Reset: time.Duration(refill(s.used[k], rt.limit)) * time.Millisecond,
			}
			if k == KindRequests {
				st.Requests = nearest(st.Requests, l)
			} else {
				st.Tokens = nearest(st.Tokens, l)
			}
		}
	}
	return st
}

// Peek is the state of the limits that hold for a request, without charging
// anything. With Redis it asks there, once.
func (l *Limiter) Peek(now time.Time, q *Request) State {
	r := newReservation(l, q)
	if r.n == 0 {
		return State{}
	}
	subjects := make([]Subject, r.n)
	for i := range r.n {
		s := &r.scopes[i]
		subjects[i] = Subject{Scope: s.scope, Key: r.key, Model: r.model, Limits: s.limits}
	}
	r.where = inMemory
	var all []levels
	switch l.Mode() {
	case ModeOpen, ModeClosed:
		return State{}
	case ModeLocal:
		r.share = l.redis.gateways()
	case ModeRedis:
		all, _ = l.redis.peek(now, subjects)
	}
	if all == nil {
		all = l.memory.peek(now, subjects)
	}
	for i := range all {
		r.scopes[i].used = all[i].used
	}
	return r.State()
}

// nearest is the level with less left.
func nearest(a, b Level) Level {
	if a.Limit == 0 || b.Remaining < a.Remaining {
		return b
	}
	return a
}

// FormatReset writes a duration as OpenAI's headers do: 20ms, 1.5s, 6m0s.
// It is rounded up to whole milliseconds.
func FormatReset(d time.Duration) string {
	if d <= 0 {
		return "0s"
	}
	return ((d + time.Millisecond - 1) / time.Millisecond * time.Millisecond).String()
}

// IETF is the pair of headers RateLimit-Policy and RateLimit of
// draft-ietf-httpapi-ratelimit-headers; both empty where nothing is limited.
func (s State) IETF() (policy, limit string) {
	var p, l []string
	for _, it := range []struct {
		name string
		Level
	}{{"requests", s.Requests}, {"tokens", s.Tokens}} {
		if it.Limit == 0 {
			continue
		}
		p = append(p, fmt.Sprintf("%q;q=%d;w=60", it.name, it.Limit))
		l = append(l, fmt.Sprintf("%q;r=%d;t=%d", it.name, it.Remaining, (it.Reset+time.Second-1)/time.Second))
	}
	return strings.Join(p, ", "), strings.Join(l, ", ")
}

package limits

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// violation is one limit that does not admit a request now.
type violation struct {
	scope Scope
	kind  Kind
	rate  rate
	used  int64 // units
	wait  int64 // milliseconds; -1: for ever
}

// Refusal says which limit refused a request, and everything that its answer tells.
type Refusal struct {
	Scope Scope
	Kind  Kind
	// Key and Model are the request's.
	Key, Model string
	// Limit is the limit's value: per minute, at once, waiting at most, or
	// milliseconds of waiting at most.
	Limit int64
	// Burst is the bucket's size, where a rate refused.
	Burst int64
	// Used is what was used up when the request came: tokens or requests of
	// the bucket, requests at once, requests waiting, milliseconds waited.
	Used int64
	// Needed is what the request needs of it.
	Needed int64
	// ConfigKey names the configuration key that sets the limit.
	ConfigKey string
	// RetryAfter is the time until the request would be admitted: true for
	// rates, over all the limits violated; an estimate otherwise.
	RetryAfter time.Duration
	// TooLarge: it costs more than the bucket holds, and is never admitted.
	TooLarge bool
	// State is the state of the limits for the headers.
	State State
	// Mode is where the counters were.
	Mode Mode

	ownBurst bool // the bucket's size is not one minute's worth
}

// newRefusal tells of the limit that is violated longest.
func newRefusal(r *Reservation, bad []violation) *Refusal {
	worst := bad[0]
	for _, v := range bad[1:] {
		if worst.wait >= 0 && (v.wait < 0 || v.wait > worst.wait) {
			worst = v
		}
	}
	f := &Refusal{
		Scope: worst.scope, Kind: worst.kind, Key: r.key, Model: r.model,
		Limit: worst.rate.limit, Burst: worst.rate.burst, ownBurst: worst.rate.burst != worst.rate.limit,
		Used: (worst.used + unit - 1) / unit, Needed: r.cost.of(worst.kind),
		ConfigKey: ConfigKey(worst.scope, worst.kind, r.key, r.model),
		Mode:      r.Mode(), State: r.State(),
	}
	if worst.wait < 0 {
		f.TooLarge, f.Burst = true, worst.rate.whole
	} else {
		f.RetryAfter = time.Duration(worst.wait) * time.Millisecond
	}
	return f
}

// who is the subject of the limit, as messages name it.
func (f *Refusal) who() string {
	switch f.Scope {
	case ScopeModel:
		return fmt.Sprintf("model %q, all keys together", f.Model)
	case ScopeKeyModel:
		return fmt.Sprintf("key %q on model %q", f.Key, f.Model)
	}
	return fmt.Sprintf("key %q", f.Key)
}

// Error is the message for the client: the limit, its value, the configuration
// key that sets it, and when to come again.
func (f *Refusal) Error() string {
	switch f.Kind {
	case KindConcurrency:
		return fmt.Sprintf("Too many requests at once for %s: limit %d, in use %d. Limit set by %s. %s",
			f.who(), f.Limit, f.Used, f.ConfigKey, f.again())
	case KindQueueFull:
		return fmt.Sprintf("The queue is full for %s: limit %d waiting, %d waiting now. Limit set by %s. %s",
			f.who(), f.Limit, f.Used, f.ConfigKey, f.again())
	case KindQueueTimeout:
		if f.Limit == 0 {
			return fmt.Sprintf("No replica of model %q has room now, and the request was not to wait. Limit set by %s. %s",
				f.Model, f.ConfigKey, f.again())
		}
		return fmt.Sprintf("No replica of model %q had room within %s. Limit set by %s. %s",
			f.Model, time.Duration(f.Limit)*time.Millisecond, f.ConfigKey, f.again())
	case KindUnavailable:
		return "The limits cannot be checked: Redis is away, and redis.on_error is closed. " + f.again()
	}
	what := map[Kind]string{
		KindRequests: "requests", KindTokens: "tokens",
		KindInput: "input tokens", KindOutput: "output tokens",
	}[f.Kind]
	limit, setBy := strconv.FormatInt(f.Limit, 10), f.ConfigKey
	if f.ownBurst { // without it, what was used need not look like too much
		limit += fmt.Sprintf(" (%d at once)", f.Burst)
		setBy += " and " + strings.ReplaceAll(what, " ", "_") + "_burst"
	}
	if f.TooLarge {
		return fmt.Sprintf("Request too large for %s: it needs %d %s, and the limit never admits more than %d at once (%d per minute). Limit set by %s.",
			f.who(), f.Needed, what, f.Burst, f.Limit, setBy)
	}
	return fmt.Sprintf("Rate limit reached for %s on %s per minute: limit %s, used %d, requested %d. Limit set by %s. %s",
		f.who(), what, limit, f.Used, f.Needed, setBy, f.again())
}

func (f *Refusal) again() string {
	return "Please try again in " + FormatReset(f.RetryAfter) + "."
}

// RetryAfterSeconds is the Retry-After header: whole seconds, rounded up, at least 1.
func (f *Refusal) RetryAfterSeconds() string {
	return strconv.FormatInt(max(1, int64((f.RetryAfter+time.Second-1)/time.Second)), 10)
}

// RetryAfterMillis is the retry-after-ms header: rounded up, at least 1.
func (f *Refusal) RetryAfterMillis() string {
	return strconv.FormatInt(max(1, int64((f.RetryAfter+time.Millisecond-1)/time.Millisecond)), 10)
}

// concurrencyRefusal reads the slots again to say which scope is full. When
// none is any more, it tells of the first that is limited.
func concurrencyRefusal(r *Reservation, now time.Time) *Refusal {
	f := &Refusal{
		Kind: KindConcurrency, Key: r.key, Model: r.model, Needed: 1,
		Mode: r.Mode(), State: r.State(), RetryAfter: time.Second,
	}
	var found bool
	for i := range r.n {
		s := &r.scopes[i]
		limit := slotsOf(s.limits, r.share)
		if limit == 0 {
			continue
		}
		used, hold := r.slotUse(i, limit)
		if !found || used >= limit && f.Used < f.Limit {
			found = true
			f.Scope, f.Limit, f.Used = s.scope, limit, used
			f.RetryAfter = max(time.Second, min(time.Minute, hold/time.Duration(limit)))
		}
	}
	f.ConfigKey = ConfigKey(f.Scope, KindConcurrency, r.key, r.model)
	return f
}

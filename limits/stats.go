package limits

import (
	"cmp"
	"context"
	"slices"
	"time"

	"penstock/configs"
)

// Subject is whose limits Stats is asked for.
type Subject struct {
	// Scope says which of Key and Model count.
	Scope      Scope
	Key, Model string
	Limits     *configs.Limits
}

func (s Subject) subject() subject { return subjectOf(s.Scope, s.Key, s.Model) }

// Stat is the state of one subject's limits.
type Stat struct {
	Scope string `json:"scope"`
	Key   string `json:"key,omitempty"`
	Model string `json:"model,omitempty"`
	// Mode is where the counters are.
	Mode string `json:"mode"`
	// UnderWay are the requests reserved and not settled, those that wait included.
	UnderWay int64 `json:"under_way"`
	// ReservedInput and ReservedOutput are the tokens that those reserved.
	ReservedInput  int64 `json:"reserved_input_tokens"`
	ReservedOutput int64 `json:"reserved_output_tokens"`
	// Running are the concurrency slots in use, Concurrency the limit (0: none).
	Running     int64 `json:"running"`
	Concurrency int64 `json:"concurrency,omitempty"`
	// RateWaiting are the key's requests that wait for a rate.
	RateWaiting int `json:"rate_waiting,omitempty"`
	// NextAdmissionMS is the time in milliseconds until the smallest request is admitted.
	NextAdmissionMS int64      `json:"next_admission_ms"`
	Rates           []RateStat `json:"rates"`
}

// RateStat is the state of one bucket.
type RateStat struct {
	Kind  string `json:"kind"`
	Limit int64  `json:"limit_per_minute"`
	Burst int64  `json:"burst"`
	// Used is what is charged and not refilled; above Burst it is a debt.
	Used int64 `json:"used"`
	// Remaining is what is left; below 0: a debt, after estimates that were too low.
	Remaining int64 `json:"remaining"`
	// ResetMS is the time in milliseconds until the bucket is full.
	ResetMS   int64  `json:"reset_ms"`
	ConfigKey string `json:"config_key"`
}

// levels are one subject's counters, wherever they are.
type levels struct {
	slots, live int64
	held        Cost
	used        [unitKinds]int64
}

// Stats tells the state of the subjects' limits. With Redis it asks there; the
// error says that it did not answer, and the states are this gateway's own.
func (l *Limiter) Stats(_ context.Context, now time.Time, subjects []Subject) ([]Stat, error) {
	mode := l.Mode()
	var all []levels
	var err error
	if mode == ModeRedis {
		all, err = l.redis.peek(now, subjects)
	}
	if all == nil {
		all = l.memory.peek(now, subjects)
	}
	share := int64(1)
	if mode == ModeLocal {
		share = l.redis.gateways()
	}
	waiting := l.waiters.counts()
	stats := make([]Stat, len(subjects))
	for i, s := range subjects {
		stats[i] = newStat(s, &all[i], share)
		stats[i].Mode = mode.String()
		if s.Scope == ScopeKey {
			stats[i].RateWaiting = waiting[s.Key]
		}
	}
	return stats, err
}

func newStat(s Subject, v *levels, share int64) Stat {
	sub := s.subject()
	st := Stat{
		Scope: s.Scope.String(), Key: sub.key, Model: sub.model, UnderWay: v.live, Running: v.slots,
		ReservedInput: v.held.Input, ReservedOutput: v.held.Output, Concurrency: slotsOf(s.Limits, share),
		Rates: []RateStat{},
	}
	for k := range rates {
		r := rateOf(s.Limits, k, share)
		if r.limit == 0 {
			continue
		}
		b := bucket{used: v.used[k]}
		st.NextAdmissionMS = max(st.NextAdmissionMS, b.wait(1, 0, r))
		st.Rates = append(st.Rates, RateStat{
			Kind: k.String(), Limit: r.limit, Burst: r.burst, Used: (b.used + unit - 1) / unit,
			Remaining: level(b.used, r.burst), ResetMS: refill(b.used, r.limit),
			ConfigKey: ConfigKey(s.Scope, k, s.Key, s.Model),
		})
	}
	return st
}

// peek reads the entries without making any.
func (m *memory) peek(now time.Time, subjects []Subject) []levels {
	all := make([]levels, len(subjects))
	for i, s := range subjects {
		e := m.find(s.subject())
		if e == nil {
			continue
		}
		e.mu.Lock()
		all[i] = levels{slots: e.slots, live: int64(len(e.live)), held: e.held}
		for k := range e.buckets {
			e.buckets[k].drain(now.UnixMilli())
			all[i].used[k] = e.buckets[k].used
		}
		e.mu.Unlock()
	}
	return all
}

// peek reads the scopes in Redis, in batches.
func (s *redisStore) peek(now time.Time, subjects []Subject) ([]levels, error) {
	if s.played {
		s.at.Store(now.UnixMicro())
	}
	const fields = 5 + unitKinds
	all := make([]levels, 0, len(subjects))
	for chunk := range slices.Chunk(subjects, batch) {
		var keys []string
		for _, sub := range chunk {
			name := sub.subject().name()
			keys = append(keys, s.prefix+"b:"+name, s.prefix+"s:"+name)
		}
		reply, err := s.read("peek", s.peekScript, keys, []any{s.micros()})
		if err != nil || len(reply) != fields*len(chunk) {
			return nil, cmp.Or(err, errShortReply)
		}
		n := integers(reply)
		for ; len(n) > 0; n = n[fields:] {
			v := levels{slots: n[0], live: n[1], held: Cost{n[2], n[3], n[4]}}
			copy(v.used[:], n[5:])
			all = append(all, v)
		}
	}
	return all, nil
}

// Reset fills the key's buckets, those on the given models too, and tells
// whether it reached them all. Slots stay with those that hold them, and what is
// under way is settled as if it had been charged before.
func (l *Limiter) Reset(_ context.Context, key string, models []string) error {
	subs := []subject{{scope: ScopeKey, key: key}}
	for _, m := range models {
		subs = append(subs, subject{scope: ScopeKeyModel, key: key, model: m})
	}
	for _, s := range subs {
		if e := l.memory.find(s); e != nil {
			e.mu.Lock()
			for k := range e.buckets {
				e.buckets[k].reset()
			}
			e.mu.Unlock()
		}
	}
	if l.redis == nil {
		return nil
	}
	return l.redis.reset(subs)
}

// QueueStat is the state of one model's queue.
type QueueStat struct {
	Model     string `json:"model"`
	Waiting   int    `json:"waiting"`
	MaxLength int    `json:"max_length"`
	MaxWaitMS int64  `json:"max_wait_ms"`
	// OldestMS is how long the one that waits longest has.
	OldestMS int64 `json:"oldest_ms"`
	// PerSecond is how many leave it in a second while others wait; 0: not known.
	PerSecond float64        `json:"dispatched_per_second"`
	Keys      []QueueKeyStat `json:"keys"`
}

// QueueKeyStat is one key's part in a queue.
type QueueKeyStat struct {
	Key     string  `json:"key"`
	Weight  float64 `json:"weight"`
	Waiting int     `json:"waiting"`
	Running int     `json:"running"`
	// Served is the tokens served lately (uncached input + 2 × output, fading
	// over a minute), Share its part of all keys'.
	Served float64 `json:"served"`
	Share  float64 `json:"share"`
	// Counter is the virtual token counter: the lowest goes first.
	Counter  float64 `json:"counter"`
	OldestMS int64   `json:"oldest_ms"`
}

// Stats tells the queue's state, the keys by name.
func (q *Queue) Stats(now time.Time) QueueStat {
	q.mu.Lock()
	defer q.mu.Unlock()
	st := QueueStat{
		Model: q.model, Waiting: q.order.Len(), MaxLength: q.bounds.MaxLength, MaxWaitMS: q.bounds.MaxWait.Milliseconds(),
		PerSecond: q.drain.perSecond(time.Now()), Keys: []QueueKeyStat{},
	}
	var served float64
	for _, s := range q.order.shares {
		k := QueueKeyStat{
			Key: s.key, Weight: s.weight, Waiting: len(s.waiting), Running: s.running,
			Served: s.recent(now), Counter: s.counter(),
		}
		for _, it := range s.waiting {
			k.OldestMS = max(k.OldestMS, now.Sub(it.since).Milliseconds())
		}
		served += k.Served
		st.OldestMS = max(st.OldestMS, k.OldestMS)
		st.Keys = append(st.Keys, k)
	}
	for i := range st.Keys {
		if served > 0 {
			st.Keys[i].Share = st.Keys[i].Served / served
		}
	}
	slices.SortFunc(st.Keys, func(a, b QueueKeyStat) int { return cmp.Compare(a.Key, b.Key) })
	return st
}

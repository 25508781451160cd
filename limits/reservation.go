package limits

import (
	"sync"
	"sync/atomic"
	"time"

	"penstock/configs"
)

// place is where a reservation's counters are.
type place uint8

const (
	inNothing place = iota // not limited
	inMemory
	inRedis
)

// Reservation is what one request holds of its limits, from Reserve until
// Settle. Its methods may be called by any goroutine.
type Reservation struct {
	limiter *Limiter
	key     string
	model   string
	cost    Cost
	ahead   Cost
	share   int64 // limits are divided by it
	where   place
	id      string // in Redis
	seq     int64  // in memory

	n       int // scopes that have limits
	scopes  [scopes]scopeState
	entries [scopes]*entry

	settled atomic.Bool
	mu      sync.Mutex // guards what follows
	slotted bool
	freed   bool
	since   time.Time // when the slots were got
}

// scopeState is one scope of a reservation.
type scopeState struct {
	subject subject
	limits  *configs.Limits
	charged uint8            // bit per kind
	used    [unitKinds]int64 // units in use right after the decision
}

func (s *scopeState) rate(k Kind, share int64) rate { return rateOf(s.limits, k, share) }

func newReservation(l *Limiter, q *Request) *Reservation {
	r := &Reservation{limiter: l, key: q.Key, model: q.Model, cost: q.Cost, ahead: q.ahead, share: 1}
	r.cost.Requests = clampTokens(r.cost.Requests)
	r.cost.Input = clampTokens(r.cost.Input)
	r.cost.Output = clampTokens(r.cost.Output)
	// In the order in which entries are locked.
	r.add(subject{scope: ScopeModel, model: q.Model}, q.ModelLimits)
	r.add(subject{scope: ScopeKey, key: q.Key}, q.KeyLimits)
	r.add(subject{scope: ScopeKeyModel, key: q.Key, model: q.Model}, q.KeyModelLimits)
	return r
}

// clampTokens keeps a cost countable; one above maxTokens is too large for any limit.
func clampTokens(n int64) int64 { return max(0, min(n, 2*maxTokens)) }

func (r *Reservation) add(s subject, l *configs.Limits) {
	if !limited(l) {
		return
	}
	r.scopes[r.n] = scopeState{subject: s, limits: l}
	r.n++
}

// limited tells whether any limit is set.
func limited(l *configs.Limits) bool {
	return l != nil && (l.RequestsPerMinute > 0 || l.TokensPerMinute > 0 ||
		l.InputTokensPerMinute > 0 || l.OutputTokensPerMinute > 0 || l.Concurrency > 0)
}

// subjects is the number of scopes with limits, to range over.
func (r *Reservation) subjects() int { return r.n }

func (r *Reservation) lock() {
	for i := range r.n {
		r.entries[i].mu.Lock()
	}
}

func (r *Reservation) unlock() {
	for i := range r.n {
		r.entries[i].mu.Unlock()
	}
}

// Cost is what was reserved.
func (r *Reservation) Cost() Cost { return r.cost }

// TrySlot takes a concurrency slot in every scope, or none. It never waits and
// does no I/O: with Redis it asks in the background, and Options.OnSlot tells
// when to try again. The slots are kept until Settle.
func (r *Reservation) TrySlot(now time.Time) bool {
	if r.n == 0 || r.where == inNothing {
		return true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.slotted || r.freed {
		return true
	}
	if r.where == inRedis {
		return r.limiter.redis.trySlot(now, r)
	}
	if !r.limiter.memory.slot(r) {
		return false
	}
	r.slotted, r.since = true, now
	return true
}

// Settle replaces what was reserved by what was used and gives the slots back.
// Only the first call counts. It does no I/O: with Redis a worker does.
func (r *Reservation) Settle(now time.Time, a Actual) {
	if r.settled.Swap(true) || r.n == 0 {
		return
	}
	used := a.cost(r.cost)
	switch r.where {
	case inMemory:
		r.limiter.memory.settle(now, r, used)
		r.freeSlot(now)
	case inRedis:
		r.limiter.redis.settle(now, r, used)
	}
}

// freeSlot gives the slots back in memory, once, and tells those who wait.
func (r *Reservation) freeSlot(now time.Time) {
	r.mu.Lock()
	held, had := now.Sub(r.since), r.slotted
	r.slotted, r.freed = false, true
	r.mu.Unlock()
	if !had {
		return
	}
	r.limiter.memory.unslot(r, held)
	if r.limiter.o.OnSlot != nil {
		r.limiter.o.OnSlot(r.key, r.model)
	}
}

// ConcurrencyRefusal says which concurrency limit keeps the request from
// running. It is for a request whose wait in the queue ended by it.
func (r *Reservation) ConcurrencyRefusal(now time.Time) *Refusal {
	return concurrencyRefusal(r, now)
}

// slotUse is how many slots of scope i are in use, and how long one is held.
func (r *Reservation) slotUse(i int, limit int64) (used int64, hold time.Duration) {
	if r.where != inMemory {
		return limit, time.Second
	}
	e := r.entries[i]
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.slots, e.hold
}

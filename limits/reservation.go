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
	*record // nil: Redis was not asked
	key     string
	model   string
	cost    Cost
	share   int64 // limits are divided by it
	seq     int64 // in memory
	scopes  [scopes]scopeState
	entries [scopes]*entry
	n       int // scopes that have limits
	where   place

	settled atomic.Bool
	mu      sync.Mutex // guards what follows
	slotted bool
	local   bool // the slots are in memory
	freed   bool
	since   time.Time // when the slots were got
}

// record is what a reservation is in Redis.
type record struct {
	id    string
	keys  []string      // the record's, then hash and slots of each scope
	inUse [scopes]int64 // slots at the decision
}

// scopeState is one scope of a reservation.
type scopeState struct {
	limits  *configs.Limits
	used    [unitKinds]int64 // units in use right after the decision
	scope   Scope
	charged uint8 // bit per kind
}

func (s *scopeState) rate(k Kind, share int64) rate { return rateOf(s.limits, k, share) }

func newReservation(l *Limiter, q *Request) *Reservation {
	r := &Reservation{limiter: l, key: q.Key, model: q.Model, cost: q.Cost, share: 1}
	r.cost.Requests = clampTokens(r.cost.Requests)
	r.cost.Input = clampTokens(r.cost.Input)
	r.cost.Output = clampTokens(r.cost.Output)
	// In the order in which entries are locked.
	r.add(ScopeModel, q.ModelLimits)
	r.add(ScopeKey, q.KeyLimits)
	r.add(ScopeKeyModel, q.KeyModelLimits)
	return r
}

// clampTokens keeps a cost countable; one above maxTokens is too large for any limit.
func clampTokens(n int64) int64 { return max(0, min(n, 2*maxTokens)) }

func (r *Reservation) add(s Scope, l *configs.Limits) {
	if !limited(l) {
		return
	}
	r.scopes[r.n].scope, r.scopes[r.n].limits = s, l
	r.n++
}

// subject is whose limits scope i holds.
func (r *Reservation) subject(i int) subject { return subjectOf(r.scopes[i].scope, r.key, r.model) }

// limited tells whether any limit is set.
func limited(l *configs.Limits) bool {
	return l != nil && (l.RequestsPerMinute > 0 || l.TokensPerMinute > 0 ||
		l.InputTokensPerMinute > 0 || l.OutputTokensPerMinute > 0 || l.Concurrency > 0)
}

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
	r.slotted = r.limiter.memory.slot(r, r.share)
	r.local, r.since = r.slotted, now
	return r.slotted
}

// slotHeld tells whether the slots are held already.
func (r *Reservation) slotHeld() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.slotted
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
	case inRedis:
		r.limiter.redis.settle(r, used)
	case inNothing:
		return
	}
	r.freeSlot(now)
}

// freeSlot gives the slots back in memory, once, and tells those who wait.
func (r *Reservation) freeSlot(now time.Time) {
	r.mu.Lock()
	held, had := now.Sub(r.since), r.local && !r.freed
	r.freed = true
	r.mu.Unlock()
	if had {
		r.limiter.memory.unslot(r, held)
		r.limiter.tellSlot(r)
	}
}

// Mode is where the reservation's counters are: it tells that Redis was away.
func (r *Reservation) Mode() Mode {
	switch {
	case r.limiter.redis == nil:
		return ModeMemory
	case r.where == inRedis || r.n == 0:
		return ModeRedis
	case r.where == inMemory:
		return ModeLocal
	}
	return ModeOpen
}

// ConcurrencyRefusal says which concurrency limit keeps the request from
// running. It is for a request whose wait in the queue ended by it.
func (r *Reservation) ConcurrencyRefusal(now time.Time) *Refusal {
	return concurrencyRefusal(r, now)
}

// slotUse is how many slots of scope i are in use, and how long one is held.
func (r *Reservation) slotUse(i int, limit int64) (used int64, hold time.Duration) {
	if r.where != inMemory {
		return min(limit, r.inUse[i]), r.limiter.redis.meanHold()
	}
	e := r.entries[i]
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.slots, e.hold
}

package limits

import (
	"hash/maphash"
	"slices"
	"sync"
	"time"
)

// subject is whose counters an entry holds. key is empty for ScopeModel, model
// for ScopeKey.
type subject struct {
	scope      Scope
	key, model string
}

// subjectOf keeps what the scope is about.
func subjectOf(s Scope, key, model string) subject {
	switch s {
	case ScopeKey:
		model = ""
	case ScopeModel:
		key = ""
	}
	return subject{scope: s, key: key, model: model}
}

// entry holds the counters of one subject in this process.
type entry struct {
	subject subject

	mu      sync.Mutex
	dead    bool // dropped from the map: look it up again
	buckets [unitKinds]bucket
	last    int64   // number of the newest charge
	live    []int64 // numbers of the charges not settled yet, ascending
	held    Cost    // what those reserved

	slots int64         // requests at once
	hold  time.Duration // moving mean of the time a slot is held
}

// memory holds the counters of all subjects. It may be used by any number of
// goroutines; each entry has its own lock, taken in the order of the scopes.
type memory struct {
	seed   maphash.Seed
	perMap int
	shards [64]shard
}

type shard struct {
	mu      sync.RWMutex
	entries map[subject]*entry
}

// newMemory bounds the subjects at about maxSubjects, beyond those that are in use.
func newMemory(maxSubjects int) *memory {
	m := &memory{seed: maphash.MakeSeed()}
	m.perMap = max(1, maxSubjects/len(m.shards))
	for i := range m.shards {
		m.shards[i].entries = make(map[subject]*entry)
	}
	return m
}

func (m *memory) shard(s subject) *shard {
	h := maphash.String(m.seed, s.key)
	if s.model != "" {
		h ^= maphash.String(m.seed, s.model) * 31
	}
	return &m.shards[(h^uint64(s.scope))%uint64(len(m.shards))]
}

// lock finds or makes the subject's entry, locked.
func (m *memory) lock(s subject, now int64) *entry {
	sh := m.shard(s)
	for {
		sh.mu.RLock()
		e := sh.entries[s]
		sh.mu.RUnlock()
		if e == nil {
			e = m.add(sh, s, now)
		}
		e.mu.Lock()
		if !e.dead {
			return e
		}
		e.mu.Unlock()
	}
}

func (m *memory) add(sh *shard, s subject, now int64) *entry {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if e := sh.entries[s]; e != nil {
		return e
	}
	if len(sh.entries) >= m.perMap {
		sh.evict(now)
	}
	e := &entry{subject: s}
	sh.entries[s] = e
	return e
}

// evict drops the entry that forgets least of a few: one that nobody uses and
// that is full soonest. One that is in use is never dropped, so that there are
// at most as many entries more as requests under way.
func (sh *shard) evict(now int64) {
	const sample = 16
	var best *entry
	var bestTime int64
	n := 0
	for _, e := range sh.entries {
		if n++; n > sample {
			break
		}
		// Only tried: a reserve that holds this lock may wait for the shard's.
		if !e.mu.TryLock() {
			continue
		}
		t, idle := e.untilFull(now)
		e.mu.Unlock()
		if idle && (best == nil || t < bestTime) {
			best, bestTime = e, t
		}
	}
	if best == nil || !best.mu.TryLock() {
		return
	}
	if _, idle := best.untilFull(now); idle {
		best.dead = true
		delete(sh.entries, best.subject)
	}
	best.mu.Unlock()
}

// untilFull is the time in milliseconds until all buckets are full, and
// whether nobody has a part in the entry.
func (e *entry) untilFull(now int64) (int64, bool) {
	var t int64
	for i := range e.buckets {
		b := &e.buckets[i]
		b.drain(now)
		t = max(t, refill(b.used, b.limit))
	}
	return t, len(e.live) == 0 && e.slots == 0
}

// find is the subject's entry, nil if it has none. Not locked.
func (m *memory) find(s subject) *entry {
	sh := m.shard(s)
	sh.mu.RLock()
	defer sh.mu.RUnlock()
	return sh.entries[s]
}

// size is the number of subjects held.
func (m *memory) size() int {
	n := 0
	for i := range m.shards {
		m.shards[i].mu.RLock()
		n += len(m.shards[i].entries)
		m.shards[i].mu.RUnlock()
	}
	return n
}

// each calls f with every entry, locked.
func (m *memory) each(f func(*entry)) {
	for i := range m.shards {
		sh := &m.shards[i]
		sh.mu.RLock()
		all := make([]*entry, 0, len(sh.entries))
		for _, e := range sh.entries {
			all = append(all, e)
		}
		sh.mu.RUnlock()
		for _, e := range all {
			e.mu.Lock()
			if !e.dead {
				f(e)
			}
			e.mu.Unlock()
		}
	}
}

// reserve charges r's cost in all its scopes, or in none and says why. It
// notes the levels in r either way. ahead is what others will take first.
func (m *memory) reserve(now time.Time, r *Reservation, ahead Cost) []violation {
	ms := now.UnixMilli()
	for i := range r.n {
		r.entries[i] = m.lock(r.subject(i), ms)
	}
	defer r.unlock()
	var bad []violation
	for i := range r.n {
		bad = r.entries[i].check(ms, r, ahead, &r.scopes[i], bad)
	}
	if bad != nil {
		return bad
	}
	seq := now.UnixMicro()
	for i := range r.n {
		seq = max(seq, r.entries[i].last+1)
	}
	r.seq = seq
	for i := range r.n {
		r.entries[i].charge(seq, r, &r.scopes[i])
	}
	return nil
}

// check finds the limits of one scope that do not admit r now.
func (e *entry) check(now int64, r *Reservation, ahead Cost, s *scopeState, bad []violation) []violation {
	for k := range rates {
		rt := s.rate(k, r.share)
		if rt.limit == 0 {
			continue
		}
		b := &e.buckets[k]
		b.set(now, rt)
		s.used[k] = b.used
		cost := r.cost.of(k)
		if w := b.wait(cost, ahead.of(k), rt); w != 0 {
			if w > 0 {
				w += b.at - now
			}
			bad = append(bad, violation{scope: s.scope, kind: k, rate: rt, used: b.used, wait: w})
		}
	}
	return bad
}

// charge takes r's cost, which check has admitted.
func (e *entry) charge(seq int64, r *Reservation, s *scopeState) {
	var newest int64
	if n := len(e.live); n > 0 {
		newest = e.live[n-1]
	}
	for k := range rates {
		b := &e.buckets[k]
		if s.rate(k, r.share).limit == 0 {
			b.charge(seq, 0, newest)
			continue
		}
		b.charge(seq, r.cost.of(k), newest)
		s.used[k] = b.used
		s.charged |= 1 << k
	}
	e.last = seq
	e.live = append(e.live, seq)
	e.held = e.held.Add(r.cost)
}

// settle replaces what r reserved by what it used.
func (m *memory) settle(now time.Time, r *Reservation, used Cost) {
	r.lock()
	defer r.unlock()
	fresh := now.UnixMicro()
	for i := range r.n {
		fresh = max(fresh, r.entries[i].last+1)
	}
	delta := used.Sub(r.cost)
	for i := range r.n {
		r.entries[i].settle(now.UnixMilli(), fresh, r, &r.scopes[i], delta)
	}
}

func (e *entry) settle(now, fresh int64, r *Reservation, s *scopeState, delta Cost) {
	i, found := slices.BinarySearch(e.live, r.seq)
	if !found {
		return
	}
	e.live = slices.Delete(e.live, i, i+1)
	var next, newest int64
	if i < len(e.live) {
		next = e.live[i]
	}
	if n := len(e.live); n > 0 {
		newest = e.live[n-1]
	}
	for k := range rates {
		d := int64(0)
		if s.charged&(1<<k) != 0 {
			d = delta.of(k)
		}
		e.buckets[k].settle(now, r.seq, next, newest, fresh, d)
	}
	e.last = max(e.last, fresh)
	e.held = e.held.Sub(r.cost)
}

// slot takes one of the slots in each of r's scopes, or none.
func (m *memory) slot(r *Reservation, share int64) bool {
	r.lock()
	defer r.unlock()
	for i := range r.n {
		s := &r.scopes[i]
		if n := slotsOf(s.limits, share); n > 0 && r.entries[i].slots >= n {
			return false
		}
	}
	for i := range r.n {
		r.entries[i].slots++
	}
	return true
}

// unslot gives r's slots back, held for so long.
func (m *memory) unslot(r *Reservation, held time.Duration) {
	r.lock()
	defer r.unlock()
	for i := range r.n {
		e := r.entries[i]
		e.slots--
		if e.hold == 0 {
			e.hold = held
		}
		e.hold += (held - e.hold) / 8
	}
}

// attach finds the entries of a reservation that was made elsewhere.
func (m *memory) attach(now time.Time, r *Reservation) {
	for i := range r.n {
		r.entries[i] = m.lock(r.subject(i), now.UnixMilli())
		r.entries[i].mu.Unlock()
	}
}

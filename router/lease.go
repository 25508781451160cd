package router

import (
	"container/heap"
	"time"
)

const (
	// releaseSlack and releaseMargin lengthen the predicted time to the first
	// token of an answer that is not streamed, after which its prefill counts as
	// over: too early sends others into its way, too late keeps them away.
	releaseSlack  = 25 * time.Millisecond
	releaseMargin = 1.1
)

// Usage is what an answer's end tells; what is unknown is negative.
type Usage struct {
	PromptTokens int
	CachedTokens int // as the engine reported it
	OutputTokens int
	OK           bool // the engine answered
}

// Lease is a request's reservation on its replica, from Choose to Done. Its
// methods may be called from any goroutine.
type Lease struct {
	replica  *Replica
	lane     Lane
	streamed bool
	sent     time.Time
	tokens   int // prompt tokens, estimated
	bytes    int // of the key
	own      int // uncached tokens reserved
	ahead    int // uncached tokens reserved before it
	loose    int
	decision Decision

	slot       int32 // the last block in the index, pinned
	generation uint32

	// Under pool.mu.
	prefilled bool // the reservation of own is given back
	done      bool
	dueAt     time.Time
	dueAtHeap int // position in the heap, -1: not there
}

// Replica is the one chosen.
func (l *Lease) Replica() *Replica { return l.replica }

// Decision is why.
func (l *Lease) Decision() Decision { return l.decision }

// First says that the first token came. Later calls do nothing.
func (l *Lease) First(now time.Time) {
	p := l.replica.pool
	p.mu.Lock()
	if l.done {
		p.mu.Unlock()
		return
	}
	if !l.prefilled && l.streamed {
		l.replica.learn(l.ahead+l.own, now.Sub(l.sent))
	}
	fresh := p.prefillOver(l, now)
	p.mu.Unlock()
	if fresh {
		l.ready()
	}
}

// Done ends the reservation and tells what was used. Only the first call counts.
func (l *Lease) Done(now time.Time, u Usage) {
	r := l.replica
	p := r.pool
	p.mu.Lock()
	if l.done {
		p.mu.Unlock()
		return
	}
	l.done = true
	computed := l.prefilled || u.OK
	p.prefillOver(l, now)
	r.ended(now)
	r.streams--
	r.inFlight--
	r.input -= l.tokens
	r.loose -= l.loose
	r.lane.ended(l, now)
	if l.lane == Score {
		r.scoring -= l.tokens
	}
	p.account(l, u)
	p.mu.Unlock()
	l.release(computed)
}

// prefillOver gives back the reserved prefill, once. Under pool.mu.
func (p *Pool) prefillOver(l *Lease, now time.Time) bool {
	if l.prefilled {
		return false
	}
	l.prefilled = true
	r := l.replica
	r.queued -= l.own
	r.waiting--
	r.streams++
	r.lane.computed(l)
	r.started = now
	r.round++
	r.followers = 0
	if l.dueAtHeap >= 0 {
		heap.Remove(&p.due, l.dueAtHeap)
	}
	return true
}

// maxOutput bounds what an answer is believed to have had, in tokens.
const maxOutput = 1 << 24

// account learns from what the answer used. Under pool.mu.
func (p *Pool) account(l *Lease, u Usage) {
	if !u.OK || l.lane != Generate {
		return
	}
	// More tokens than bytes are a template's, or nonsense: they say nothing of the text.
	if u.PromptTokens > 0 && u.PromptTokens <= l.bytes {
		p.ratio.add(float64(l.bytes), float64(u.PromptTokens))
	}
	if u.OutputTokens > 0 && u.OutputTokens <= maxOutput {
		p.output.add(float64(u.OutputTokens), 1)
	}
	if u.CachedTokens >= 0 && u.PromptTokens > 0 {
		l.replica.correct(l.decision.Matched, u.CachedTokens, u.PromptTokens)
	}
}

// ready marks the request's blocks as computed.
func (l *Lease) ready() {
	x := l.replica.index
	x.mu.Lock()
	defer x.mu.Unlock()
	if l.slot != none && l.generation == x.generation {
		l.markReady()
	}
}

// markReady does it and tells the other gateways. Under index.mu.
func (l *Lease) markReady() {
	out := &l.replica.pool.outbox
	if !out.on.Load() {
		l.replica.index.markReady(l.slot, nil)
		return
	}
	out.mu.Lock()
	defer out.mu.Unlock()
	out.placed(l)
}

// release unpins the request's blocks, and forgets those that a failed request
// never computed.
func (l *Lease) release(computed bool) {
	x := l.replica.index
	x.mu.Lock()
	if l.slot != none && l.generation == x.generation {
		if computed {
			l.markReady() // to the other gateways it is news in any case: it was used until now
		}
		x.unpin(l.slot)
		if !computed {
			x.forget(l.slot)
		}
		x.trim(x.capacity, 8)
	}
	l.slot = none
	x.mu.Unlock()
	if out := &l.replica.pool.outbox; out.on.Load() {
		out.landed(l)
	}
}

// predict schedules the release of the reservation of an unstreamed answer. Under pool.mu.
func (p *Pool) predict(l *Lease) {
	l.dueAt = l.sent.Add(p.prefillTime(l.replica, l.ahead+l.own))
	heap.Push(&p.due, l)
}

// prefillTime is how long a replica takes to prefill, at most as a rule. Under pool.mu.
func (p *Pool) prefillTime(r *Replica, tokens int) time.Duration {
	seconds := releaseMargin * float64(tokens) / r.prefillRate()
	return releaseSlack + time.Duration(seconds*float64(time.Second))
}

// tick releases what is due. Under pool.mu.
func (p *Pool) tick(now time.Time) {
	for len(p.due) > 0 && !p.due[0].dueAt.After(now) {
		l := p.due[0]
		p.prefillOver(l, now)
		l.ready()
	}
}

// dueHeap orders leases by their predicted first token.
type dueHeap []*Lease

func (h dueHeap) Len() int           { return len(h) }
func (h dueHeap) Less(i, j int) bool { return h[i].dueAt.Before(h[j].dueAt) }
func (h dueHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].dueAtHeap, h[j].dueAtHeap = i, j
}

func (h *dueHeap) Push(x any) {
	l := x.(*Lease)
	l.dueAtHeap = len(*h)
	*h = append(*h, l)
}

func (h *dueHeap) Pop() any {
	old := *h
	l := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	l.dueAtHeap = -1
	return l
}

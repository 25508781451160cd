package router

import (
	"slices"
	"time"
)

// Lane says how a request uses an engine.
type Lane uint8

const (
	// Generate reads and writes the prefix cache.
	Generate Lane = iota
	// Embed (embeddings, rerank) computes its whole input; nothing is indexed.
	Embed
	// Score (prompt log-probabilities) is heavy and never reads the prefix cache: see lanes.go.
	Score
)

// Request is what Choose needs to know.
type Request struct {
	Key    Key
	Tokens int // prompt tokens, estimated
	Output int // output tokens at most, 0: unknown
	// Streamed says that the first token will be seen.
	Streamed bool
	Lane     Lane
	Session  string // for the session policy
	// Avoid are replicas not to be taken: those that failed this request before.
	Avoid []*Replica
	// Only limits the choice; nil: all.
	Only func(*Replica) bool
	// MayWait allows ErrHeld, where waiting is cheaper than any replica with
	// room (wait.go). The caller tries again at every First and Done of a
	// lease of the pool, and without MayWait before it gives up.
	MayWait bool
	// Explain asks for Decision.Candidates.
	Explain bool

	wait wait
}

// Decision is why a replica was chosen, in tokens.
type Decision struct {
	Matched  int     // prefix predicted to be cached on the chosen replica
	Best     int     // longest such prefix on any usable replica
	Uncached int     // to be computed
	Cost     float64 // seconds; 0 where the policy has no price
	// Candidates are those with room, only when the request asked.
	Candidates []Considered
}

// Considered is one candidate of a decision.
type Considered struct {
	Replica  string  `json:"replica"`
	Matched  int     `json:"matched_tokens"`
	Uncached int     `json:"uncached_tokens"`
	Queued   int     `json:"queued_tokens"`
	Waiting  int     `json:"waiting"`
	Streams  int     `json:"streams"`
	InFlight int     `json:"in_flight"`
	Rate     float64 `json:"prefill_rate"` // tokens a second
	Cost     float64 `json:"cost_seconds"`
}

// Choose selects a replica for q and reserves it, in one step: of two requests
// at once the second sees the first. The lease must be ended by Done.
func (p *Pool) Choose(now time.Time, q *Request) (*Lease, error) {
	c := p.begin(now, q)
	defer p.scratch.Put(c)

	p.mu.Lock()
	p.tick(now)
	p.candidates(c)
	if len(c.Candidates) == 0 {
		p.mu.Unlock()
		if c.none() {
			return nil, ErrNoReplica
		}
		return nil, ErrNoRoom
	}
	at := p.pick(c)
	if at < 0 {
		p.mu.Unlock()
		return nil, ErrHeld
	}
	k := &c.Candidates[at]
	k.Uncached += k.Pending // nobody waited for it
	k.Pending = 0
	l := p.reserve(c, k)
	if q.Lane != Generate || len(q.Key.Hashes) == 0 {
		p.mu.Unlock()
		return l, nil
	}
	// The index is locked before the pool is let go, so that the next request
	// cannot look into it before this one's blocks are there.
	x := k.Replica.index
	x.mu.Lock()
	x.version.Add(1)
	p.mu.Unlock()
	l.slot, l.generation = x.insert(q.Key.Hashes, k.Matched), x.generation
	x.mu.Unlock()
	return l, nil
}

// Work is the least number of tokens that q would have to compute on any usable
// replica: the order of the gateway's queue.
func (p *Pool) Work(q *Request) int {
	c := p.begin(time.Time{}, q)
	defer p.scratch.Put(c)
	least := max(1, q.Tokens)
	for i := range c.all {
		if k := &c.all[i]; k.usable && !k.excluded {
			least = min(least, q.uncached(k.Matched, p.block))
		}
	}
	return least
}

// begin looks at every replica without the pool's lock: is it usable, and how
// much of the prompt does it hold.
func (p *Pool) begin(now time.Time, q *Request) *Choice {
	c := p.scratch.Get().(*Choice)
	list := p.Replicas()
	c.Now, c.Request = now, q
	c.Candidates, c.Full = c.Candidates[:0], c.Full[:0]
	c.all = slices.Grow(c.all[:0], len(list))[:len(list)]
	guess := 0
	for i, r := range list {
		k := &c.all[i]
		*k = Candidate{Replica: r}
		k.excluded = slices.Contains(q.Avoid, r) || q.Only != nil && !q.Only(r)
		k.usable = !k.excluded && (r.usable == nil || r.usable())
		if k.usable && q.Lane == Generate {
			k.look(q.Key.Hashes, guess)
			guess = k.Matched
		}
	}
	return c
}

// look matches the prompt against the replica's index.
func (k *Candidate) look(hashes []uint64, guess int) {
	x := k.Replica.index
	x.mu.RLock()
	defer x.mu.RUnlock()
	k.version = x.version.Load()
	k.Matched, k.Ready = x.match(hashes, guess)
	k.pinned = -1 // not asked until the room is tight
}

// candidates fills in the figures that the pool's lock guards and parts the
// replicas that can take the request now from those that cannot.
func (p *Pool) candidates(c *Choice) {
	q := c.Request
	c.o, c.Rand = &p.o, p.rnd
	usable, waiting, streams, bound, usual, turns := 0, p.held, 0, 0, 0.0, 0.0
	for i := range c.all {
		k := &c.all[i]
		r := k.Replica
		if !k.usable || r.gone {
			k.usable = false
			continue
		}
		p.figures(c, k)
		usable++
		waiting += k.Waiting - k.followers
		streams += k.Streams
		bound += k.InFlight
		usual += k.Usual
		turns += k.Turns
		if p.o.Eager || p.room(c.Now, q, k) {
			c.Candidates = append(c.Candidates, *k)
		} else if q.MayWait {
			k.untilRoom = r.untilRoom(c.Now, k.lack)
			c.Full = append(c.Full, *k)
		}
	}
	n := float64(max(1, usable))
	c.MeanWaiting = float64(max(0, waiting)) / n
	c.MeanStreams = float64(streams) / n
	c.MeanInFlight = float64(bound) / n
	c.MeanUsual = usual / n
	c.MeanTurns = turns / n
	c.MeanUncached = p.fresh.value()
}

// figures reads what the pool knows of a replica into its candidate.
func (p *Pool) figures(c *Choice, k *Candidate) {
	q, r := c.Request, k.Replica
	if q.Lane == Generate && k.version != r.index.version.Load() {
		k.look(q.Key.Hashes, k.Matched)
	}
	k.Rate = r.prefillRate()
	others := r.remote.sum(c.Now)
	k.Queued = r.backlog(c.Now) + r.foreignTokens(c.Now) + others.queued
	k.Reserved = r.queued
	k.Waiting = r.waiting + others.waiting
	k.Streams = r.streams + others.streams
	k.InFlight = r.inFlight + others.inFlight
	k.Usual = r.usual.look(c.Now, float64(k.InFlight), usualSpan)
	k.Turns = r.turns.value(c.Now, turnSpan)
	k.otherKV = others.kv
	k.Input, k.KVTokens, k.followers = r.input, r.capacity.KVTokens, r.followers
	k.Uncached = q.uncached(k.Matched, p.o.BlockTokens)
	if k.Ready < k.Matched {
		k.Pending = q.uncached(k.Ready, p.o.BlockTokens) - k.Uncached
	}
}

// room says whether the request fits on the replica now: within the running
// limit, its KV beside that of what is in flight. A request larger than the
// whole cache goes alone.
func (p *Pool) room(now time.Time, q *Request, k *Candidate) bool {
	r := k.Replica
	if k.InFlight+r.strangers(now) >= r.maxRunning+p.o.RunningAllowance {
		return false
	}
	if q.Lane == Score {
		return p.scoreRoom(now, q, r)
	}
	if r.capacity.KVTokens <= 0 || k.InFlight == 0 {
		return true
	}
	inUse := r.kvInFlight() + k.otherKV
	k.lack = inUse + max(1, q.Tokens) - r.capacity.KVTokens
	if k.lack <= 0 {
		return true
	}
	if inUse <= r.capacity.KVTokens && k.Matched > 0 {
		k.lack = inUse + q.uncached(k.pinnedBlocks(q.Key.Hashes), p.o.BlockTokens) - r.capacity.KVTokens
	}
	return k.lack <= 0
}

// pinnedBlocks counts the leading blocks that requests in flight share already.
func (k *Candidate) pinnedBlocks(hashes []uint64) int {
	if k.pinned < 0 {
		x := k.Replica.index
		x.mu.RLock()
		k.pinned = x.pinnedPrefix(hashes[:min(k.Matched, len(hashes))])
		x.mu.RUnlock()
	}
	return k.pinned
}

// pick asks the lane's or the configured policy.
func (p *Pool) pick(c *Choice) int {
	switch c.Request.Lane {
	case Score:
		return fewestTokens(c)
	default:
		return p.policy.Pick(c)
	}
}

// none says whether no replica at all could be asked.
func (c *Choice) none() bool {
	for i := range c.all {
		if c.all[i].usable {
			return false
		}
	}
	return true
}

// reserve books the request on the chosen candidate.
func (p *Pool) reserve(c *Choice, k *Candidate) *Lease {
	q, r := c.Request, k.Replica
	q.unfollow()
	l := &Lease{
		replica: r, lane: q.Lane, sent: c.Now, streamed: q.Streamed,
		tokens: q.Tokens, bytes: q.Key.Bytes, own: k.Uncached, ahead: k.Queued,
		slot: none, dueAtHeap: -1, loose: q.loose(p),
		decision: p.decide(c, k),
	}
	if r.queued == 0 {
		r.started = c.Now
	}
	r.order = append(r.order, l)
	r.queued += l.own
	r.waiting++
	r.inFlight++
	r.peak = max(r.peak, r.inFlight)
	r.total++
	r.input += l.tokens
	r.loose += l.loose
	r.lane.bound(l, c.Now)
	if l.lane == Generate {
		r.turns.add(c.Now, 1, turnSpan)
		p.fresh.add(float64(l.own), 1)
	}
	if l.lane == Score {
		r.scoring += l.tokens
	} else if !l.streamed {
		p.predict(l)
	}
	return l
}

func (p *Pool) decide(c *Choice, k *Candidate) Decision {
	q := c.Request
	d := Decision{Uncached: k.Uncached, Cost: k.Cost, Matched: q.cached(k.Matched, p.o.BlockTokens)}
	for i := range c.all {
		if c.all[i].usable {
			d.Best = max(d.Best, q.cached(c.all[i].Matched, p.o.BlockTokens))
		}
	}
	if !q.Explain {
		return d
	}
	for i := range c.Candidates {
		o := &c.Candidates[i]
		d.Candidates = append(d.Candidates, Considered{
			Replica: o.Replica.id, Matched: q.cached(o.Matched, p.o.BlockTokens), Uncached: o.Uncached,
			Queued: o.Queued, Waiting: o.Waiting, Streams: o.Streams, InFlight: o.InFlight,
			Rate: o.Rate, Cost: o.Cost,
		})
	}
	return d
}

// cached is what a number of matched blocks means in tokens of this prompt: its
// own ratio of tokens to bytes counts, and the last token is always computed.
func (q *Request) cached(blocks, blockTokens int) int {
	if q.Key.Bytes <= 0 || blocks == 0 {
		return 0
	}
	tokens := float64(q.Tokens) * float64(unitsAt(blocks)*blockTokens*bytesPerToken) / float64(q.Key.Bytes)
	return max(0, min(int(tokens+0.5), q.Tokens-1))
}

func (q *Request) uncached(blocks, blockTokens int) int {
	return max(1, q.Tokens-q.cached(blocks, blockTokens))
}

// loose are the KV tokens of a request that its blocks do not stand for.
func (q *Request) loose(p *Pool) int {
	if q.Lane != Generate {
		return q.Tokens
	}
	return max(0, q.Tokens-int(float64(unitsAt(len(q.Key.Hashes)))*p.tokensPerUnit()))
}

package router

import "time"

// Where a request may wait in the gateway's queue (Request.MayWait), waiting
// can be the cheapest choice although some replica has room:
//
//   - for a prefix that another request is computing: an engine that starts both
//     at once computes it twice, and a burst of equal prompts as often as it has
//     prompts. Those who wait follow when the first has its first token.
//   - for room on the replica that holds the prefix: near saturation the one
//     that happens to have room is rarely the one with the prefix, and every
//     prefix computed again delays everybody.
//
// Both waits together last Options.WaitMost at most, and twice the work before
// the request when it began.

// wait is what a request remembers between two choices. A Request is one
// request: it must be the same one whenever its choice is tried again.
type wait struct {
	until   time.Time
	follows *Replica // whose prefix is waited for
	round   uint64   // of the replica's prefills, when that began
}

// better says whether waiting is cheaper than the best candidate with room.
func (c *Choice) better(k *Candidate) bool {
	w := &c.Request.wait
	if w.until.IsZero() {
		behind := 2 * float64(k.Queued) / k.Rate
		w.until = c.Now.Add(c.o.WaitMost + time.Duration(behind*float64(time.Second)))
	}
	if !c.Now.Before(w.until) {
		return false
	}
	for i := range c.Full {
		if c.price(&c.Full[i]); c.Full[i].Cost < k.Cost {
			return true
		}
	}
	// A prefix shorter than what a step takes anyway is computed twice.
	if float64(k.Pending) <= c.o.StepTime.Seconds()*k.Rate {
		return false
	}
	c.Request.follow(k.Replica)
	return true
}

// follow counts the request among those who wait for a prefix on r.
func (q *Request) follow(r *Replica) {
	if q.wait.follows == r && q.wait.round == r.round {
		return
	}
	q.unfollow()
	q.wait.follows, q.wait.round = r, r.round
	r.followers++
}

// unfollow ends it. Followers that left their queue without a word are counted
// until the replica's next first token. Under pool.mu.
func (q *Request) unfollow() {
	if r := q.wait.follows; r != nil && r.round == q.wait.round {
		r.followers--
	}
	q.wait.follows = nil
}

// untilRoom estimates when a full replica has room for a request that lacks so
// many KV tokens: a request ends there at the usual interval, or is overdue.
// Seconds. Under pool.mu.
func (r *Replica) untilRoom(now time.Time, lack int) float64 {
	if r.ends.den == 0 {
		return 0
	}
	every := max(r.ends.value(), now.Sub(r.lastEnd).Seconds()/2)
	freed := max(1, r.kvInFlight()/max(1, r.inFlight))
	return every * float64(max(1, (lack+freed-1)/freed))
}

// ended notes the end of a request. Under pool.mu.
func (r *Replica) ended(now time.Time) {
	if !r.lastEnd.IsZero() {
		r.ends.add(max(0, now.Sub(r.lastEnd).Seconds()), 1)
	}
	r.lastEnd = now
}

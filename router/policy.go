package router

import (
	"math/rand/v2"
	"time"
)

// Policy picks one of the candidates. It is called under the pool's lock.
type Policy interface {
	// Pick returns a position in c.Candidates, or -1 for none. There is at least one.
	Pick(c *Choice) int
}

// newPolicy is the one place where a policy's name is read.
func newPolicy(name string) Policy {
	switch name {
	case "least_load":
		return leastLoad{}
	case "round_robin":
		return new(roundRobin)
	case "random_two":
		return randomTwo{}
	case "session":
		return session{}
	default:
		return prefix{}
	}
}

// Choice is one request and the replicas that could take it.
type Choice struct {
	Now     time.Time
	Request *Request
	// Candidates are the usable replicas with room.
	Candidates []Candidate
	// Full are the usable replicas without.
	Full []Candidate
	// MeanWaiting is how many requests wait for their first token on a replica
	// in the mean, those in the gateway's queue included; not those who wait
	// there for a prefix that is being computed.
	MeanWaiting float64
	// MeanStreams is how many streams run on a replica in the mean.
	MeanStreams float64
	// MeanInFlight is how many requests are bound to a replica in the mean.
	MeanInFlight float64
	// MeanUsual is the mean of the candidates' Usual, of the full ones too.
	MeanUsual float64
	// MeanTurns is the same of their Turns.
	MeanTurns float64
	// MeanUncached is how many tokens a request has to compute in the mean of
	// the last hundred or so.
	MeanUncached float64
	Rand         *rand.Rand

	o   *Options
	all []Candidate // every replica, in the order of the list
}

// Candidate is a replica as a policy sees it. The figures are those at the
// choice, under the pool's lock.
type Candidate struct {
	Replica  *Replica
	Matched  int     // leading blocks of the prompt that it holds
	Ready    int     // those whose prefill is over
	Uncached int     // tokens to compute there
	Pending  int     // tokens more than Uncached when nobody waits for the prefills under way
	InFlight int     // requests bound
	Queued   int     // uncached tokens reserved and not computed yet
	Reserved int     // the same without what must have been computed by now
	Waiting  int     // requests behind Queued
	Streams  int     // requests past their first token
	Usual    float64 // requests bound in the mean of late (usualSpan)
	Turns    float64 // requests bound of late (turnSpan), the older the less
	Input    int     // prompt tokens of the requests in flight
	KVTokens int     // the replica's KV capacity; 0: unknown
	Rate     float64 // prefill tokens per second
	Cost     float64 // seconds, where the policy prices

	version   uint64  // of the index at the match
	pinned    int     // leading blocks of the prompt that are pinned there
	followers int     // requests that wait for a prefix computed there
	otherKV   int     // KV tokens of other gateways' requests in flight
	lack      int     // KV tokens that it lacks for the request
	untilRoom float64 // seconds, where it has none
	usable    bool
	excluded  bool // by the request's Avoid or Only
}

// leastBy returns the candidate for which less is true against all others; of
// those that none beats, a random one.
func (c *Choice) leastBy(less func(a, b *Candidate) bool) int {
	best, ties := 0, 1
	for i := 1; i < len(c.Candidates); i++ {
		a, b := &c.Candidates[i], &c.Candidates[best]
		switch {
		case less(a, b):
			best, ties = i, 1
		case !less(b, a):
			if ties++; c.Rand.IntN(ties) == 0 {
				best = i
			}
		}
	}
	return best
}

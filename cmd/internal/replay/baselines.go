package replay

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"penstock/router"
)

// The policies of other routers, each written from its published description,
// with the published defaults. They bind at once: engines queue. In flight
// counts come from the router's reservations, but what each replica holds they
// remember themselves, as the routers that they stand for do: an LRU of what
// was sent there, as large as the KV cache.

// gatewayPolicies are those that the gateway itself offers; its round_robin is
// among the baselines and is run as one of them.
var gatewayPolicies = []string{"prefix", "least_load", "random_two", "session"}

var baselineNames = []string{"round_robin", "least_requests", "sglang", "llmd", "dynamo", "lmetric", "bounded_hash"}

// Policies are the names that a replay knows.
func Policies() []string { return slices.Concat(gatewayPolicies, baselineNames) }

// AllPolicies is what "all" means: the default and every baseline.
func AllPolicies() []string { return slices.Concat([]string{"prefix"}, baselineNames) }

// setPolicy makes the pool run the named policy; row is asked for the request in hand.
func setPolicy(o *router.Options, name string, t *Trace, f Fleet, row func() *Row) error {
	if slices.Contains(gatewayPolicies, name) {
		o.Policy = name
		return nil
	}
	pick, ok := map[string]func(*view) int{
		"round_robin": roundRobin, "least_requests": leastRequests, "sglang": sglang, "llmd": llmd,
		"dynamo": dynamo, "lmetric": lmetric, "bounded_hash": boundedHash,
	}[name]
	if !ok {
		return fmt.Errorf("policy %q: want all or some of %s", name, strings.Join(Policies(), ", "))
	}
	o.Eager = true
	b := &baseline{pick: pick, row: row, block: t.BlockTokens, capacity: f.KVTokens / t.BlockTokens}
	for range f.Replicas {
		b.sent = append(b.sent, newLRU(t.Blocks))
	}
	o.Custom = b
	return nil
}

// baseline runs one of the policies.
type baseline struct {
	pick     func(*view) int
	row      func() *Row
	sent     []lru // what went to each replica
	capacity int   // blocks of each
	block    int   // tokens
	turn     int
}

// view is one request before the replicas, as a baseline sees it.
type view struct {
	*router.Choice
	row      *Row
	matched  []int // blocks
	uncached []int // tokens
	turn     int
}

// Pick implements router.Policy. Every replica is a candidate: nothing is held
// and all are usable.
func (b *baseline) Pick(c *router.Choice) int {
	b.turn++
	v := &view{Choice: c, row: b.row(), turn: b.turn}
	for i := range c.Candidates {
		k := 0
		for k < len(v.row.Blocks) && b.sent[i].has(v.row.Blocks[k]) {
			k++
		}
		v.matched = append(v.matched, k)
		v.uncached = append(v.uncached, max(1, v.row.Input-k*b.block))
	}
	i := b.pick(v)
	l := &b.sent[i]
	for _, block := range slices.Backward(v.row.Blocks) {
		l.touch(block)
	}
	for l.size > b.capacity {
		l.drop(l.oldest())
	}
	return i
}

// least is the replica with the least cost, of equals a random one.
func (v *view) least(cost func(i int, k *router.Candidate) float64) int {
	best, lowest, ties := 0, math.Inf(1), 0
	for i := range v.Candidates {
		switch c := cost(i, &v.Candidates[i]); {
		case c < lowest:
			best, lowest, ties = i, c, 1
		case c == lowest:
			if ties++; v.Rand.IntN(ties) == 0 {
				best = i
			}
		}
	}
	return best
}

func roundRobin(v *view) int { return v.turn % len(v.Candidates) }

func leastRequests(v *view) int {
	return v.least(func(_ int, k *router.Candidate) float64 { return float64(k.InFlight) })
}

// sglang is the cache-aware policy of SGLang's router: the longest match when
// it covers more than 0.3 of the prompt, else the fewest requests; the fewest
// requests as well while the fleet is out of balance (by 64 and by 1.5 times).
func sglang(v *view) int {
	lo, hi, most := math.MaxInt, 0, 0
	for i := range v.Candidates {
		lo, hi = min(lo, v.Candidates[i].InFlight), max(hi, v.Candidates[i].InFlight)
		if v.matched[i] > v.matched[most] {
			most = i
		}
	}
	if hi-lo > 64 && float64(hi) > 1.5*float64(lo) {
		return leastRequests(v)
	}
	if 1-float64(v.uncached[most])/float64(v.row.Input) > 0.3 {
		return most
	}
	return leastRequests(v)
}

// llmd weighs three scores as llm-d's default does: queue 2, KV use 2, prefix 3.
func llmd(v *view) int {
	most := 1
	for i := range v.Candidates {
		most = max(most, v.Candidates[i].InFlight)
	}
	blocks := float64(max(1, len(v.row.Blocks)))
	return v.least(func(i int, k *router.Candidate) float64 {
		queue := 1 - float64(k.InFlight)/float64(most)
		kv := 1 - min(1, float64(k.Input)/float64(k.KVTokens))
		return -(2*queue + 2*kv + 3*float64(v.matched[i])/blocks)
	})
}

// dynamo is the cost of NVIDIA Dynamo's KV router: prefill after overlap plus decode blocks.
func dynamo(v *view) int {
	return v.least(func(i int, k *router.Candidate) float64 { return float64(k.Reserved + v.uncached[i] + k.Input) })
}

// lmetric multiplies the new prefill by the batch.
func lmetric(v *view) int {
	return v.least(func(i int, k *router.Candidate) float64 {
		return float64(k.Reserved+v.uncached[i]) * float64(k.InFlight+1)
	})
}

// firstBlocks is how much of a prompt bounded_hash hashes, and names a session by.
const firstBlocks = 4

// boundedHash is consistent hashing with bounded load (1.25 times the mean) on
// the first blocks of the prompt.
func boundedHash(v *view) int {
	total := 1
	for i := range v.Candidates {
		total += v.Candidates[i].InFlight
	}
	bound := int(math.Ceil(1.25 * float64(total) / float64(len(v.Candidates))))
	seed := uint64(0)
	if n := min(firstBlocks, len(v.row.Blocks)); n > 0 {
		seed = uint64(v.row.Blocks[n-1])
	}
	best, most := 0, uint64(0)
	for i := range v.Candidates {
		if v.Candidates[i].InFlight+1 > bound {
			continue
		}
		if h := mix(seed, uint64(i)); h >= most {
			best, most = i, h
		}
	}
	return best
}

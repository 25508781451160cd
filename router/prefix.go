package router

import "time"

// prefix is the default: the replica where this request costs everybody the
// least time to first token.
//
//	cost(i) = ( Q(i) + (1.25 + w(i) + mean w + 0.02 · d(i) + 0.5 · m(i)) · (u(i) + c) + 2 · ū · n(i) / mean n ) / r(i)
//	m(i) = d(i) / mean d + 2 · b(i) / mean b + 3 · n(i) / mean n
//
// The first term is the request's own wait. Its own work u, and the step that
// it takes however small it is (c), is paid once by itself, a quarter more since it
// takes cache and time from what nobody has sent yet, once by each request
// that waits behind it (those waiting now are the estimate of that), a little by
// each running stream, which it stalls, and more where more than the mean
// number of streams run (d), or of requests have run (b) or begun (n) of late:
// what is put there now comes back there with its next turns, and what was put
// there before does. The last term says so of a conversation that is at home
// nowhere yet, of which u tells no replica from another: as if two turns of
// the usual work (ū) were to come after it.
//
// It may be cheaper to wait than to take any of them: see wait.go.
type prefix struct{}

// ownWork is the weight of a request's own work against its wait. At 1 nothing
// but its own first token counts; on real agent sessions over four engines 1.25
// has a quarter fewer tokens computed twice, and in the replays about the same waits.
const ownWork = 1.25

func (prefix) Pick(c *Choice) int {
	for i := range c.Candidates {
		c.price(&c.Candidates[i])
	}
	best := c.leastBy(func(a, b *Candidate) bool {
		switch {
		case a.Cost != b.Cost:
			return a.Cost < b.Cost
		case a.Matched != b.Matched:
			return a.Matched > b.Matched
		default:
			return a.InFlight < b.InFlight
		}
	})
	if c.Request.MayWait && c.better(&c.Candidates[best]) {
		return -1
	}
	return best
}

const (
	// usualSpan is what "of late" means: some turns of a conversation.
	usualSpan = 15 * time.Second
	// usualWeight is what more requests of late than elsewhere count beside more
	// streams now. Of those who talk there, many are thinking at any moment: the
	// longer look sees them, and a conversation is seldom moved again.
	usualWeight = 2
	// turnSpan and turnWeight are the same for requests begun. How many run tells
	// of a replica's work, how many begin of its conversations: those with short
	// turns run seldom and come back often.
	turnSpan   = time.Minute
	turnWeight = 3
	// fewTurns is the mean up to which differences in them count for less: a
	// burst has to begin somewhere.
	fewTurns = 4
	// turnsAhead is how much more of the usual work a replica is expected to get
	// with a request, in requests, over BalanceWeight: enough to decide where a
	// conversation begins, too little to move one that has a prefix somewhere.
	turnsAhead = 4
)

// imbalance is how much busier than the mean a candidate is, now and of late.
func (c *Choice) imbalance(k *Candidate) float64 {
	return float64(k.Streams)/max(1, c.MeanStreams) + usualWeight*k.Usual/max(1, c.MeanUsual) + turnWeight*c.turnShare(k)
}

// turnShare is how many requests have begun on a candidate of late, over the
// mean. It counts in full where a request runs on each replica: with less there
// is nothing to balance, and a lone conversation stays where it is.
func (c *Choice) turnShare(k *Candidate) float64 {
	return k.Turns / max(fewTurns, c.MeanTurns) * min(1, c.MeanInFlight)
}

// price sets a candidate's cost.
func (c *Choice) price(k *Candidate) {
	streams := float64(k.Streams)
	payers := ownWork + float64(k.Waiting) + c.MeanWaiting + c.o.StreamWeight*streams + c.o.BalanceWeight*c.imbalance(k)
	step := c.o.StepTime.Seconds() * k.Rate
	tokens := float64(k.Queued) + payers*(float64(k.Uncached)+step)
	switch {
	case k.Pending == 0:
	case c.Request.MayWait:
		// The request follows in a step of its own, behind those who wait for the
		// prefix already. All of them would run on this replica: from some number
		// on it is cheaper to compute the prefix once more.
		tokens += step + float64(k.followers)*(float64(k.Uncached)+float64(k.Pending)/float64(c.o.Followers))
	default:
		tokens += payers * float64(k.Pending)
	}
	tokens += turnsAhead * c.o.BalanceWeight * c.MeanUncached * c.turnShare(k)
	k.Cost = tokens/k.Rate + k.untilRoom
}

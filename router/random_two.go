package router

// randomTwo draws two replicas and takes the one with fewer requests in flight:
// the power of two choices.
type randomTwo struct{}

func (randomTwo) Pick(c *Choice) int {
	n := len(c.Candidates)
	if n == 1 {
		return 0
	}
	i, j := c.Rand.IntN(n), c.Rand.IntN(n-1)
	if j >= i {
		j++
	}
	a, b := &c.Candidates[i], &c.Candidates[j]
	if b.InFlight < a.InFlight || b.InFlight == a.InFlight && b.Queued < a.Queued {
		return j
	}
	return i
}

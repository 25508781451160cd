package router

// leastLoad takes the replica with the fewest requests in flight, of those the
// one with the fewest tokens to prefill.
type leastLoad struct{}

func (leastLoad) Pick(c *Choice) int {
	return c.leastBy(func(a, b *Candidate) bool {
		if a.InFlight != b.InFlight {
			return a.InFlight < b.InFlight
		}
		return a.Queued < b.Queued
	})
}

package router

// prefix is the default: the replica where this request costs everybody the
// least time to first token.
//
//	cost(i) = ( Q(i) + (1 + w(i) + mean w + 0.02 · d(i)) · u(i) ) / r(i)
//
// The first term is the request's own wait. Its own work u is paid once by
// itself, once by each request that waits behind it (those waiting now are the
// estimate of that), and a little by each running stream, which it stalls.
type prefix struct{}

func (prefix) Pick(c *Choice) int {
	for i := range c.Candidates {
		k := &c.Candidates[i]
		payers := 1 + float64(k.Waiting) + c.MeanWaiting + c.StreamWeight*float64(k.Streams)
		k.Cost = (float64(k.Queued) + payers*float64(k.Uncached)) / k.Rate
	}
	return c.leastBy(func(a, b *Candidate) bool {
		switch {
		case a.Cost != b.Cost:
			return a.Cost < b.Cost
		case a.Matched != b.Matched:
			return a.Matched > b.Matched
		default:
			return a.InFlight < b.InFlight
		}
	})
}

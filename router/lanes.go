package router

// Scoring requests compute every prompt token and keep log-probabilities of all
// of them: they go where the fewest tokens wait for their prefill, bounded by a
// cap of their own on each replica, and stay out of the index. Embeddings are
// chosen by the pool's policy with nothing cached.

// scoreRoom says whether a scoring request fits under the replica's cap. One
// that is larger than the cap goes alone.
func (p *Pool) scoreRoom(q *Request, r *Replica) bool {
	return r.scoring == 0 || r.scoring+q.Tokens <= p.o.ScoreTokens
}

// fewestTokens is the candidate with the fewest outstanding prefill tokens.
func fewestTokens(c *Choice) int {
	return c.leastBy(func(a, b *Candidate) bool {
		if a.Queued != b.Queued {
			return a.Queued < b.Queued
		}
		return a.InFlight < b.InFlight
	})
}

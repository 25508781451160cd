package router

// roundRobin takes the candidates in turn. Its state is guarded by the pool's lock.
type roundRobin struct{ turn int }

func (p *roundRobin) Pick(c *Choice) int {
	p.turn++
	return p.turn % len(c.Candidates)
}

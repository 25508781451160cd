package local

import (
	"cmp"
	"slices"
	"time"
)

// exchange is one request being answered: its choices, and where they stand.
type exchange struct {
	srv     *Server
	call    *call
	id      string
	created int64
	gens    []*gen // bestOf for each prompt
	wake    chan struct{}
}

func (s *Server) newExchange(c *call, id string) *exchange {
	x := &exchange{srv: s, call: c, id: id, created: time.Now().Unix(), wake: make(chan struct{}, 1)}
	if !c.seeded {
		c.seed = s.ids.Add(1) ^ s.seed
	}
	for _, p := range c.prompts {
		for i := range c.bestOf {
			x.gens = append(x.gens, newGen(s.model, c, p.tokens, i, x.wake))
		}
	}
	return x
}

// chosen are the choices to answer with: the n best of each prompt, the same
// order kept when none is left out.
func (x *exchange) chosen() []*gen {
	c := x.call
	if c.bestOf == c.n {
		return x.gens
	}
	var out []*gen
	for group := range slices.Chunk(x.gens, c.bestOf) {
		best := slices.Clone(group)
		slices.SortStableFunc(best, func(a, b *gen) int { return cmp.Compare(b.mean(), a.mean()) })
		out = append(out, best[:c.n]...)
	}
	return out
}

// mean is the log-probability per token, by which best_of ranks.
func (g *gen) mean() float64 { return g.sum / float64(max(1, len(g.tokens))) }

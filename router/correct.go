package router

import "math"

const (
	// roomLeast bounds how far reported hits shrink a replica's index.
	roomLeast = 0.3
	// roomBack is how much a hit that came true weighs against one that did not.
	roomBack = 0.05
	// lostTokens and lostTimes: that many predicted hits in a row of at least so
	// many tokens, of which the engine found nothing, mean that its cache was
	// emptied without a word.
	lostTokens, lostTimes = 1024, 3
)

// correct compares a predicted hit with the reported one. Too much predicted
// means that the engine's cache holds less than thought: the index shrinks, and
// grows again while predictions come true. Too little predicted says nothing:
// engines cache their answers too. Engines that never reported a hit report
// none. Under pool.mu.
func (r *Replica) correct(predicted, cached, prompt int) {
	r.hits.add(predicted, cached, prompt)
	if r.hits.cached == 0 || predicted == 0 {
		return
	}
	if cached == 0 && predicted >= lostTokens {
		if r.lost++; r.lost >= lostTimes {
			r.lost = 0
			r.Flush()
		}
		return
	}
	r.lost = 0
	p := r.pool
	slack := max(2*p.o.BlockTokens, 2*r.capacity.PageSize)
	tokens := float64(predicted) * roomBack
	if over := predicted - cached; over > slack {
		tokens = -float64(over)
	}
	size := float64(r.indexUnits()) * p.tokensPerUnit()
	room := min(1, max(roomLeast, r.blockRoom*math.Exp(tokens/max(1, size))))
	if room != r.blockRoom {
		r.blockRoom = room
		r.sizeIndex()
	}
}

package router

import (
	"math"

	"github.com/zeebo/xxh3"
)

// sessionBound is how far above the mean a replica's requests in flight may be
// before a session goes to the next replica in its order.
const sessionBound = 1.25

// session sends the requests of one session to one replica: rendezvous hashing
// with bounded load. A replica that comes or goes moves only its own sessions.
// Requests that name no session go where the fewest requests are.
type session struct{}

func (session) Pick(c *Choice) int {
	if c.Request.Session == "" {
		return leastLoad{}.Pick(c)
	}
	total := 1
	for i := range c.Candidates {
		total += c.Candidates[i].InFlight
	}
	// The one with the fewest is always within the bound.
	bound := int(math.Ceil(sessionBound * float64(total) / float64(len(c.Candidates))))
	best, most := -1, uint64(0)
	for i := range c.Candidates {
		k := &c.Candidates[i]
		if k.InFlight+1 > bound {
			continue
		}
		if h := xxh3.HashStringSeed(c.Request.Session, k.Replica.hash); best < 0 || h > most {
			best, most = i, h
		}
	}
	return best
}

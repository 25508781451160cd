package engine

import "sync"

// rankCheck finds out whether an engine sends requests to the ranks they were
// addressed to. A status proves nothing (vLLM answers 200 to rank "abc"), but
// both engines count requests per rank.
//
// Requests that both began and ended within a window between two readings of
// these counters must show in the counter of their rank. What does not show
// there went elsewhere. Other clients of the engine only add to counters, so
// they can hide a mistake but never make one up. Windows are kept short, since
// over a long one an engine that deals requests out in turn has counters as
// even as the ranks sent.
type rankCheck struct {
	mu     sync.Mutex
	number uint64          // of the window; odd: open
	sent   map[int]float64 // requests of this window that have ended, by rank
	base   map[int]float64 // the counters when it was opened
	total  float64         // sent, over all windows judged
	missed float64         // of those, how many the counters do not show
}

// What it takes to say that ranks are ignored: so many requests looked at, and
// so many of them not found where they were sent.
const (
	rankCheckMin    = 50
	rankCheckMissed = 5
	rankCheckShare  = 0.1
	rankCheckMax    = 2000 // older windows count half from there on
)

// begin counts a request in; 0: no window is open.
func (c *rankCheck) begin() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.number%2 == 0 {
		return 0
	}
	return c.number
}

// end counts a request that was answered in full.
func (c *rankCheck) end(window uint64, rank int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if window == c.number && c.number%2 == 1 {
		c.sent[rank]++
	}
}

// close ends the window before the counters are read; want is false while too
// little was sent for a reading to be worth it, and the window stays open.
func (c *rankCheck) close(least int) (want bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.base == nil {
		return true
	}
	n := 0.0
	for _, k := range c.sent {
		n += k
	}
	if int(n) < least {
		return false
	}
	if c.number%2 == 1 {
		c.number++
	}
	return true
}

// read takes the counters after close, judges the window and opens the next.
// missed is more than 0 when the ranks turn out to be ignored.
func (c *rankCheck) read(counters map[int]float64) (missed, total int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.base != nil && c.number > 0 {
		c.judge(counters)
	}
	c.base, c.sent = counters, make(map[int]float64)
	c.number += 1 + c.number%2
	if c.total >= rankCheckMin && c.missed >= max(rankCheckMissed, rankCheckShare*c.total) {
		return int(c.missed), int(c.total)
	}
	if c.total > rankCheckMax {
		c.total, c.missed = c.total/2, c.missed/2
	}
	return 0, int(c.total)
}

// judge compares one window. Counters that fell belong to a restarted engine.
func (c *rankCheck) judge(counters map[int]float64) {
	var sent, missed float64
	for rank, was := range c.base {
		is, ok := counters[rank]
		if !ok || is < was {
			c.total, c.missed = 0, 0
			return
		}
		sent += c.sent[rank]
		missed += max(c.sent[rank]-(is-was), 0)
	}
	c.total += sent
	c.missed += missed
}

// verified is how many requests were found where they were sent.
func (c *rankCheck) verified() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return int(c.total - c.missed)
}

// reset forgets everything, after a restart.
func (c *rankCheck) reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.number += c.number % 2
	c.base, c.sent, c.total, c.missed = nil, nil, 0, 0
}

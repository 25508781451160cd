package engine

import (
	"context"
	"errors"
	"sync"
	"time"
)

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
	mu      sync.Mutex
	number  uint64          // of the window; odd: open
	opened  time.Time       // when it was opened
	blind   bool            // the engine has no such counters
	ended   []endedRequest  // of this window
	base    map[int]float64 // the counters when it was opened
	counted map[int]float64 // sent, by rank, when it was closed
	total   float64         // sent, over all windows judged
	missed  float64         // of those, how many the counters do not show
}

// endedRequest is one that began and ended within the window.
type endedRequest struct {
	rank int
	at   time.Time
}

// counterLag is how long an engine may take to count a request that it has
// answered: those that ended less before the reading do not count as sent.
const counterLag = 200 * time.Millisecond

// maxEnded bounds what is kept of a window. More requests only look like others' ones.
const maxEnded = 4096

// What it takes to say that ranks are ignored: so many requests looked at, and
// so many of them not found where they were sent.
const (
	rankCheckMin    = 50
	rankCheckMissed = 5
	rankCheckShare  = 0.05
	rankCheckMax    = 2000 // older windows count half from there on
)

// When a window is judged: with so many requests or, after a while, with one.
// Once the ranks are found to be right there is no hurry any more.
const (
	windowRequests = 4
	windowAge      = 10 * time.Second
	windowSlowAge  = time.Minute
	rankCheckSure  = 500
)

// rankCounter is the part of an adapter that counts requests by rank, as
// metrics label them. An engine without such counters returns none.
type rankCounter interface {
	rankCounters(ctx context.Context, c *client) (map[int]float64, error)
}

// checkRanks reads the counters when a window is worth it, and makes the URL
// one replica when they show that the ranks sent are ignored.
func (s *server) checkRanks(ctx context.Context) {
	a := s.adapter.Load()
	if a == nil || s.ranksIgnored.Load() || !s.ranked() {
		return
	}
	counter, ok := (*a).(rankCounter)
	if !ok || !s.ranks.close(time.Now()) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, s.settings.Load().health.LoadTimeout)
	defer cancel()
	counters, err := counter.rankCounters(ctx, s.client.Load())
	switch {
	case err != nil && !errors.Is(err, errNoLoad) && !notThere(err):
		s.ranks.reopen()
		return
	case err != nil || len(counters) < 2:
		s.ranks.giveUp()
		s.fleet.log.Warn("the engine has no counters by rank, so it cannot be seen whether it heeds the ranks sent",
			"replica", s.id, "hint", "SGLang has them with --enable-metrics")
		return
	}
	if missed, total := s.ranks.read(counters, time.Now()); missed > 0 {
		s.ignoreRanks(missed, total)
	}
}

func (s *server) ranked() bool {
	f := s.facts.Load()
	return f != nil && len(f.Ranks) > 1 && s.settings.Load().engine.DPRanks != "off"
}

// ignoreRanks makes the URL one replica.
func (s *server) ignoreRanks(missed, total int) {
	now := time.Now()
	f := s.fleet
	f.mu.Lock()
	if !s.removed && s.facts.Load() != nil {
		f.log.Error("the engine ignores data-parallel ranks: its URL is one replica from now on",
			"replica", s.id, "requests", total, "on_other_ranks", missed)
		f.events.add(Event{
			Type: RanksIgnored, Replica: s.replicas[0], Count: missed, At: now,
			Reason: "the engine's counters show requests on other ranks than those sent",
		})
		s.ranksIgnored.Store(true)
		s.layOut(s.facts.Load(), now)
	}
	f.mu.Unlock()
	f.events.flush()
}

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
func (c *rankCheck) end(window uint64, rank int, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if window == c.number && c.number%2 == 1 && len(c.ended) < maxEnded {
		c.ended = append(c.ended, endedRequest{rank, now})
	}
}

// sent counts the window's requests by rank.
func (c *rankCheck) sent(now time.Time) (byRank map[int]float64, all int) {
	byRank = make(map[int]float64)
	for _, e := range c.ended {
		if now.Sub(e.at) < counterLag {
			break
		}
		byRank[e.rank]++
		all++
	}
	return byRank, all
}

// close ends the window before the counters are read. ok is false while too
// little was sent for a reading to be worth it: the window stays open.
func (c *rankCheck) close(now time.Time) (ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.blind {
		return false
	}
	if c.base == nil {
		return true
	}
	age, least := now.Sub(c.opened), windowRequests
	if age >= windowAge {
		least = 1
	}
	byRank, all := c.sent(now)
	if all < least || c.total-c.missed >= rankCheckSure && age < windowSlowAge {
		return false
	}
	c.number += c.number % 2
	c.counted = byRank
	return true
}

// reopen goes on without a reading: what was sent in between counts for nothing.
func (c *rankCheck) reopen() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.base, c.ended = nil, nil
}

// giveUp stops the check until the engine starts anew.
func (c *rankCheck) giveUp() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.blind = true
}

// read takes the counters after close, judges the window and opens the next.
// missed is more than 0 when the ranks turn out to be ignored.
func (c *rankCheck) read(counters map[int]float64, now time.Time) (missed, total int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.base != nil && c.number > 0 {
		c.judge(counters)
	}
	c.base, c.ended, c.opened = counters, c.ended[:0], now
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
		sent += c.counted[rank]
		missed += max(c.counted[rank]-(is-was), 0)
	}
	c.total += sent
	c.missed += missed
}

// reset forgets everything, after a restart.
func (c *rankCheck) reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.number += c.number % 2
	c.base, c.ended, c.total, c.missed, c.blind = nil, nil, 0, 0, false
}

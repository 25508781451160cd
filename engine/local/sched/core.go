package sched

import (
	"slices"
	"time"
)

// Config sizes a Core. Zero values are those of the profile.
type Config struct {
	Profile   Profile
	MaxQueued int // 0: no limit
	// Observe, if not nil, is told of each task that ends. It must be quick.
	Observe func(Ended)
}

// Ended is what became of a task.
type Ended struct {
	Prompt, Cached, Generated int
	Aborted                   bool
	FirstToken, Total         time.Duration // since it came; FirstToken 0: none did
}

// Core is the scheduler of one rank: a queue, a batch, a cache. Each step
// computes a chunk of prompt tokens together with one token for every sequence
// that decodes. It has no clock and no lock: Start begins a step and says when
// it ends, Finish ends it.
type Core struct {
	cfg     Config
	cache   *Cache
	waiting []*Task // by arrival; those preempted come first
	running []*Task // by admission
	arrived uint64
	slow    float64 // multiplies the time of prefill; 0 is 1

	// The step that runs now.
	stepping bool
	prompts  int // prompt tokens in it
	busy     time.Duration
	begun    time.Time
	counts   Counts
}

// Counts are running totals.
type Counts struct {
	Requests, Aborted, Preempted, Rejected int64
	PromptTokens, CachedTokens             int64 // of tasks whose prompt was read
	GeneratedTokens                        int64
	PrefillTokens                          int64 // computed
	PrefillBusy                            time.Duration
	Steps                                  int64
}

// NewCore makes an empty scheduler.
func NewCore(cfg Config) *Core {
	p := &cfg.Profile
	p.Chunk = max(p.Chunk, 1)
	return &Core{cfg: cfg, cache: NewCache(p.KVTokens, p.PageSize)}
}

// Add queues a task at the time now.
func (c *Core) Add(t *Task, now time.Time) error {
	if len(t.Prompt) == 0 || c.cache.pages(len(t.Prompt)+t.Max) > c.cache.capacity {
		return ErrTooLong
	}
	if c.cfg.MaxQueued > 0 && len(c.waiting) >= c.cfg.MaxQueued {
		c.counts.Rejected++
		return ErrQueueFull
	}
	c.arrived++
	t.phase, t.come, t.ready, t.order = waiting, now, now.Add(c.cfg.Profile.Latency), c.arrived
	t.tokens, t.known, t.uncached = slices.Clip(t.Prompt), len(t.Prompt), len(t.Prompt)
	if !t.Fresh {
		t.uncached -= c.cache.Match(t.Prompt)
	}
	c.waiting = append(c.waiting, t)
	return nil
}

// Start begins a step at the time now and returns when it will end. There is
// none to begin when nothing is ready: idle, unless next says when something
// will be.
func (c *Core) Start(now time.Time) (end time.Time, ok bool) {
	c.prompts, c.begun = 0, now
	budget := c.cfg.Profile.Chunk
	decoding := 0
	for _, t := range c.running {
		if !t.reading() {
			decoding++
		}
	}
	for _, t := range c.running {
		if t.reading() {
			budget -= c.take(t, budget)
		}
	}
	c.admit(now, budget)
	if len(c.running) == 0 {
		return time.Time{}, false
	}
	c.stepping = true
	p := &c.cfg.Profile
	c.busy = p.prefill(c.prompts)
	if c.slow > 0 {
		c.busy = time.Duration(float64(c.busy) * c.slow)
	}
	if decoding == 0 {
		c.busy += p.Base
		return now.Add(c.busy), true
	}
	return now.Add(c.busy + p.decode(decoding)), true
}

// take gives a task its chunk of the step's budget.
func (c *Core) take(t *Task, budget int) int {
	t.chunk = min(budget, t.known-t.computed)
	c.prompts += t.chunk
	return t.chunk
}

// Next is when the first waiting task reaches the scheduler; zero if none waits.
func (c *Core) Next() time.Time {
	if len(c.waiting) == 0 {
		return time.Time{}
	}
	return slices.MinFunc(c.waiting, func(a, b *Task) int { return a.ready.Compare(b.ready) }).ready
}

// Finish ends the step that Start began, at the time that it returned.
func (c *Core) Finish(now time.Time) {
	c.stepping = false
	c.counts.Steps++
	if c.prompts > 0 {
		c.counts.PrefillTokens += int64(c.prompts)
		c.counts.PrefillBusy += c.busy
	}
	burst := 1
	if !c.cfg.Profile.timed() {
		burst = max(1, burstSize/len(c.running))
	}
	for _, t := range slices.Clone(c.running) {
		if t.phase == running { // not preempted by one before it
			c.advance(t, burst, now)
		}
	}
	c.running = slices.DeleteFunc(c.running, func(t *Task) bool { return t.phase != running })
}

// advance does one task's part of a step.
func (c *Core) advance(t *Task, burst int, now time.Time) {
	if t.reading() {
		if t.chunk == 0 {
			return // the step's budget went to others
		}
		t.computed += t.chunk
		t.chunk = 0
		c.store(t)
		if t.reading() {
			return
		}
	}
	if !t.read {
		t.read = true
		c.counts.PromptTokens += int64(len(t.Prompt))
		c.counts.CachedTokens += int64(t.cached)
		t.Seq.Prefilled(t.cached)
	}
	done := t.Max == 0
	for i := 0; i < burst && !done && t.phase == running; i++ {
		done = c.generate(t, now)
	}
	if done {
		c.end(t, false, now)
	}
	t.Seq.Signal()
}

// generate makes one token and finds room for the one after it.
func (c *Core) generate(t *Task, now time.Time) (done bool) {
	if t.first.IsZero() {
		t.first = now
	}
	w, done := t.Seq.Next()
	t.tokens = append(t.tokens, w)
	c.counts.GeneratedTokens++
	if done || t.generated() >= t.Max {
		return true
	}
	t.known = len(t.tokens)
	t.computed = t.known // its KV is computed in the step that makes the next token
	c.grow(t)
	return false
}

// store puts what has been computed into the cache.
func (c *Core) store(t *Task) {
	if !t.Private {
		t.at, t.stored = c.cache.Store(t.at, t.stored, t.tokens[:t.computed])
	}
}

// end takes a task out for good. Its place in running is freed by Finish.
func (c *Core) end(t *Task, aborted bool, now time.Time) {
	if t.phase == running {
		if t.read && !aborted {
			t.computed = len(t.tokens) - min(1, t.generated()) // the last token was never fed back
			c.store(t)
		}
		c.free(t)
	}
	t.phase = idle
	c.counts.Requests++
	if aborted {
		c.counts.Aborted++
	}
	if c.cfg.Observe != nil {
		e := Ended{Prompt: len(t.Prompt), Cached: t.cached, Generated: t.generated(), Aborted: aborted, Total: now.Sub(t.come)}
		if !t.first.IsZero() {
			e.FirstToken = t.first.Sub(t.come)
		}
		c.cfg.Observe(e)
	}
}

// free gives back all that a task holds in the cache.
func (c *Core) free(t *Task) {
	if t.at != nil {
		c.cache.Unpin(t.at)
	}
	c.cache.Release(t.held - t.stored)
	t.at, t.held, t.stored, t.computed = nil, 0, 0, 0
}

// Abort takes a task out, wherever it is.
func (c *Core) Abort(t *Task, now time.Time) {
	switch t.phase {
	case waiting:
		c.waiting = slices.DeleteFunc(c.waiting, func(o *Task) bool { return o == t })
		c.end(t, true, now)
	case running:
		c.end(t, true, now)
		if !c.stepping { // else Finish does it
			c.running = slices.DeleteFunc(c.running, func(o *Task) bool { return o == t })
		}
	}
}

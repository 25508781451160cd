package sched

import "time"

const (
	// growth is the part of a task's possible answer that room is kept for when
	// it is admitted: most answers end before their limit.
	growth = 0.7
	// growthMost bounds that room in tokens.
	growthMost = 4096
)

// admit moves waiting tasks into the batch, in order, as far as the step's
// budget, the running limit and the cache allow.
func (c *Core) admit(now time.Time, budget int) {
	spare := c.cache.Free()
	for _, t := range c.running {
		spare -= c.expected(t)
	}
	n := 0
	for ; n < len(c.waiting) && budget > 0 && len(c.running) < c.cfg.Profile.MaxRunning; n++ {
		t := c.waiting[n]
		if t.ready.After(now) {
			break
		}
		need, ok := c.join(t, spare)
		if !ok {
			break
		}
		spare -= need
		budget -= c.take(t, budget)
	}
	if n > 0 {
		c.waiting = append(c.waiting[:0], c.waiting[n:]...)
	}
}

// expected is how much a task is likely to grow yet.
func (c *Core) expected(t *Task) int {
	return int(growth * float64(min(t.Max-t.generated(), growthMost)))
}

// join admits t if it and its likely growth fit into spare tokens, or if it
// is alone. It returns what of spare is used.
func (c *Core) join(t *Task, spare int) (need int, ok bool) {
	at, cached := &c.cache.root, 0
	pinned := c.cache.Used()
	if !t.Fresh {
		// At least the last token is computed, for what comes after it.
		at, cached = c.cache.Pin(t.tokens[:t.known-1])
	}
	pinned = c.cache.Used() - pinned
	hold := c.cache.pages(t.known) - cached
	need = pinned + hold + c.expected(t)
	if (need > spare && len(c.running) > 0) || !c.cache.Reserve(hold) {
		c.cache.Unpin(at)
		return 0, false
	}
	t.at, t.stored, t.computed, t.held = at, cached, cached, cached+hold
	if !t.read {
		t.cached = cached
	}
	t.phase = running
	c.running = append(c.running, t)
	return need, true
}

// grow reserves room for the next token of t. When there is none the youngest
// task is preempted: it waits again, at the head of the queue.
func (c *Core) grow(t *Task) {
	for len(t.tokens) > t.held {
		if c.cache.Reserve(c.cache.page) {
			t.held += c.cache.page
			continue
		}
		victim := t
		for _, o := range c.running {
			if o.phase == running && o.order > victim.order {
				victim = o
			}
		}
		c.preempt(victim)
		if victim == t {
			return
		}
	}
}

// preempt sends a running task back to the queue. What it has computed stays in
// the cache as long as there is room.
func (c *Core) preempt(t *Task) {
	if !t.reading() && t.computed > 0 {
		t.computed = len(t.tokens) - 1
	}
	c.store(t)
	c.free(t)
	c.counts.Preempted++
	t.phase, t.known, t.chunk = waiting, len(t.tokens), 0
	c.waiting = append([]*Task{t}, c.waiting...)
}

// pages rounds n tokens up to whole pages.
func (c *Cache) pages(n int) int { return (n + c.page - 1) / c.page * c.page }

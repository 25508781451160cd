package sched

import (
	"sync"
	"time"
)

// maxLag is how far steps may trail behind the clock and catch up; a machine
// that stood still longer than that does not make up for it.
const maxLag = 250 * time.Millisecond

// Rank drives one Core by the clock. Its methods may be called from any
// goroutine; Close ends its own one.
type Rank struct {
	mu     sync.Mutex
	core   *Core
	frozen bool
	closed bool

	kick chan struct{} // capacity 1: there is something new
	quit chan struct{}
	done chan struct{}
}

// NewRank starts a rank.
func NewRank(cfg Config) *Rank {
	r := &Rank{core: NewCore(cfg), kick: make(chan struct{}, 1), quit: make(chan struct{}), done: make(chan struct{})}
	go r.run()
	return r
}

// Submit queues a task.
func (r *Rank) Submit(t *Task) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return ErrClosed
	}
	if err := r.core.Add(t, time.Now()); err != nil {
		return err
	}
	r.poke()
	return nil
}

// Abort takes a task out; one that has ended already is left alone. The
// sequence is not called again once Abort has returned.
func (r *Rank) Abort(t *Task) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.core.Abort(t, time.Now())
	r.poke()
}

// Freeze stops all work until it is called with false: a hung process.
func (r *Rank) Freeze(on bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.frozen = on
	r.poke()
}

// SlowPrefill multiplies the time of prefill from the next step on; 1 is the profile's own.
func (r *Rank) SlowPrefill(factor float64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.core.slow = factor
}

// Flush empties the cache but for what running sequences use. With idle it
// does so only if nothing runs or waits. It tells whether it did.
func (r *Rank) Flush(idle bool) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if idle && len(r.core.running)+len(r.core.waiting) > 0 {
		return false
	}
	r.core.cache.Flush()
	return true
}

// Load is what a rank has to do now, and what it has done.
type Load struct {
	Running, Waiting int
	WaitingUncached  int // tokens
	Used, Stored     int // cache tokens in use; in the tree, in use or not
	Capacity         int
	MaxRunning       int
	Counts
}

// Load is a snapshot.
func (r *Rank) Load() Load {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.core.Load()
}

// Load is a snapshot.
func (c *Core) Load() Load {
	l := Load{
		Waiting: len(c.waiting), Used: c.cache.Used(), Stored: c.cache.Stored(), Capacity: c.cache.Capacity(),
		MaxRunning: c.cfg.Profile.MaxRunning, Counts: c.counts,
	}
	for _, t := range c.running {
		if t.phase == running {
			l.Running++
		}
	}
	for _, t := range c.waiting {
		l.WaitingUncached += t.uncached
	}
	return l
}

// Close stops the rank; what runs or waits is never called again.
func (r *Rank) Close() {
	r.mu.Lock()
	if !r.closed {
		r.closed = true
		close(r.quit)
	}
	r.mu.Unlock()
	<-r.done
}

func (r *Rank) poke() {
	select {
	case r.kick <- struct{}{}:
	default:
	}
}

// run is the rank's goroutine. Steps follow each other in their own time, at,
// each from the end of the last, so that late timers do not add up.
func (r *Rank) run() {
	defer close(r.done)
	var at time.Time
	for {
		end, next, busy := r.start(at)
		if !busy {
			at = next
			if !r.sleep(next, true) {
				return
			}
			continue
		}
		if !r.sleep(end, false) || !r.finish(end) {
			return
		}
		at = end
	}
}

// start begins a step at the time at, or now if that is long ago. If there is
// nothing to do it tells when there will be, zero if that is not known.
func (r *Rank) start(at time.Time) (end, next time.Time, busy bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.frozen {
		return end, next, false
	}
	now := time.Now()
	if at.After(now) {
		return end, at, false
	}
	if now.Sub(at) > maxLag || !r.core.cfg.Profile.timed() {
		at = now
	}
	if end, busy = r.core.Start(at); busy {
		return end, next, true
	}
	return end, r.core.Next(), false
}

// finish ends the step, once the rank is not frozen. It is false when the rank is closed.
func (r *Rank) finish(end time.Time) bool {
	r.mu.Lock()
	for r.frozen {
		r.mu.Unlock()
		if !r.sleep(time.Time{}, true) {
			return false
		}
		r.mu.Lock()
	}
	defer r.mu.Unlock()
	r.core.Finish(end)
	return !r.closed
}

// sleep waits until the time t, for ever if it is zero, or, if asked, until
// something new comes. It is false when the rank is closed.
func (r *Rank) sleep(t time.Time, early bool) bool {
	var timer <-chan time.Time
	if !t.IsZero() {
		d := time.Until(t)
		if d <= 0 {
			select {
			case <-r.quit:
				return false
			default:
				return true
			}
		}
		timer = time.After(d)
	}
	var kick chan struct{}
	if early {
		kick = r.kick
	}
	select {
	case <-timer:
	case <-kick:
	case <-r.quit:
		return false
	}
	return true
}

package router

import "time"

// Load is what an engine reports about one replica. A negative number means
// that it does not tell.
type Load struct {
	Running       int           // requests running
	Waiting       int           // requests waiting in the engine's own queue
	WaitingTokens int           // uncached tokens of those
	PrefillRate   float64       // tokens per second while prefilling; 0: unknown
	Age           time.Duration // since the engine read these figures
}

// engine is the last load report of a replica.
type engine struct {
	load  Load
	at    time.Time // when the figures were true
	stuck int       // reports in a row with requests waiting at the same running count
}

// Observe takes what the engine reports.
func (r *Replica) Observe(now time.Time, l Load) {
	p := r.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	r.learnRunning(l)
	r.engine.load, r.engine.at = l, now.Add(-l.Age)
}

// learnRunning finds the running limit of an engine that does not tell it: the
// running count that stands still while requests wait.
func (r *Replica) learnRunning(l Load) {
	const enough = 3 // reports in a row
	if r.capacity.MaxRunning > 0 || l.Running <= 0 {
		return
	}
	if l.Running > r.maxRunning {
		r.maxRunning = l.Running
	}
	if l.Waiting > 0 && l.Running == r.engine.load.Running {
		r.engine.stuck++
	} else {
		r.engine.stuck = 0
	}
	if r.engine.stuck >= enough && l.Running < r.maxRunning {
		r.maxRunning = l.Running
	}
}

// foreign are uncached tokens that wait in the engine's queue and are not ours.
func (r *Replica) foreign(now time.Time) int { return 0 }

// strangers are requests running on the engine that are not ours.
func (r *Replica) strangers() int { return 0 }

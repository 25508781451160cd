package router

import (
	"container/heap"
	"time"
)

// Load is what an engine reports about one replica. A negative number means
// that it does not tell.
type Load struct {
	Running       int           // requests running
	Waiting       int           // requests waiting in the engine's own queue
	WaitingTokens int           // uncached tokens of those
	PrefillRate   float64       // tokens per second while prefilling; 0: unknown
	Age           time.Duration // since the engine read these figures
}

const (
	// reportLife is how long a report is believed.
	reportLife = 10 * time.Second
	// reportWeight is the weight of a new rate in the moving mean.
	reportWeight = 0.3
)

// engine is what the load reports of a replica come to.
type engine struct {
	load    Load
	at      time.Time // when the figures were true; zero: none yet
	stuck   int       // reports in a row with requests waiting at the same running count
	foreign int       // uncached tokens waiting there that are not ours
	others  int       // requests there that are not ours
	rate    float64   // moving mean of the reported prefill rate; 0: not told
}

// reports are the rates that a pool's engines report.
type reports struct {
	sum float64
	n   int
}

// mean is the rate that the others report; 0 when none does.
func (s *reports) mean(except *Replica) float64 {
	if s.n < 2 {
		return 0
	}
	return (s.sum - except.engine.rate) / float64(s.n-1)
}

// Observe takes what the engine reports.
func (r *Replica) Observe(now time.Time, l Load) {
	p := r.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	r.learnRunning(l)
	e := &r.engine
	e.load, e.at = l, now.Add(-l.Age)
	others := r.remote.sum(now)
	e.foreign = max(0, l.WaitingTokens-r.queued-others.queued)
	// Requests may have ended since the figures were read: the most that were
	// here since the last report are ours.
	e.others = max(0, l.Running+max(0, l.Waiting)-r.peak-others.inFlight)
	r.peak = r.inFlight
	p.reported(r, l.PrefillRate)
	if l.Waiting == 0 && l.WaitingTokens <= 0 {
		p.releaseEarly(r)
	}
}

// reported takes a reported prefill rate into the moving means.
func (p *Pool) reported(r *Replica, rate float64) {
	if rate <= 0 || r.gone {
		return
	}
	before := r.engine.rate
	if before == 0 {
		r.engine.rate = rate
		p.reports.n++
	} else {
		r.engine.rate += reportWeight * (rate - before)
	}
	p.reports.sum += r.engine.rate - before
}

// releaseEarly brings forward the predicted first tokens of unstreamed answers
// on a replica where nothing waits: what was sent before the report is being
// computed.
func (p *Pool) releaseEarly(r *Replica) {
	for _, l := range r.order {
		if l == nil || l.prefilled || l.dueAtHeap < 0 || !l.sent.Before(r.engine.at) {
			continue
		}
		if due := r.engine.at.Add(p.prefillTime(r, l.own)); due.Before(l.dueAt) {
			l.dueAt = due
			heap.Fix(&p.due, l.dueAtHeap)
		}
	}
}

// foreignTokens are the uncached tokens that wait in the engine's queue and are
// not ours, as far as they are left by now. Under pool.mu.
func (r *Replica) foreignTokens(now time.Time) int {
	e := &r.engine
	if e.foreign == 0 || now.Sub(e.at) > reportLife {
		return 0
	}
	return max(0, e.foreign-int(r.prefillRate()*now.Sub(e.at).Seconds()))
}

// strangers are the requests on the engine that are not ours. Under pool.mu.
func (r *Replica) strangers(now time.Time) int {
	if now.Sub(r.engine.at) > reportLife {
		return 0
	}
	return r.engine.others
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

package router

import (
	"math"
	"time"
)

const (
	// startRate is the fleet's prefill rate in tokens per second before anything
	// is known. Only its ratio to others matters, and there are none yet.
	startRate = 58000
	// priorTime is the weight of the fleet's start, in seconds of prefill.
	priorTime = 3.0
	// priorPrefills is the weight of the others' rate in a replica's own, in
	// prefills as long as the usual one.
	priorPrefills = 6
	// ownDecay and fleetDecay forget old observations, per observation.
	ownDecay, fleetDecay = 0.97, 0.997
	// offBy is how far a replica's rate must be from the fleet's before it is
	// believed: equal replicas look different in every sample.
	offBy = 2.0
)

// rate is work over time as a ratio of decayed sums, in tokens and seconds, of
// n observations.
type rate struct{ work, time, n float64 }

func (r *rate) value() float64 { return r.work / r.time }

func (r *rate) add(decay, work, time float64) {
	r.work = r.work*decay + work
	r.time = r.time*decay + time
	r.n = r.n*decay + 1
}

// learn takes one observed prefill: work tokens, those queued before it
// included, in the time from binding to the first token. Under pool.mu.
func (r *Replica) learn(work int, took time.Duration) {
	if took <= 0 || work <= 0 {
		return
	}
	p := r.pool
	before := r.rate
	r.rate.add(ownDecay, float64(work), took.Seconds())
	if !r.gone {
		p.sum.work += r.rate.work - before.work
		p.sum.time += r.rate.time - before.time
		p.sum.n += r.rate.n - before.n
	}
	own, others := r.ownRate(), r.othersRate()
	r.off = own < others/offBy || own > others*offBy
	if !r.off || own > others { // a slow one does not make the others look slow
		p.rates.add(fleetDecay, float64(work), took.Seconds())
	}
}

// ownRate is the replica's own rate, shrunk to that of the others.
func (r *Replica) ownRate() float64 {
	prior := priorPrefills * r.pool.sum.time / max(1, r.pool.sum.n)
	return (r.rate.work + prior*r.othersRate()) / max(1e-9, r.rate.time+prior)
}

// othersRate is the rate of all but this one, shrunk to the fleet's.
func (r *Replica) othersRate() float64 {
	s, fleet := r.pool.sum, r.pool.rates.value()
	prior := priorPrefills * s.time / max(1, s.n)
	return (max(0, s.work-r.rate.work) + prior*fleet) / max(1e-9, max(0, s.time-r.rate.time)+prior)
}

// prefillRate is the replica's rate in tokens per second: the fleet's unless
// its own is off by a factor of two, by what the engines report where they do,
// else by its own traffic. Under pool.mu.
func (r *Replica) prefillRate() float64 {
	fleet := r.pool.rates.value()
	if mean := r.pool.reports.mean(r); r.engine.rate > 0 && mean > 0 {
		if ratio := r.engine.rate / mean; ratio < 1/offBy || ratio > offBy {
			return fleet * ratio
		}
		return fleet
	}
	if r.off {
		return r.ownRate()
	}
	return fleet
}

// backlog is Q less what the replica must have computed of its first request by
// now. Under pool.mu.
func (r *Replica) backlog(now time.Time) int {
	for len(r.order) > 0 && r.order[0].prefilled {
		r.order[0] = nil
		r.order = r.order[1:]
	}
	if len(r.order) == 0 {
		return r.queued
	}
	const most = 0.9 // the end is known when it is seen
	done := min(most*float64(r.order[0].own), r.prefillRate()*now.Sub(r.started).Seconds())
	return max(0, r.queued-int(max(0, done)))
}

// ratio is a learned ratio of decayed sums.
type ratio struct{ num, den, decay float64 }

func (r *ratio) add(num, den float64) {
	r.num = r.num*r.decay + num
	r.den = r.den*r.decay + den
}

func (r *ratio) value() float64 { return r.num / r.den }

// level is a moving mean over time of something looked at now and then.
type level struct {
	value float64
	at    time.Time // when it was looked at last; zero: never
}

// look takes what is seen now, which counts for as long as nobody looked, and
// returns the mean over about the span.
func (l *level) look(now time.Time, seen float64, span time.Duration) float64 {
	if l.at.IsZero() {
		l.at = now
	}
	if since := now.Sub(l.at); since > 0 { // two who choose at once may come in the other order
		l.value += (seen - l.value) * float64(since) / float64(since+span)
		l.at = now
	}
	return l.value
}

// fading is a count of what happened of late: what did so a span ago counts 1/e.
type fading struct {
	count float64
	at    time.Time // of the count; zero: nothing yet
}

func (f *fading) value(now time.Time, span time.Duration) float64 {
	return f.count * math.Exp(-float64(max(0, now.Sub(f.at)))/float64(span))
}

func (f *fading) add(now time.Time, n float64, span time.Duration) {
	f.count = f.value(now, span) + n
	if now.After(f.at) {
		f.at = now
	}
}

// PrefillRate is the fleet's rate in tokens per second.
func (p *Pool) PrefillRate() float64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.rates.value()
}

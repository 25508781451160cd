package engine

import (
	"errors"
	"net/http"
	"sync/atomic"

	"github.com/sony/gobreaker/v2"

	"penstock/configs"
)

// Outcome is what an attempt says about its engine.
type Outcome uint8

const (
	// Neutral says nothing of the engine's health: the client's own error or
	// leaving, or 429 and 503, by which a busy engine asks for less.
	Neutral Outcome = iota
	// Success: the first byte of an answer came.
	Success
	// Failure: connecting failed, the connection broke, a 5xx came, or no first
	// token within its deadline.
	Failure
	// Unreachable is a failure to connect. Besides, the engine is probed at once.
	Unreachable
)

// OutcomeOf is what a status says.
func OutcomeOf(status int) Outcome {
	switch {
	case status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable:
		return Neutral
	case status >= http.StatusInternalServerError:
		return Failure
	case status >= http.StatusBadRequest:
		return Neutral
	default:
		return Success
	}
}

var (
	errFailure = errors.New("failure")
	errNeutral = errors.New("neutral")
)

// breaker is the circuit breaker of one URL. The fleet's lock must not be
// taken in its callbacks, which run under the breaker's own; they leave marks
// in atomics, and whoever made the call has the fleet look at them.
type breaker struct {
	cb     *gobreaker.TwoStepCircuitBreaker[struct{}]
	trials uint32

	current atomic.Int32 // gobreaker.State
	full    atomic.Bool  // half-open, and all trials given out
	moved   atomic.Bool  // the fleet has not looked since current or full changed
	shown   State        // what was last told; guarded by the fleet's lock
	others  atomic.Bool  // another URL of the model can serve: this one may open
}

// newBreaker makes a closed breaker. Counts older than the window fall away in
// tenths of it, so that a result is never dropped for being slow.
func newBreaker(cfg configs.Breaker) *breaker {
	b := &breaker{trials: uint32(max(cfg.Trials, 1)), shown: StateHealthy}
	b.cb = gobreaker.NewTwoStepCircuitBreaker[struct{}](gobreaker.Settings{
		MaxRequests:  b.trials,
		Interval:     cfg.Window,
		BucketPeriod: cfg.Window / 10,
		Timeout:      cfg.Open,
		ReadyToTrip: func(c gobreaker.Counts) bool {
			return b.others.Load() && trips(c, cfg)
		},
		OnStateChange: func(_ string, _, to gobreaker.State) {
			b.current.Store(int32(to))
			b.full.Store(false)
			b.moved.Store(true)
		},
		IsExcluded: func(err error) bool { return errors.Is(err, errNeutral) },
	})
	return b
}

func trips(c gobreaker.Counts, cfg configs.Breaker) bool {
	if cfg.Failures > 0 && int(c.ConsecutiveFailures) >= cfg.Failures {
		return true
	}
	judged := c.TotalFailures + c.TotalSuccesses
	return cfg.Ratio > 0 && int(judged) >= cfg.MinRequests &&
		float64(c.TotalFailures) >= cfg.Ratio*float64(judged)
}

func (b *breaker) is(s gobreaker.State) bool { return gobreaker.State(b.current.Load()) == s }

// state is what is shown of a replica that answers.
func (b *breaker) state() State {
	switch gobreaker.State(b.current.Load()) {
	case gobreaker.StateOpen:
		return StateOpen
	case gobreaker.StateHalfOpen:
		return StateHalfOpen
	default:
		return StateHealthy
	}
}

// passes says whether it lets a request through now.
func (b *breaker) passes() bool {
	return !b.is(gobreaker.StateOpen) && !b.full.Load()
}

// allow asks for one request to be let through. done must be called once.
func (b *breaker) allow() (done func(Outcome), err error) {
	report, err := b.cb.Allow()
	b.countTrials()
	if err != nil {
		return nil, ErrOpen
	}
	return func(o Outcome) {
		switch o {
		case Success:
			report(nil)
		case Neutral:
			report(errNeutral)
		default:
			report(errFailure)
		}
		b.countTrials()
	}, nil
}

// countTrials looks, in half-open, whether all trials are given out.
func (b *breaker) countTrials() {
	if !b.is(gobreaker.StateHalfOpen) {
		return
	}
	c := b.cb.Counts()
	full := c.Requests-c.TotalExclusions >= b.trials
	if b.full.Swap(full) != full {
		b.moved.Store(true)
	}
}

// Allow asks the breaker to let one request through; done must be called
// exactly once, as soon as the first byte or the failure is there. Failures
// after the first byte are reported by Failed. ErrOpen: choose another.
func (r *Replica) Allow() (done func(Outcome), err error) {
	s := r.server
	b := s.breaker.Load()
	report, err := b.allow()
	if err != nil {
		if !s.lastResort.Load() {
			s.breakerMoved(b)
			return nil, err
		}
		report = func(Outcome) {}
	}
	s.breakerMoved(b)
	return func(o Outcome) {
		report(o)
		s.breakerMoved(b)
		s.saw(o)
	}, nil
}

// Failed reports a failure after the first byte: a stream that broke off.
func (r *Replica) Failed() {
	if done, err := r.Allow(); err == nil {
		done(Failure)
	}
}

package engine

import (
	"context"
	"errors"
	"math/rand/v2"
	"syscall"
	"time"
)

// Pauses between attempts at first contact, doubled up to the probes' interval.
const firstPause = 50 * time.Millisecond

// refusedPause is between probes while connections are refused: such an answer
// costs nothing, and says more than a slow one.
const refusedPause = 250 * time.Millisecond

// probeLoop is a server's life: first contact, then probes.
func (s *server) probeLoop(ctx context.Context) {
	pause := firstPause
	for ctx.Err() == nil {
		begun := time.Now()
		var err error
		if s.facts.Load() == nil {
			err = s.contact(ctx)
		} else {
			err = s.check(ctx)
		}
		interval := s.settings.Load().health.Interval
		wait := interval
		switch {
		case s.facts.Load() == nil:
			wait = min(pause, interval)
			pause = 2 * wait
		case isRefused(err):
			wait = min(refusedPause, interval)
		}
		s.sleep(ctx, jitter(wait)-time.Since(begun))
	}
}

// sleep waits, or until something calls for a probe at once.
func (s *server) sleep(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	case <-s.kick:
	}
}

// jitter keeps the probes of many engines apart: ± 10 %.
func jitter(d time.Duration) time.Duration {
	return d - d/10 + rand.N(d/5+1)
}

// contact is the attempt to learn what the engine is.
func (s *server) contact(ctx context.Context) error {
	facts, err := s.discover(ctx)
	if ctx.Err() != nil {
		return err
	}
	now := time.Now()
	s.fleet.mu.Lock()
	if err == nil {
		s.adopt(facts, now)
		s.setPhase(healthy, "", now)
	} else {
		s.fails++
		if s.fails == 1 || s.fails%100 == 0 {
			s.fleet.log.Info("engine does not answer yet", "replica", s.id, "url", s.target.url, "error", err)
		}
	}
	s.fleet.mu.Unlock()
	s.fleet.events.flush()
	return err
}

// check is one probe of a known engine, and a new reading of its facts when
// one is due.
func (s *server) check(ctx context.Context) error {
	begun := time.Now()
	err := s.probe(ctx)
	if ctx.Err() != nil {
		return err
	}
	var facts *Facts
	if err == nil && s.dueRefresh(begun) {
		if facts, err = s.discover(ctx); err != nil {
			s.fleet.log.Debug("engine did not tell its facts", "replica", s.id, "error", err)
			err = nil // it answers; the facts of before hold
		}
	}
	now := time.Now()
	s.fleet.mu.Lock()
	if facts != nil {
		s.adopt(facts, now)
		s.refreshed = now
	}
	s.judgeProbe(begun, now, err)
	s.fleet.mu.Unlock()
	s.fleet.events.flush()
	return err
}

// dueRefresh says whether the facts are to be read again: from time to time,
// when something hints at a restart, and before a replica is taken back.
func (s *server) dueRefresh(now time.Time) bool {
	s.fleet.mu.Lock()
	defer s.fleet.mu.Unlock()
	if s.refreshed.IsZero() {
		s.refreshed = now
	}
	every := s.settings.Load().health.RefreshInterval
	return s.refresh || s.refused || phase(s.phase.Load()) != healthy ||
		every > 0 && now.Sub(s.refreshed) >= every
}

func (s *server) probe(ctx context.Context) error {
	set := s.settings.Load().health
	ctx, cancel := context.WithTimeout(ctx, set.Timeout)
	defer cancel()
	c := s.client.Load()
	if set.Path != "" {
		_, err := c.get(ctx, set.Path)
		return err
	}
	a := s.adapter.Load()
	if a == nil { // a reload changed the kind
		return (&openai{}).probe(ctx, c)
	}
	return (*a).probe(ctx, c)
}

// judgeProbe counts a probe. One that failed while bytes of an answer came is
// not counted: the engine is busy, not gone. A refused connection is: what
// streams still may end, but nothing new can begin. The fleet's lock is held.
func (s *server) judgeProbe(begun, now time.Time, err error) {
	set := s.settings.Load().health
	if err == nil {
		s.fails = 0
		s.oks++
		if phase(s.phase.Load()) != healthy && s.oks >= set.Healthy {
			s.setPhase(healthy, "", now)
		}
		return
	}
	s.oks = 0
	s.tell(ProbeFailed, err.Error(), now)
	if isRefused(err) {
		s.refused = true
	} else if s.lastAnswer.Load() >= begun.UnixNano() {
		s.fails = 0
		return
	}
	s.fails++
	if phase(s.phase.Load()) == healthy && s.fails >= set.Unhealthy {
		s.setPhase(unhealthy, err.Error(), now)
	}
}

// setPhase moves a server between healthy and unhealthy and tells of it. The
// fleet's lock is held.
func (s *server) setPhase(p phase, reason string, now time.Time) {
	if phase(s.phase.Swap(int32(p))) == p || s.removed {
		return
	}
	s.fails, s.oks = 0, 0
	if s.group != nil {
		s.fleet.judge(s.group)
	}
	if p == healthy {
		s.fleet.log.Info("replica is healthy", "replica", s.id)
		s.tell(Healthy, "", now)
		return
	}
	s.fleet.log.Warn("replica is unhealthy", "replica", s.id, "error", reason)
	s.tell(Unhealthy, reason, now)
}

func isRefused(err error) bool { return errors.Is(err, syscall.ECONNREFUSED) }

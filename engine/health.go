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
	facts, err := s.discover(ctx, true)
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

// check is one probe of a known engine. One that comes back is asked for its
// facts before it is taken back, since it may be another process.
func (s *server) check(ctx context.Context) error {
	begun := time.Now()
	err := s.probe(ctx)
	if ctx.Err() != nil {
		return err
	}
	if err == nil && phase(s.phase.Load()) != healthy {
		if again := s.reread(ctx); s.wasRefused() {
			err = again // it is being started, and not ready yet
		}
	}
	if set := s.settings.Load(); notThere(err) && set.health.Path == "" && set.engine.Kind == "" {
		_ = s.reread(ctx) // something answers, but not what was there: the next probe is for that
	}
	now := time.Now()
	s.fleet.mu.Lock()
	s.judgeProbe(begun, now, err)
	s.fleet.mu.Unlock()
	s.fleet.events.flush()
	return err
}

// rereadPause is the least time between two readings of an engine's facts
// when one has failed.
const rereadPause = 10 * time.Second

// dueReread says whether the facts are to be read again: from time to time,
// and when something hints at a restart.
func (s *server) dueReread(now time.Time) bool {
	s.fleet.mu.Lock()
	defer s.fleet.mu.Unlock()
	if now.Before(s.notBefore) {
		return false
	}
	if s.readAt.IsZero() {
		s.readAt = now
	}
	every := s.settings.Load().health.RefreshInterval
	return s.refresh || s.refused || every > 0 && now.Sub(s.readAt) >= every
}

func (s *server) wasRefused() bool {
	s.fleet.mu.Lock()
	defer s.fleet.mu.Unlock()
	return s.refused
}

// reread asks a known engine for its facts again. Without an answer those of
// before hold.
func (s *server) reread(ctx context.Context) error {
	facts, err := s.discover(ctx, s.wasRefused())
	now := time.Now()
	s.fleet.mu.Lock()
	switch {
	case ctx.Err() != nil || s.removed:
	case err != nil:
		s.fleet.log.Debug("engine did not tell its facts", "replica", s.id, "error", err)
		s.notBefore = now.Add(rereadPause)
	default:
		s.adopt(facts, now)
		s.readAt = now
	}
	s.fleet.mu.Unlock()
	s.fleet.events.flush()
	return err
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
		if s.refused {
			s.ask()
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

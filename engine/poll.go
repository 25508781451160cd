package engine

import (
	"context"
	"errors"
	"time"
)

// runningLimit learns how many requests a rank runs at once, where its engine
// does not tell.
type runningLimit struct {
	limit   int
	waiting int // polls in a row with requests waiting and the same number running
	running int // at the poll before
	most    int // running at once, ever: the limit is no lower
}

// pollLoop reads the engine's load as long as it answers, and its facts from
// time to time. It goes on beside the probes, since an engine may take long
// over either.
func (s *server) pollLoop(ctx context.Context) {
	for ctx.Err() == nil {
		wait := s.pollEvery()
		if s.facts.Load() != nil && phase(s.phase.Load()) == healthy {
			if s.dueReread(time.Now()) {
				_ = s.reread(ctx) // the facts of before hold
			}
			if errors.Is(s.poll(ctx), errNoLoad) {
				wait = max(wait, s.settings.Load().health.RefreshInterval)
			}
			s.checkRanks(ctx)
		} else {
			wait = min(wait, 250*time.Millisecond)
		}
		t := time.NewTimer(jitter(wait))
		select {
		case <-ctx.Done():
		case <-t.C:
		case <-s.look:
		}
		t.Stop()
	}
}

// pollEvery is the configured interval up to 100 URLs, and longer in
// proportion beyond.
func (s *server) pollEvery() time.Duration {
	s.fleet.mu.Lock()
	n := s.fleet.count()
	s.fleet.mu.Unlock()
	return s.settings.Load().health.LoadInterval * time.Duration(max(n, 100)) / 100
}

// poll reads the load once.
func (s *server) poll(ctx context.Context) error {
	a := s.adapter.Load()
	if a == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, s.settings.Load().health.LoadTimeout)
	defer cancel()
	loads, err := (*a).load(ctx, s.client.Load())
	if ctx.Err() != nil && err == nil {
		err = ctx.Err()
	}
	if errors.Is(err, errNoLoad) {
		return err
	}
	now := time.Now()
	s.fleet.mu.Lock()
	switch {
	case s.removed:
	case err != nil:
		s.tell(PollFailed, err.Error(), now)
	default:
		s.takeLoads(loads, now)
	}
	s.fleet.mu.Unlock()
	s.fleet.events.flush()
	return err
}

// takeLoads gives every replica its part of a poll. The fleet's lock is held.
func (s *server) takeLoads(loads []rankLoad, now time.Time) {
	byRank := make(map[int]rankLoad, len(loads))
	for _, l := range loads {
		if prev, ok := s.prev[l.rank]; ok {
			if fell(prev.prefillTokens, l.prefillTokens) || fell(prev.requests, l.requests) ||
				prev.capacity != l.capacity {
				s.refresh = true
				s.ask()
			}
			l.PrefillRate = prefillRate(prev, l)
		}
		l.At = now
		byRank[l.rank] = l
	}
	s.prev = byRank
	for _, r := range s.replicas {
		var l Load
		if r.label < 0 {
			l = sumLoads(byRank, now)
		} else if one, ok := byRank[r.label]; ok {
			l = one.Load
		} else {
			continue
		}
		r.load.Store(&l)
		s.fleet.events.add(Event{Type: LoadReported, Replica: r, Load: l, At: now})
		s.learn(r, l, now)
	}
}

// fell says whether a counter went back, as it does when a process starts anew.
func fell(was, is float64) bool { return was >= 0 && is >= 0 && is < was }

// maxPrefillRate is far above what any engine computes in tokens per second.
const maxPrefillRate = 1e9

// prefillRate follows from the two counters since the poll before; without
// prefill in between, or with nonsense in the counters, the last rate stays.
func prefillRate(prev, l rankLoad) float64 {
	if l.prefillBusy < 0 || prev.prefillBusy < 0 || l.prefillBusy <= prev.prefillBusy ||
		l.prefillTokens <= prev.prefillTokens {
		return prev.PrefillRate
	}
	rate := (l.prefillTokens - prev.prefillTokens) / (l.prefillBusy - prev.prefillBusy)
	if !(rate <= maxPrefillRate) { // NaN is no rate either
		return prev.PrefillRate
	}
	return rate
}

// sumLoads is the load of a URL that is one replica.
func sumLoads(byRank map[int]rankLoad, now time.Time) Load {
	sum := Load{At: now}
	for _, l := range byRank {
		sum.Running += l.Running
		sum.Waiting += l.Waiting
		sum.PrefillRate += l.PrefillRate
		sum.WaitingUncached = addKnown(sum.WaitingUncached, l.WaitingUncached)
		sum.UsedTokens = addKnown(sum.UsedTokens, l.UsedTokens)
	}
	return sum
}

func addKnown(a, b int) int {
	if a < 0 || b < 0 {
		return -1
	}
	return a + b
}

// learn follows an engine's running limit: the running count at which requests
// begin to wait while it stays the same and the cache has room; more where the
// limit is reached and none wait. The fleet's lock is held.
func (s *server) learn(r *Replica, l Load, now time.Time) {
	c := *r.capacity.Load()
	if c.RunningBy != "learned" || c.MaxRunning == 0 {
		return
	}
	rl := s.learning[r.label]
	if rl == nil {
		rl = &runningLimit{limit: c.MaxRunning}
		s.learning[r.label] = rl
	}
	if !rl.observe(l, c.KVTokens) {
		return
	}
	c.MaxRunning = rl.limit
	r.capacity.Store(&c)
	s.fleet.log.Info("running limit learned", "replica", r.id, "max_running", c.MaxRunning)
	s.fleet.events.add(Event{Type: CapacityChanged, Replica: r, Capacity: c, At: now})
}

// plateau is how many polls a running count must stand still, with others
// waiting, to be the limit, and plateauOf what that times the count must be:
// long prompts wait for each other's prefill with few running, often as many at
// one poll as at the next.
const plateau, plateauOf = 3, 24

// observe takes one poll; changed says that the limit is another.
func (rl *runningLimit) observe(l Load, kvTokens int) (changed bool) {
	full := kvTokens > 0 && l.UsedTokens >= 0 && l.UsedTokens*10 >= kvTokens*9
	if l.Waiting > 0 && l.Running > 0 && l.Running == rl.running && !full {
		rl.waiting++
	} else {
		rl.waiting = 0
	}
	rl.running, rl.most = l.Running, max(rl.most, l.Running)
	was := rl.limit
	switch {
	case rl.waiting >= max(plateau, plateauOf/max(1, l.Running)):
		rl.limit = rl.most
	case l.Waiting == 0 && l.Running >= rl.limit:
		rl.limit = max(rl.limit+max(1, rl.limit/8), l.Running)
	}
	return rl.limit != was
}

package limits

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"
)

// waiters are the requests that wait for their key's rate limits, in order of
// arrival. Each waits behind those of its key before it, so that a large one is
// not starved by small ones.
type waiters struct {
	mu   sync.Mutex
	keys map[string][]*waiter
}

type waiter struct {
	cost  Cost
	turn  chan struct{} // closed when it is the first
	waits bool          // it has its place; of its own goroutine alone
}

// lookAgain is how often the first of those who wait looks whether it fits by
// now: what others give back, a reset or a reload make it sooner.
const lookAgain = 100 * time.Millisecond

// ReserveWait is Reserve for keys with on_rate_limit: wait. A request that a
// rate refuses waits for its time, behind those of its key that wait already,
// if that time is at most maxWait and fewer than maxLength wait (0: no bound).
// Otherwise it is refused at once, with the true time. The time is the wall's.
func (l *Limiter) ReserveWait(ctx context.Context, q *Request, maxWait time.Duration, maxLength int) (*Reservation, error) {
	start := time.Now()
	line := q.Key
	if !limited(q.KeyLimits) { // only the model's limits hold: other models' requests are in nobody's way
		line += "\x00" + q.Model
	}
	w, ahead, n := l.waiters.join(line, q.Cost)
	defer l.waiters.leave(line, w)
	for again := 2; ; {
		now := time.Now()
		mine := *q
		mine.ahead = ahead
		r, err := l.Reserve(ctx, now, &mine)
		f, refused := errors.AsType[*Refusal](err)
		if !refused {
			return r, err
		}
		left := maxWait - now.Sub(start)
		wait := f.RetryAfter
		switch {
		case f.TooLarge || f.Kind == KindUnavailable:
			return nil, f
		case maxLength > 0 && n >= maxLength && !w.waits:
			full := l.waitFull(q, n, maxLength)
			full.State, full.RetryAfter = f.State, f.RetryAfter
			return nil, full
		case wait > left && n > 0 && again > 0:
			// One before it may be charged already and not have left yet: look once more.
			again--
			wait = time.Millisecond
		case wait > left:
			return nil, f
		}
		w.waits = true
		if n == 0 {
			wait = min(wait, lookAgain)
		}
		if err := sleep(ctx, wait, w.turn, n > 0); err != nil {
			return nil, err
		}
		ahead, n = l.waiters.before(line, w)
	}
}

// waitFull is the refusal of a request that finds n waiting already.
func (l *Limiter) waitFull(q *Request, n, limit int) *Refusal {
	return &Refusal{
		Scope: ScopeKey, Kind: KindQueueFull, Key: q.Key, Model: q.Model, Limit: int64(limit), Used: int64(n), Needed: 1,
		ConfigKey:  ConfigKey(ScopeKey, KindQueueFull, q.Key, q.Model),
		RetryAfter: time.Second, Mode: l.Mode(),
	}
}

// sleep waits for d, for the client to leave, or for its turn where it has others before it.
func sleep(ctx context.Context, d time.Duration, turn <-chan struct{}, others bool) error {
	if !others {
		turn = nil
	}
	t := time.NewTimer(max(d, time.Millisecond))
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-turn:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Waiting is how many requests wait for their rates, over all keys.
func (l *Limiter) Waiting() int {
	n := 0
	for _, waiting := range l.waiters.counts() {
		n += waiting
	}
	return n
}

// join puts a request at the end of its key's and tells the cost and number before it.
func (s *waiters) join(key string, cost Cost) (w *waiter, ahead Cost, n int) {
	w = &waiter{cost: cost, turn: make(chan struct{})}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.keys == nil {
		s.keys = make(map[string][]*waiter)
	}
	all := s.keys[key]
	for _, o := range all {
		ahead = ahead.Add(o.cost)
	}
	s.keys[key] = append(all, w)
	return w, ahead, len(all)
}

// before tells the cost and number of those before w.
func (s *waiters) before(key string, w *waiter) (ahead Cost, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range s.keys[key] {
		if o == w {
			break
		}
		ahead = ahead.Add(o.cost)
		n++
	}
	return ahead, n
}

// leave takes a request out and tells the one that is first then.
func (s *waiters) leave(key string, w *waiter) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.keys[key]
	i := slices.Index(all, w)
	all = slices.Delete(all, i, i+1)
	if len(all) == 0 {
		delete(s.keys, key)
		return
	}
	s.keys[key] = all
	if i == 0 {
		close(all[0].turn)
	}
}

// counts is how many requests of each key wait.
func (s *waiters) counts() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := make(map[string]int, len(s.keys))
	for k, all := range s.keys {
		k, _, _ = strings.Cut(k, "\x00")
		m[k] += len(all)
	}
	return m
}

package limits

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"penstock/configs"
)

// epochTime is where simulated time starts.
func epochTime() time.Time { return time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC) }

func memoryLimiter(t testing.TB) *Limiter {
	l, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// fewer is n, or a tenth of it under the race detector.
func fewer(n uint64) uint64 {
	if raceEnabled {
		return n / 10
	}
	return n
}

// randomLimits are some limits, small enough to be met.
func randomLimits(rnd *rand.Rand) *configs.Limits {
	l := &configs.Limits{}
	some := func(n int64) int64 {
		if rnd.IntN(2) == 0 {
			return 0
		}
		return 1 + rnd.Int64N(n)
	}
	l.RequestsPerMinute, l.RequestsBurst = some(300), some(60)
	l.TokensPerMinute, l.TokensBurst = some(100_000), some(50_000)
	l.InputTokensPerMinute, l.OutputTokensPerMinute = some(80_000), some(50_000)
	return l
}

func randomRequest(rnd *rand.Rand, keys int, lim [3]*configs.Limits) *Request {
	return &Request{
		Key: fmt.Sprint("k", rnd.IntN(keys)), Model: "m",
		KeyLimits: lim[0], KeyModelLimits: lim[1], ModelLimits: lim[2],
		Cost: Cost{Requests: 1, Input: rnd.Int64N(4000), Output: rnd.Int64N(2000)},
	}
}

// TestRetryAfterIsTrue plays random histories. Whoever is refused is admitted
// after Retry-After if nothing else is charged meanwhile, also when all that is
// under way ends meanwhile with a refund, and not a millisecond before.
func TestRetryAfterIsTrue(t *testing.T) {
	refusals, large := 0, 0
	for seed := range fewer(4000) {
		rnd := rand.New(rand.NewPCG(seed, 2))
		l := memoryLimiter(t)
		lim := [3]*configs.Limits{randomLimits(rnd), randomLimits(rnd), randomLimits(rnd)}
		now := epochTime()
		var open []*Reservation
		for range 60 {
			now = now.Add(time.Duration(rnd.Int64N(3000)) * time.Millisecond / time.Duration(1+rnd.IntN(10)))
			q := randomRequest(rnd, 2, lim)
			r, err := l.Reserve(t.Context(), now, q)
			if err == nil {
				open = append(open, r)
			}
			if len(open) > 0 && rnd.IntN(3) == 0 {
				open[0].Settle(now, Actual{Outcome: OutcomeDone, Input: rnd.Int64N(5000), Output: rnd.Int64N(4000)})
				open = open[1:]
			}
			f, refused := errors.AsType[*Refusal](err)
			if !refused || rnd.IntN(3) > 0 {
				continue
			}
			if f.TooLarge {
				large++
				tooLargeEver(t, l, now, q, f)
				continue
			}
			r, err = l.Reserve(t.Context(), now, q) // the settlement above may have changed it
			if err == nil {
				open = append(open, r)
				continue
			}
			f, _ = errors.AsType[*Refusal](err)
			if _, err := l.Reserve(t.Context(), now.Add(f.RetryAfter-time.Millisecond), q); err == nil {
				t.Fatalf("seed %d: %+v: admitted 1 ms before Retry-After %v, so it is too long", seed, q.Cost, f.RetryAfter)
			}
			now = now.Add(f.RetryAfter)
			if rnd.IntN(2) == 0 {
				for _, o := range open {
					o.Settle(now, Actual{Outcome: OutcomeFailed})
				}
				open = nil
			}
			if r, err = l.Reserve(t.Context(), now, q); err != nil {
				t.Fatalf("seed %d: refused after Retry-After %v: %v", seed, f.RetryAfter, err)
			}
			open = append(open, r)
			refusals++
		}
	}
	if !raceEnabled && (refusals < 5000 || large < 1000) {
		t.Errorf("%d refusals and %d too large tried, want thousands", refusals, large)
	}
}

// tooLargeEver wants the same refusal from full buckets.
func tooLargeEver(t *testing.T, l *Limiter, now time.Time, q *Request, f *Refusal) {
	t.Helper()
	_, err := l.Reserve(t.Context(), now.Add(240*time.Hour), q)
	if g, ok := errors.AsType[*Refusal](err); !ok || !g.TooLarge {
		t.Fatalf("%+v was too large for %s, and ten days later got %v", q.Cost, f.ConfigKey, err)
	}
}

// TestWindowsNeverHoldMoreThanTheLimit checks every window of random histories:
// the tokens admitted in it are at most burst + rate × window + what was
// underestimated of those not settled yet.
func TestWindowsNeverHoldMoreThanTheLimit(t *testing.T) {
	type done struct {
		at, settled time.Time
		est, actual int64
	}
	for seed := range fewer(120) {
		rnd := rand.New(rand.NewPCG(seed, 3))
		l := memoryLimiter(t)
		lim := &configs.Limits{TokensPerMinute: 1000 + rnd.Int64N(100_000), TokensBurst: 1000 + rnd.Int64N(100_000)}
		now := epochTime()
		var all []*done
		open := map[*Reservation]*done{}
		for range 250 {
			now = now.Add(time.Duration(rnd.Int64N(4000)) * time.Millisecond)
			q := &Request{Key: "k", Model: "m", KeyLimits: lim, Cost: Cost{1, rnd.Int64N(lim.TokensBurst / 8), rnd.Int64N(lim.TokensBurst / 8)}}
			if r, err := l.Reserve(t.Context(), now, q); err == nil {
				d := &done{at: now, est: q.Cost.Input + q.Cost.Output}
				// Mostly overestimated; what is underestimated stays within the debt allowed.
				d.actual = rnd.Int64N(d.est + 1)
				if rnd.IntN(5) == 0 {
					d.actual = d.est + rnd.Int64N(lim.TokensBurst/64)
				}
				all, open[r] = append(all, d), d
			}
			for r, d := range open {
				if rnd.IntN(8) == 0 {
					d.settled = now
					r.Settle(now, Actual{Outcome: OutcomeDone, Input: d.actual, Output: 0})
					delete(open, r)
				}
			}
		}
		for i, first := range all {
			var sum, under int64
			for j := i; j < len(all); j++ {
				sum += all[j].actual
				last := all[j].at
				under = 0
				for _, d := range all[i : j+1] {
					if d.settled.IsZero() || d.settled.After(last) || d.settled.Equal(last) {
						under += max(0, d.actual-d.est)
					}
				}
				window := last.Sub(first.at).Milliseconds()
				if bound := lim.TokensBurst*unit + lim.TokensPerMinute*window + under*unit; sum*unit > bound {
					t.Fatalf("seed %d: %d tokens within %d ms, want at most %d (limit %d, burst %d, underestimated %d)",
						seed, sum, window, bound/unit, lim.TokensPerMinute, lim.TokensBurst, under)
				}
			}
		}
	}
}

// TestNothingLeaksAfterAMillionRequests ends a million requests in every way
// and wants all buckets and slots full.
func TestNothingLeaksAfterAMillionRequests(t *testing.T) {
	n := 1_000_000
	if testing.Short() || raceEnabled {
		n = 50_000
	}
	rnd := rand.New(rand.NewPCG(7, 7))
	l := memoryLimiter(t)
	lim := &configs.Limits{RequestsPerMinute: 6e6, TokensPerMinute: 5e9, InputTokensPerMinute: 4e9, OutputTokensPerMinute: 3e9, Concurrency: 200}
	now := epochTime()
	var open []*Reservation
	admitted := 0
	for range n {
		now = now.Add(time.Duration(rnd.IntN(20)) * time.Microsecond)
		r, err := l.Reserve(t.Context(), now, randomRequest(rnd, 8, [3]*configs.Limits{lim, lim, lim}))
		if err == nil {
			admitted++
			if rnd.IntN(4) > 0 {
				r.TrySlot(now)
			}
			open = append(open, r)
		}
		for len(open) > 150 || len(open) > 0 && rnd.IntN(2) == 0 {
			i := rnd.IntN(len(open))
			open[i].Settle(now, randomActual(rnd))
			open[i] = open[len(open)-1]
			open = open[:len(open)-1]
		}
	}
	for _, r := range open {
		r.Settle(now, randomActual(rnd))
	}
	if admitted < n/2 {
		t.Fatalf("%d of %d admitted, want most", admitted, n)
	}
	wantAllFull(t, l, now.Add(2*time.Minute))
}

func randomActual(rnd *rand.Rand) Actual {
	return Actual{Outcome: Outcome(rnd.IntN(4)), Input: rnd.Int64N(5000) - 1, Output: rnd.Int64N(3000) - 1}
}

func wantAllFull(t *testing.T, l *Limiter, at time.Time) {
	t.Helper()
	l.memory.each(func(e *entry) {
		if left, idle := e.untilFull(at.UnixMilli()); left != 0 || !idle || e.held != (Cost{}) {
			t.Errorf("%v: %d ms from full, %d under way, %d slots, %+v reserved; want none", e.subject, left, len(e.live), e.slots, e.held)
		}
	})
}

// TestReturnedRequestsLeaveNoTrace gives everything back at the same instant.
func TestReturnedRequestsLeaveNoTrace(t *testing.T) {
	rnd := rand.New(rand.NewPCG(8, 8))
	l := memoryLimiter(t)
	lim := &configs.Limits{RequestsPerMinute: 2000, TokensPerMinute: 10e6}
	now := epochTime()
	var open []*Reservation
	for range 1000 {
		r, err := l.Reserve(t.Context(), now, randomRequest(rnd, 1, [3]*configs.Limits{lim}))
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, r)
	}
	rnd.Shuffle(len(open), func(i, j int) { open[i], open[j] = open[j], open[i] })
	for _, r := range open {
		r.Settle(now, Actual{Outcome: OutcomeReturned})
	}
	wantAllFull(t, l, now)
}

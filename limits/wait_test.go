package limits

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"penstock/configs"
)

// waitRequest needs n of 60 tokens per minute, so a second for each.
func waitRequest(n int64) *Request {
	return &Request{Key: "k", KeyLimits: &configs.Limits{TokensPerMinute: 60}, Cost: Cost{Input: n}}
}

func TestRateWaitTakesTheTrueTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := memoryLimiter(t)
		wait := func(n int64, most time.Duration) (time.Duration, error) {
			start := time.Now()
			_, err := l.ReserveWait(t.Context(), waitRequest(n), most, 0)
			return time.Since(start), err
		}
		if d, err := wait(60, time.Minute); d != 0 || err != nil {
			t.Fatalf("first: %v after %v, want at once", err, d)
		}
		if d, err := wait(10, time.Minute); d != 10*time.Second || err != nil {
			t.Errorf("10 tokens of an empty bucket: %v after %v, want after 10s", err, d)
		}
		d, err := wait(30, 20*time.Second)
		if f, _ := errors.AsType[*Refusal](err); f == nil || f.RetryAfter != 30*time.Second || d != 0 {
			t.Errorf("30 tokens within 20 s: %v after %v, want refused at once with 30s", err, d)
		}
		_, err = wait(61, time.Hour)
		if f, _ := errors.AsType[*Refusal](err); f == nil || !f.TooLarge {
			t.Errorf("61 tokens: %v, want too large", err)
		}
	})
}

func TestRateWaitersGoInTheOrderOfComing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := memoryLimiter(t)
		if _, err := l.ReserveWait(t.Context(), waitRequest(60), time.Minute, 0); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		var mu sync.Mutex
		var at []time.Duration
		var wg sync.WaitGroup
		// The large one came first: the small ones wait behind it.
		for _, n := range []int64{40, 5, 5} {
			wg.Go(func() {
				if _, err := l.ReserveWait(t.Context(), waitRequest(n), time.Minute, 0); err != nil {
					t.Error(err)
				}
				mu.Lock()
				at = append(at, time.Since(start))
				mu.Unlock()
			})
			synctest.Wait()
		}
		// 50 s are waited for already: 15 more do not fit into a minute.
		_, err := l.ReserveWait(t.Context(), waitRequest(15), time.Minute, 0)
		if f, _ := errors.AsType[*Refusal](err); f == nil || f.RetryAfter < 64*time.Second || f.RetryAfter > 65*time.Second {
			t.Errorf("behind 50 s of others: %v, want refused with about 65s", err)
		}
		_, err = l.ReserveWait(t.Context(), waitRequest(1), time.Minute, 3)
		if f, _ := errors.AsType[*Refusal](err); f == nil || f.Kind != KindQueueFull || f.Used != 3 {
			t.Errorf("with three waiting of three: %v, want queue_full", err)
		}
		wg.Wait()
		if len(at) != 3 || at[0] != 40*time.Second || at[1] > 46*time.Second || at[2] != 50*time.Second {
			t.Errorf("admitted after %v, want 40s, 45s, 50s", at)
		}
	})
}

func TestRateWaiterLeavesWithTheClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := memoryLimiter(t)
		if _, err := l.ReserveWait(t.Context(), waitRequest(60), time.Minute, 0); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		start := time.Now()
		_, err := l.ReserveWait(ctx, waitRequest(30), time.Minute, 0)
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != 3*time.Second || len(l.waiters.counts()) != 0 {
			t.Errorf("%v after %v with %v waiting, want the context's error after 3s and none", err, time.Since(start), l.waiters.counts())
		}
	})
}

func TestRateWaitEndsWhenEnoughIsGivenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := memoryLimiter(t)
		first, err := l.ReserveWait(t.Context(), waitRequest(60), time.Minute, 0)
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				_, err := l.ReserveWait(t.Context(), waitRequest(18), time.Minute, 0)
				if d := time.Since(start); err != nil || d > 2*time.Second {
					t.Errorf("%v after %v, want within 2s: at 1s nearly all was given back", err, d)
				}
			})
		}
		time.Sleep(time.Second)
		first.Settle(time.Now(), Actual{Outcome: OutcomeDone, Input: 3})
		wg.Wait()
	})
}

package limits

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"penstock/configs"
)

// replicas is a model's engines in simulated time: each runs so many at once.
type replicas struct {
	mu   sync.Mutex
	free []int
}

func (r *replicas) bind(at *int) func() (bool, error) {
	return func() (bool, error) {
		r.mu.Lock()
		defer r.mu.Unlock()
		best := 0
		for i, n := range r.free {
			if n > r.free[best] {
				best = i
			}
		}
		if r.free[best] == 0 {
			return false, nil
		}
		r.free[best]--
		*at = best
		return true, nil
	}
}

func (r *replicas) release(at int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.free[at]++
}

// flood sends n requests at once, of 8,192 tokens in and 1,024 out, and counts
// how they end and when the last refusal came.
func flood(t *testing.T, n int, bounds configs.Queue) (ends map[string]int, last time.Duration) {
	t.Helper()
	q := newTestQueue(bounds)
	pool := &replicas{free: []int{64, 64, 64, 64}}
	ends = map[string]int{}
	start := time.Now()
	var mu sync.Mutex
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			var at int
			tk := &Ticket{Item: Item{Key: "bench", Input: 8192, Output: 1024}, Binder: bindFunc(pool.bind(&at))}
			err := q.Acquire(t.Context(), tk)
			if err == nil {
				time.Sleep(35*time.Second + rand.N(10*time.Second)) // in the bubble's time
				pool.release(at)
				q.Settle(time.Now(), tk, 8192, 1024)
				q.Kick()
			}
			mu.Lock()
			defer mu.Unlock()
			if f, ok := errors.AsType[*Refusal](err); ok {
				ends[f.Kind.String()]++
				last = max(last, time.Since(start))
				if f.RetryAfter < time.Second*8/10 || f.RetryAfter > time.Minute || f.ConfigKey == "" {
					t.Errorf("refusal %+v: want a Retry-After within a minute and the configuration key", f)
				}
			} else {
				ends[fmt.Sprint(err)]++
			}
		})
	}
	wg.Wait()
	if q.Len() != 0 {
		t.Errorf("%d left in the queue", q.Len())
	}
	return ends, last
}

// TestAll929Complete is the load that a managed endpoint refused 398 of: with
// limits.mode auto and a wait of half an hour every request is answered.
func TestAll929Complete(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		four := Capacity{KVTokens: 1_000_000, MaxRunning: 64}
		d := Auto([]Capacity{four, four, four, four})
		ends, _ := flood(t, 929, configs.Queue{MaxLength: d.MaxLength, MaxWait: 30 * time.Minute})
		if ends["<nil>"] != 929 {
			t.Errorf("ends %v, want 929 answered", ends)
		}
	})
}

// TestShortQueueRefusesTheRestInTime: with places for 400 and a wait of 20 s,
// the rest is refused by then, and all that was bound completes.
func TestShortQueueRefusesTheRestInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ends, last := flood(t, 929, configs.Queue{MaxLength: 400, MaxWait: 20 * time.Second})
		// All come at the same instant: a few may find the queue full of those that
		// are about to be bound.
		if full := ends["queue_full"]; full < 929-256-400 || full+ends["queue_timeout"] != 929-256 || ends["<nil>"] != 256 {
			t.Errorf("ends %v, want 256 answered, 400 queue_timeout at most and the rest queue_full", ends)
		}
		if last > 21*time.Second {
			t.Errorf("last refusal after %v, want within 20 s plus one", last)
		}
	})
}

// TestQueueLeaksNothing lets requests of several keys come, wait, leave, time
// out, be refused and run, at random and at once.
func TestQueueLeaksNothing(t *testing.T) {
	l, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	q := newTestQueue(configs.Queue{MaxLength: 60, MaxWait: 30 * time.Millisecond})
	e := &engineSlots{free: 8}
	lim := &configs.Limits{Concurrency: 5}
	var wg sync.WaitGroup
	for i := range 16 {
		rnd := rand.New(rand.NewPCG(uint64(i), 6))
		wg.Go(func() {
			for range 300 {
				r, err := l.Reserve(t.Context(), time.Now(), &Request{Key: fmt.Sprint("k", i%4), Model: "m", KeyLimits: lim, Cost: Cost{Requests: 1}})
				if err != nil {
					t.Error(err)
					return
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rnd.IntN(40))*time.Millisecond)
				tk := &Ticket{
					Item: Item{Key: fmt.Sprint("k", i%4), Input: rnd.IntN(1000)}, Reservation: r, Binder: bindFunc(e.bind),
					NoQueue: rnd.IntN(10) == 0, Bounds: configs.Queue{MaxLength: rnd.IntN(20)},
				}
				if rnd.IntN(50) == 0 {
					tk.Binder = bindFunc(func() (bool, error) { return false, errors.New("no healthy replica") })
				}
				if err := q.Acquire(ctx, tk); err == nil {
					<-time.After(time.Duration(rnd.IntN(500)) * time.Microsecond)
					e.release()
					q.Settle(time.Now(), tk, 10, 10)
				}
				r.Settle(time.Now(), Actual{Outcome: OutcomeDone})
				q.Kick()
				cancel()
			}
		})
	}
	wg.Wait()
	if e.free != 8 || q.Len() != 0 {
		t.Errorf("%d slots free and %d waiting, want 8 and 0", e.free, q.Len())
	}
	for _, k := range q.Stats(time.Now()).Keys {
		if k.Running != 0 || k.Waiting != 0 {
			t.Errorf("%+v: want nothing running or waiting", k)
		}
	}
	wantAllFull(t, l, time.Now())
}

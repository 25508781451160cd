package limits

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"penstock/configs"
)

// bindFunc is a Binder that is a function.
type bindFunc func() (bool, error)

func (f bindFunc) TryBind(time.Time) (bool, error) { return f() }

// engineSlots is room for n requests at once, as a replica has it.
type engineSlots struct {
	mu   sync.Mutex
	free int
}

func (e *engineSlots) bind() (bool, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.free == 0 {
		return false, nil
	}
	e.free--
	return true, nil
}

func (e *engineSlots) release() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.free++
}

func newTestQueue(b configs.Queue) *Queue {
	if b.HeadHold == 0 {
		b.HeadHold = 5 * time.Second
	}
	return NewQueue("m", b, func() float64 { return 10000 })
}

func TestQueueBindsAtOnceWhenThereIsRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, e := newTestQueue(configs.Queue{}), &engineSlots{free: 1}
		tk := &Ticket{Item: Item{Key: "a", Input: 10}, Binder: bindFunc(e.bind)}
		start := time.Now()
		if err := q.Acquire(t.Context(), tk); err != nil {
			t.Fatalf("Acquire with room: got %v, want nil", err)
		}
		if d := time.Since(start); d != 0 {
			t.Errorf("waited %v, want 0", d)
		}
	})
}

func TestQueueTimesOutAtTheBoundNotLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, e := newTestQueue(configs.Queue{MaxWait: 20 * time.Second}), &engineSlots{}
		start := time.Now()
		err := q.Acquire(t.Context(), &Ticket{Item: Item{Key: "a"}, Binder: bindFunc(e.bind)})
		f, ok := errors.AsType[*Refusal](err)
		if !ok || f.Kind != KindQueueTimeout {
			t.Fatalf("got %v, want queue_timeout", err)
		}
		if d := time.Since(start); d != 20*time.Second {
			t.Errorf("waited %v, want 20s", d)
		}
		if q.Len() != 0 {
			t.Errorf("%d left in the queue, want 0", q.Len())
		}
	})
}

func TestQueueLeavesAtOnceWithTheClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, e := newTestQueue(configs.Queue{}), &engineSlots{}
		ctx, cancel := context.WithCancelCause(t.Context())
		gone := errors.New("client gone")
		time.AfterFunc(3*time.Second, func() { cancel(gone) })
		start := time.Now()
		err := q.Acquire(ctx, &Ticket{Item: Item{Key: "a"}, Binder: bindFunc(e.bind)})
		if !errors.Is(err, gone) {
			t.Fatalf("got %v, want the context's cause", err)
		}
		if d := time.Since(start); d != 3*time.Second || q.Len() != 0 {
			t.Errorf("left after %v with %d waiting, want 3s and 0", d, q.Len())
		}
	})
}

func TestQueueRefusesAtOnceWithNoQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, e := newTestQueue(configs.Queue{}), &engineSlots{}
		start := time.Now()
		err := q.Acquire(t.Context(), &Ticket{Item: Item{Key: "a"}, Binder: bindFunc(e.bind), NoQueue: true})
		f, ok := errors.AsType[*Refusal](err)
		if !ok || f.Kind != KindQueueTimeout || time.Since(start) != 0 {
			t.Fatalf("got %v after %v, want queue_timeout at once", err, time.Since(start))
		}
	})
}

func TestQueueIsBoundedInAllAndPerKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, e := newTestQueue(configs.Queue{MaxLength: 5}), &engineSlots{}
		ask := func(key string, bound int) error {
			return q.Acquire(t.Context(), &Ticket{Item: Item{Key: key}, Binder: bindFunc(e.bind), Bounds: configs.Queue{MaxLength: bound}})
		}
		var mu sync.Mutex
		kinds := map[string]int{}
		var wg sync.WaitGroup
		note := func(key string, bound int) {
			wg.Go(func() {
				f, _ := errors.AsType[*Refusal](ask(key, bound))
				mu.Lock()
				kinds[fmt.Sprint(key, " ", f.Kind, " ", f.Scope)]++
				mu.Unlock()
			})
			synctest.Wait()
		}
		for range 4 {
			note("bounded", 2)
		}
		for range 4 {
			note("flood", 0)
		}
		note("polite", 0) // gets the flood's last place
		wg.Wait()
		want := map[string]int{
			"bounded queue_full key": 2, "bounded queue_timeout model": 2,
			"flood queue_full model": 2, "flood queue_timeout model": 2, "polite queue_timeout model": 1,
		}
		if fmt.Sprint(kinds) != fmt.Sprint(want) {
			t.Errorf("got %v, want %v", kinds, want)
		}
	})
}

func TestQueueAsksOwnConcurrencyBeforeRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _ := New(Options{})
		q, e := newTestQueue(configs.Queue{MaxWait: 10 * time.Second}), &engineSlots{free: 10}
		lim := &configs.Limits{Concurrency: 1}
		acquire := func() (*Reservation, error) {
			r, err := l.Reserve(t.Context(), time.Now(), &Request{Key: "a", Model: "m", KeyLimits: lim, Cost: Cost{Requests: 1}})
			if err != nil {
				t.Fatal(err)
			}
			return r, q.Acquire(t.Context(), &Ticket{Item: Item{Key: "a"}, Binder: bindFunc(e.bind), Reservation: r})
		}
		first, err := acquire()
		if err != nil {
			t.Fatalf("first: %v", err)
		}
		second, err := acquire()
		f, _ := errors.AsType[*Refusal](err)
		if f == nil || f.Kind != KindConcurrency || f.ConfigKey != "keys[a].limits.concurrency" || f.Limit != 1 || f.Used != 1 {
			t.Fatalf("second: got %+v, want a refusal by concurrency 1 of 1", f)
		}
		second.Settle(time.Now(), Actual{})
		first.Settle(time.Now(), Actual{Outcome: OutcomeDone})
		if _, err = acquire(); err != nil {
			t.Fatalf("after the first ended: %v", err)
		}
	})
}

// TestModelConcurrencyIsOurCapacity: what waits for a model's concurrency is
// refused as for want of room, not as the caller's limit.
func TestModelConcurrencyIsOurCapacity(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _ := New(Options{})
		q, e := newTestQueue(configs.Queue{MaxWait: time.Second}), &engineSlots{free: 10}
		var f *Refusal
		for range 2 {
			r, err := l.Reserve(t.Context(), time.Now(), &Request{Key: "a", Model: "m", ModelLimits: &configs.Limits{Concurrency: 1}})
			if err != nil {
				t.Fatal(err)
			}
			f, _ = errors.AsType[*Refusal](q.Acquire(t.Context(), &Ticket{Item: Item{Key: "a"}, Binder: bindFunc(e.bind), Reservation: r}))
		}
		if f == nil || f.Kind != KindQueueTimeout || f.ConfigKey != "models[m].limits.concurrency" {
			t.Errorf("got %+v, want queue_timeout by models[m].limits.concurrency", f)
		}
	})
}

// TestRefusalsOfTheQueueSayWhatSetTheBound names the model's queue, the key's,
// or the client's own header.
func TestRefusalsOfTheQueueSayWhatSetTheBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, e := newTestQueue(configs.Queue{MaxWait: 30 * time.Second}), &engineSlots{}
		for _, c := range []struct {
			tk   *Ticket
			want string
			wait time.Duration
		}{
			{&Ticket{}, "models[m].queue.max_wait", 30 * time.Second},
			{&Ticket{Bounds: configs.Queue{MaxWait: 4 * time.Minute}}, "keys[a].queue.max_wait", 4 * time.Minute},
			{&Ticket{Asked: 2 * time.Second}, "the header x-penstock-max-wait", 2 * time.Second},
			{&Ticket{Asked: time.Hour}, "models[m].queue.max_wait", 30 * time.Second},
			{&Ticket{NoQueue: true}, "the header x-penstock-no-queue", 0},
		} {
			c.tk.Item, c.tk.Binder = Item{Key: "a"}, bindFunc(e.bind)
			start := time.Now()
			f, _ := errors.AsType[*Refusal](q.Acquire(t.Context(), c.tk))
			if f == nil || f.ConfigKey != c.want || time.Since(start) != c.wait {
				t.Errorf("got %+v after %v, want %s after %v", f, time.Since(start), c.want, c.wait)
			}
		}
	})
}

// TestLongTryBindHoldsUpNobodyWhoLeaves: a TryBind that takes long holds up neither those who
// come nor those who leave meanwhile.
func TestLongTryBindHoldsUpNobodyWhoLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newTestQueue(configs.Queue{MaxWait: time.Minute})
		slow := &Ticket{Item: Item{Key: "a"}, Binder: bindFunc(func() (bool, error) {
			time.Sleep(10 * time.Second)
			return true, nil
		})}
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := q.Acquire(t.Context(), slow); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		never := &Ticket{Item: Item{Key: "b"}, Binder: bindFunc(func() (bool, error) { return false, nil })}
		if err := q.Acquire(ctx, never); err == nil || time.Since(start) != time.Second {
			t.Errorf("%v after %v, want gone after 1s", err, time.Since(start))
		}
		wg.Wait()
	})
}

// TestQueueRefusesNobodyOfABurstThatFits: requests that come while others are being
// bound need a place only once they have found no room.
func TestQueueRefusesNobodyOfABurstThatFits(t *testing.T) {
	for _, c := range []struct {
		name                  string
		room, bound, keyBound int
		waiting, full         int
	}{
		{"all fit", 30, 3, 0, 0, 0},
		{"all fit, key bound", 30, 100, 2, 0, 0},
		{"some fit", 12, 3, 0, 3, 15},
		{"some fit, key bound", 12, 100, 2, 2, 16},
		{"no places", 12, -1, 0, 0, 18},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q, e := newTestQueue(configs.Queue{MaxLength: c.bound, MaxWait: 10 * time.Second}), &engineSlots{free: c.room}
				slow := func() (bool, error) { time.Sleep(time.Millisecond); return e.bind() }
				var mu sync.Mutex
				got := map[Kind]int{}
				var wg sync.WaitGroup
				for range 30 {
					wg.Go(func() {
						err := q.Acquire(t.Context(), &Ticket{Item: Item{Key: "a"}, Binder: bindFunc(slow), Bounds: configs.Queue{MaxLength: c.keyBound}})
						mu.Lock()
						defer mu.Unlock()
						if f, ok := errors.AsType[*Refusal](err); ok {
							got[f.Kind]++
						}
					})
				}
				time.Sleep(time.Second)
				if n := q.Len(); n != c.waiting {
					t.Errorf("%d wait, want %d", n, c.waiting)
				}
				wg.Wait()
				if got[KindQueueFull] != c.full || got[KindQueueTimeout] != c.waiting || e.free != max(0, c.room-30) {
					t.Errorf("refused %v with room left for %d, want %d full and %d timed out", got, e.free, c.full, c.waiting)
				}
			})
		})
	}
}

// TestQueueThatIsFullRefusesWithoutTrying: a flood on a full queue costs no rounds.
func TestQueueThatIsFullRefusesWithoutTrying(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, e := newTestQueue(configs.Queue{MaxLength: 3, MaxWait: time.Minute}), &engineSlots{}
		var tried atomic.Int32
		ask := func() error {
			return q.Acquire(t.Context(), &Ticket{Item: Item{Key: "a"}, Binder: bindFunc(func() (bool, error) {
				tried.Add(1)
				time.Sleep(time.Millisecond)
				return e.bind()
			})})
		}
		for range 3 {
			go func() { _ = ask() }()
		}
		time.Sleep(time.Second)
		before := tried.Load()
		start := time.Now()
		for range 100 {
			go q.Kick() // others are being tried all the while
			if f, ok := errors.AsType[*Refusal](ask()); !ok || f.Kind != KindQueueFull {
				t.Fatalf("got %v, want queue_full", f)
			}
		}
		if d := time.Since(start); d != 0 || tried.Load()-before > 6 {
			t.Errorf("100 refusals took %v and %d tries, want 0 and those of the Kick alone", d, tried.Load()-before)
		}
		time.Sleep(time.Hour)
	})
}

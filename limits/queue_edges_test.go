package limits

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"penstock/configs"
)

var (
	binds    = bindFunc(func() (bool, error) { return true, nil })
	noRoom   = bindFunc(func() (bool, error) { return false, nil })
	heldBack = bindFunc(func() (bool, error) { return false, ErrHeld })
)

func TestQueueOutlivesAPanic(t *testing.T) {
	q := newTestQueue(configs.Queue{})
	bad := &Ticket{Item: Item{Key: "a"}, Binder: bindFunc(func() (bool, error) { panic("one request's bug") })}
	if err := q.Acquire(t.Context(), bad); err == nil {
		t.Error("the request whose binding panics: got no error")
	}
	if err := q.Acquire(t.Context(), &Ticket{Item: Item{Key: "b"}, Binder: binds, Asked: time.Second}); err != nil {
		t.Errorf("another request afterwards: got %v, want it bound", err)
	}
}

func TestQueueKeepsNoRoomForWhoIsHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newTestQueue(configs.Queue{})
		go func() { _ = q.Acquire(t.Context(), &Ticket{Item: Item{Key: "a", Input: 1}, Binder: heldBack}) }()
		synctest.Wait()
		_ = q.Acquire(t.Context(), &Ticket{Item: Item{Key: "b", Input: 10}, Binder: binds})
		time.Sleep(6 * time.Second) // longer than head_hold
		if err := q.Acquire(t.Context(), &Ticket{Item: Item{Key: "b", Input: 10}, Binder: binds, NoQueue: true}); err != nil {
			t.Errorf("beside a request that waits although it would fit: %v", err)
		}
	})
}

func TestQueueEvictsNobodyWhoIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newTestQueue(configs.Queue{MaxLength: 2})
		left := make(chan error, 2)
		for _, began := range []time.Time{{}, time.Now().Add(-10 * time.Second)} {
			go func() {
				err := q.Acquire(t.Context(), &Ticket{Item: Item{Key: "a", Input: 10}, Binder: noRoom, Began: began})
				if !began.IsZero() {
					left <- err
				}
			}()
			synctest.Wait()
		}
		go func() { _ = q.Acquire(t.Context(), &Ticket{Item: Item{Key: "b", Input: 1}, Binder: noRoom}) }()
		synctest.Wait()
		select {
		case err := <-left:
			t.Errorf("the request that is tried again lost its place: %v", err)
		default:
		}
	})
}

func TestQueueCountsWhatWasWaitedBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newTestQueue(configs.Queue{MaxWait: 30 * time.Second})
		began := time.Now()
		time.Sleep(25 * time.Second) // then it was bound, and its engine answered 503
		_ = q.Acquire(t.Context(), &Ticket{Item: Item{Key: "a"}, Binder: noRoom, Began: began, Waited: 25 * time.Second})
		if d := time.Since(began); d != 30*time.Second {
			t.Errorf("waited %v in all, want 30s", d)
		}
	})
}

func TestQueueSendsTheLastAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newTestQueue(configs.Queue{MaxLength: 2, MaxWait: 3 * time.Second})
		in, out := make(chan struct{}), make(chan struct{})
		go func() {
			_ = q.Acquire(t.Context(), &Ticket{Item: Item{Key: "k"}, Binder: bindFunc(func() (bool, error) { close(in); <-out; return true, nil })})
		}()
		<-in
		var refused [4]atomic.Bool
		for i := range refused { // they come while the first is being bound
			go func() {
				f, _ := errors.AsType[*Refusal](q.Acquire(t.Context(), &Ticket{Item: Item{Key: "k"}, Binder: noRoom}))
				refused[i].Store(f.Kind == KindQueueFull)
			}()
			synctest.Wait()
		}
		close(out)
		synctest.Wait()
		if refused[0].Load() || refused[1].Load() || !refused[2].Load() || !refused[3].Load() {
			t.Errorf("of four for two places refused %v %v %v %v, want the last two",
				refused[0].Load(), refused[1].Load(), refused[2].Load(), refused[3].Load())
		}
		time.Sleep(time.Minute)
	})
}

// TestQueueForgetsWhoLackedRoom: that somebody lacked room says nothing once he is gone, or waits for other room.
func TestQueueForgetsWhoLackedRoom(t *testing.T) {
	for name, before := range map[string]func(context.Context, *Queue){
		"an hour ago one found no room and left": func(ctx context.Context, q *Queue) {
			_ = q.Acquire(ctx, &Ticket{Item: Item{Key: "old"}, Binder: noRoom, Asked: time.Millisecond})
			time.Sleep(time.Hour)
		},
		"one waits in another lane": func(ctx context.Context, q *Queue) {
			go func() { _ = q.Acquire(ctx, &Ticket{Item: Item{Key: "s", Lane: 2}, Binder: noRoom}) }()
			time.Sleep(time.Second)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := newTestQueue(configs.Queue{MaxLength: 2})
				before(t.Context(), q)
				in, out := make(chan struct{}), make(chan struct{})
				go func() {
					_ = q.Acquire(t.Context(), &Ticket{Item: Item{Key: "k"}, Binder: bindFunc(func() (bool, error) { close(in); <-out; return true, nil })})
				}()
				<-in
				var refused atomic.Int32
				var wg sync.WaitGroup
				for range 10 {
					wg.Go(func() {
						if q.Acquire(t.Context(), &Ticket{Item: Item{Key: "k"}, Binder: binds}) != nil {
							refused.Add(1)
						}
					})
				}
				synctest.Wait()
				close(out)
				wg.Wait()
				if n := refused.Load(); n > 0 {
					t.Errorf("%d of a burst of 11 refused, though there is room for all", n)
				}
			})
		})
	}
}

func TestDrainRateFades(t *testing.T) {
	var d drainRate
	now := time.Now()
	for i := range 1000 {
		d.dispatched(now.Add(time.Duration(i)*10*time.Millisecond), true)
	}
	now = now.Add(10 * time.Second)
	if r := d.perSecond(now); r < 90 || r > 110 {
		t.Errorf("a hundred a second: %.1f", r)
	}
	if r := d.perSecond(now.Add(4 * time.Minute)); r > 1 {
		t.Errorf("four minutes after the last: %.1f a second", r)
	}
}

func TestReserveWaitRefusesNobodyOfABurstThatFits(t *testing.T) {
	l := memoryLimiter(t)
	lim := &configs.Limits{RequestsPerMinute: 1_000_000}
	var refused atomic.Int64
	var wg sync.WaitGroup
	start := make(chan struct{})
	for range 500 {
		wg.Go(func() {
			<-start
			if _, err := l.ReserveWait(t.Context(), &Request{Key: "k", Model: "m", KeyLimits: lim, Cost: Cost{Requests: 1}}, time.Second, 1); err != nil {
				refused.Add(1)
			}
		})
	}
	close(start)
	wg.Wait()
	if n := refused.Load(); n > 0 {
		t.Errorf("%d of 500 at once refused by a rate that has room for all", n)
	}
}

func TestReserveWaitOfOneModelHoldsUpNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := memoryLimiter(t)
		slow := &configs.Limits{RequestsPerMinute: 6, RequestsBurst: 1}
		ask := func(model string) error {
			_, err := l.ReserveWait(t.Context(), &Request{Key: "k", Model: model, KeyModelLimits: slow, Cost: Cost{Requests: 1}}, time.Minute, 0)
			return err
		}
		_ = ask("a")
		for range 3 {
			go func() { _ = ask("a") }()
		}
		synctest.Wait()
		start := time.Now()
		if err := ask("b"); err != nil || time.Since(start) > 0 {
			t.Errorf("the first request to another model: %v after %v", err, time.Since(start))
		}
		time.Sleep(time.Hour)
	})
}

func TestReserveWaitsRefusalIsTrue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := memoryLimiter(t)
		slow := &configs.Limits{RequestsPerMinute: 6, RequestsBurst: 1}
		ask := func() error {
			_, err := l.ReserveWait(t.Context(), &Request{Key: "k", Model: "m", KeyLimits: slow, Cost: Cost{Requests: 1}}, time.Minute, 1)
			return err
		}
		_ = ask()
		go func() { _ = ask() }()
		synctest.Wait()
		f, _ := errors.AsType[*Refusal](ask())
		if f == nil || f.Kind != KindQueueFull || f.State.Requests.Limit == 0 || f.RetryAfter < 10*time.Second {
			t.Errorf("got %v with state %+v, Retry-After %v; want queue_full, the rate's state, and when the next place comes", f, f.State, f.RetryAfter)
		}
		time.Sleep(time.Hour)
	})
}

func TestEstimateLearnsNothingFromWhatIsNotText(t *testing.T) {
	e := NewEstimator(0)
	for range 1000 {
		e.Learn("m", Size{Bytes: 2}, 1, 22)    // "hi" in a chat template
		e.Learn("m", Size{Bytes: 1}, 1, 1<<40) // nonsense
	}
	if got := e.Input("m", Size{Bytes: 4000}); got != 1000 {
		t.Errorf("4000 bytes are estimated at %d tokens, want 1000 as at first", got)
	}
}

func TestPartsTakeNoPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newTestQueue(configs.Queue{MaxLength: 3})
		ticket := func(key string, part bool) error {
			err := q.Acquire(t.Context(), &Ticket{
				Item: Item{Key: key, Input: 10, Part: part}, Bounds: configs.Queue{MaxLength: 1}, Binder: noRoom, Asked: time.Minute,
			})
			if errors.Is(err, context.Canceled) {
				return nil
			}
			return err
		}
		failed := make(chan error, 32)
		for range 10 {
			go func() { failed <- ticket("a", true) }()
		}
		synctest.Wait()
		go func() { failed <- ticket("a", false) }()
		synctest.Wait()
		select {
		case err := <-failed:
			t.Errorf("one request of its key beside ten parts: got %v, want that it waits", err)
		default:
		}
		if f, ok := errors.AsType[*Refusal](ticket("a", false)); !ok || f.Kind != KindQueueFull || f.Used != 1 {
			t.Errorf("a second one: got %+v, want queue_full at 1 of 1", f)
		}
		for _, key := range []string{"b", "c"} {
			go func() { failed <- ticket(key, false) }()
		}
		synctest.Wait()
		if n := q.Len(); n != 13 {
			t.Errorf("%d wait, want 10 parts and 3 requests", n)
		}
		if f, ok := errors.AsType[*Refusal](ticket("d", false)); !ok || f.Kind != KindQueueFull || f.Used != 3 {
			t.Errorf("a fourth: got %+v, want queue_full at 3 of 3", f)
		}
	})
}

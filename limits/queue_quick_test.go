package limits

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"penstock/configs"
)

// bindAt is a Binder that is told the time.
type bindAt func(now time.Time) (bool, error)

func (f bindAt) TryBind(now time.Time) (bool, error) { return f(now) }

// TestBinderIsToldTheTime: that of the look at hand, whoever dispatches.
func TestBinderIsToldTheTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, e := newTestQueue(configs.Queue{}), &engineSlots{}
		binder := bindAt(func(now time.Time) (bool, error) {
			if d := time.Since(now); d != 0 {
				t.Errorf("told a time %v ago, want now", d)
			}
			return e.bind()
		})
		time.AfterFunc(2500*time.Millisecond, func() { e.release(); q.Kick() })
		tk := &Ticket{Item: Item{Key: "a"}, Binder: binder}
		if err := q.Acquire(t.Context(), tk); err != nil || tk.Took() != 2500*time.Millisecond {
			t.Errorf("got %v after %v, want it bound after 2.5s", err, tk.Took())
		}
	})
}

// TestTookIsTheWaitAlone: who is bound at once has not waited, but who
// dispatches others meanwhile has.
func TestTookIsTheWaitAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newTestQueue(configs.Queue{})
		slow := bindFunc(func() (bool, error) { time.Sleep(time.Millisecond); return true, nil })
		alone := &Ticket{Item: Item{Key: "a"}, Binder: slow}
		if err := q.Acquire(t.Context(), alone); err != nil || alone.Took() != 0 {
			t.Errorf("alone: got %v after %v, want it bound at once", err, alone.Took())
		}
		var took [5]time.Duration
		var wg sync.WaitGroup
		for i := range took { // the first binds all of them
			wg.Go(func() {
				tk := &Ticket{Item: Item{Key: "a"}, Binder: slow}
				if err := q.Acquire(t.Context(), tk); err != nil {
					t.Error(err)
				}
				took[i] = tk.Took()
			})
		}
		wg.Wait()
		var sum time.Duration
		for _, d := range took {
			sum += d
		}
		if want := (4 + 2 + 3 + 4 + 5) * time.Millisecond; sum != want { // the first until the last look, each other until it was bound
			t.Errorf("five of which the first binds all: took %v, %v in all, want %v", took, sum, want)
		}
	})
}

// TestKickMeetsWhoEnters: room that comes back just when a request enters is
// seen by it or told to it; it never has to look again by itself.
func TestKickMeetsWhoEnters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, e := newTestQueue(configs.Queue{}), &engineSlots{}
		for range 2000 {
			tk := &Ticket{Item: Item{Key: "a"}, Binder: bindFunc(e.bind)}
			var wg sync.WaitGroup
			wg.Go(func() { e.release(); q.Kick() })
			if err := q.Acquire(t.Context(), tk); err != nil || tk.Took() != 0 {
				t.Fatalf("got %v after %v, want it bound at once", err, tk.Took())
			}
			wg.Wait()
			q.Settle(time.Now(), tk, 1, 1)
		}
	})
}

// TestNobodyOvertakesWhoWaits: who comes when room does goes behind its equals that wait.
func TestNobodyOvertakesWhoWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, e := newTestQueue(configs.Queue{}), &engineSlots{}
		first := make(chan string, 2)
		acquire := func(name string) {
			if err := q.Acquire(t.Context(), &Ticket{Item: Item{Key: "k", Input: 10}, Binder: bindFunc(e.bind)}); err != nil {
				t.Error(err)
			}
			first <- name
		}
		go acquire("a")
		synctest.Wait()
		e.release() // without a kick: nobody who waits has seen it yet
		go acquire("b")
		synctest.Wait()
		if got := <-first; got != "a" {
			t.Errorf("%s was bound first, want a, who waited", got)
		}
		e.release()
		q.Kick()
		<-first
	})
}

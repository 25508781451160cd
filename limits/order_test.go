package limits

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

// simEngine is a saturated engine in simulated time: slots, and a time for each
// request by its tokens. Who runs is decided by an Order.
type simEngine struct {
	order *Order
	now   time.Time
	free  int
	ends  simEnds
	done  func(*simRequest)
}

type simRequest struct {
	Item
	end        time.Time
	in, out    int // as they turn out
	dispatched time.Time
}

type simEnds []*simRequest

func (h simEnds) Len() int           { return len(h) }
func (h simEnds) Less(i, j int) bool { return h[i].end.Before(h[j].end) }
func (h simEnds) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *simEnds) Push(x any)        { *h = append(*h, x.(*simRequest)) }
func (h *simEnds) Pop() any {
	old := *h
	x := old[len(old)-1]
	*h = old[:len(old)-1]
	return x
}

func newSimEngine(slots int) *simEngine {
	return &simEngine{order: &Order{Credit: 0.085, Hold: 5 * time.Second}, now: epochTime(), free: slots}
}

// dispatch starts what fits.
func (e *simEngine) dispatch(requests map[*Item]*simRequest) {
	for {
		it := e.order.Next(e.now, func(*Item) bool { return e.free > 0 })
		if it == nil {
			return
		}
		e.free--
		r := requests[it]
		delete(requests, it)
		r.dispatched = e.now
		r.end = e.now.Add(time.Duration(r.in)*100*time.Microsecond + time.Duration(r.out)*10*time.Millisecond)
		heap.Push(&e.ends, r)
	}
}

// run plays until the given time. refill puts requests into the queue.
func (e *simEngine) run(until time.Time, refill func(requests map[*Item]*simRequest)) {
	requests := make(map[*Item]*simRequest)
	for {
		refill(requests)
		e.dispatch(requests)
		r := heap.Pop(&e.ends).(*simRequest)
		if r.end.After(until) {
			return
		}
		e.now = r.end
		e.free++
		e.order.Settle(e.now, &r.Item, r.in, r.out)
		e.done(r)
	}
}

// saturate runs keys that always have requests waiting, of unequal sizes and
// with outputs unlike their estimates, and returns the tokens that each got.
func saturate(weights []float64, seed uint64) []float64 {
	rnd := rand.New(rand.NewPCG(seed, 4))
	e := newSimEngine(64)
	got := make([]float64, len(weights))
	names := map[string]int{}
	warm := e.now.Add(2 * time.Minute)
	e.done = func(r *simRequest) {
		if e.now.After(warm) {
			got[names[r.Key]] += float64(r.in + outputWeight*r.out)
		}
	}
	e.run(e.now.Add(12*time.Minute), func(requests map[*Item]*simRequest) {
		for i, w := range weights {
			key := fmt.Sprint("key", i)
			names[key] = i
			for e.order.KeyPlaces(key) < 5+3*i {
				r := &simRequest{in: 100 + rnd.IntN(1000*(1+i%4)), out: 1 + rnd.IntN(100*(1+i%5))}
				r.Item = Item{Key: key, Weight: w, Input: r.in, Output: 1024}
				requests[&r.Item] = r
				e.order.Push(e.now, e.now, &r.Item)
			}
		}
	})
	return got
}

func jain(x []float64) float64 {
	var sum, squares float64
	for _, v := range x {
		sum += v
		squares += v * v
	}
	return sum * sum / (float64(len(x)) * squares)
}

func TestTenEqualKeysShareEqually(t *testing.T) {
	for seed := range max(1, fewer(2)) {
		got := saturate([]float64{1, 1, 1, 1, 1, 1, 1, 1, 1, 1}, seed)
		if j := jain(got); j < 0.98 {
			t.Errorf("seed %d: Jain's index %.4f over tokens %.0f, want at least 0.98", seed, j, got)
		} else {
			t.Logf("Jain's index %.5f", j)
		}
	}
}

func TestWeightsAreHonoured(t *testing.T) {
	for seed := range max(1, fewer(2)) {
		got := saturate([]float64{1, 2, 4}, seed)
		unit := (got[0] + got[1] + got[2]) / 7
		for i, w := range []float64{1, 2, 4} {
			if share := got[i] / (unit * w); share < 0.95 || share > 1.05 {
				t.Errorf("seed %d: weight %v got %.3f of its share (%.0f), want within 5 %%", seed, w, share, got)
			}
		}
		t.Logf("tokens %.0f", got)
	}
}

// TestPoliteKeyIsAlwaysNext: one key floods, another asks once a second.
// Whenever room comes while the second waits, it gets it.
func TestPoliteKeyIsAlwaysNext(t *testing.T) {
	rnd := rand.New(rand.NewPCG(5, 5))
	e := newSimEngine(16)
	polite, next := 0, e.now.Add(time.Second)
	e.done = func(r *simRequest) {
		if r.Key != "polite" {
			return
		}
		polite++
		// Room comes every few hundred milliseconds; the wait ends with the first.
		if w := r.dispatched.Sub(r.Since()); w > 2*time.Second {
			t.Errorf("the polite key's request waited %v, want the next room that comes", w)
		}
	}
	inOrder := true
	e.run(e.now.Add(20*time.Minute), func(requests map[*Item]*simRequest) {
		for e.order.KeyPlaces("flood") < 200 {
			r := &simRequest{in: 500 + rnd.IntN(4000), out: 50 + rnd.IntN(500)}
			r.Item = Item{Key: "flood", Input: r.in, Output: 1024}
			requests[&r.Item] = r
			e.order.Push(e.now, e.now, &r.Item)
		}
		for !next.After(e.now) {
			r := &simRequest{in: 500, out: 100}
			r.Item = Item{Key: "polite", Input: r.in, Output: 1024}
			requests[&r.Item] = r
			e.order.Push(e.now, e.now, &r.Item)
			next = next.Add(time.Second)
		}
		if e.order.KeyPlaces("polite") > 0 {
			c := e.order.Candidates(e.now, nil, 1, 1)
			inOrder = inOrder && c[0].Key == "polite"
		}
	})
	if !inOrder {
		t.Error("the flooding key was ahead of the polite one at some time")
	}
	if polite < 1000 {
		t.Errorf("%d polite requests ended, want all of about 1200", polite)
	}
}

func TestHeadThatFitsNowhereIsPassedOverForAWhileOnly(t *testing.T) {
	now := epochTime()
	o := &Order{Hold: 5 * time.Second}
	big := &Item{Key: "a", Input: 1000}
	o.Push(now, now, big)
	small := func() *Item {
		it := &Item{Key: "a", Input: 2000} // behind big by its work
		o.Push(now, now, it)
		return it
	}
	fits := func(it *Item) bool { return it != big }
	for i := range 5 {
		it := small()
		if got := o.Next(now, fits); got != it {
			t.Fatalf("after %d s: got %v, want the small one to pass", i, got)
		}
		now = now.Add(time.Second)
	}
	small()
	if got := o.Next(now, fits); got != nil {
		t.Fatalf("after 5 s of being passed over: got %+v, want room kept for the head", got)
	}
	if got := o.Next(now, func(*Item) bool { return true }); got != big {
		t.Fatalf("when it fits: got %+v, want the head", got)
	}
}

func TestLeastWorkFirstUntilWaitingCountsMore(t *testing.T) {
	start := epochTime()
	o := &Order{Credit: 0.1, Hold: time.Minute}
	o.SetRate(10_000) // waiting a second counts 1000 tokens
	long := &Item{Key: "a", Input: 8000}
	o.Push(start, start, long)
	for i := range 20 {
		now := start.Add(time.Duration(i) * time.Second)
		short := &Item{Key: "a", Input: 500}
		o.Push(now, now, short)
		got := o.Next(now, func(*Item) bool { return true })
		if want := i > 7; (got == long) != want {
			t.Fatalf("after %d s: long first is %v, want %v (8000 − 1000 per second against 500)", i, got == long, want)
		}
		if got == long {
			return
		}
	}
	t.Fatal("the long request starved")
}

func TestKeyComingBackStartsAtTheActiveMinimum(t *testing.T) {
	now := epochTime()
	o := &Order{}
	run := func(key string, n int) {
		for range n {
			it := &Item{Key: key, Input: 100}
			o.Push(now, now, it)
			if o.Next(now, func(*Item) bool { return true }) != it {
				t.Fatal("not dispatched")
			}
			o.Settle(now, it, 100, 0)
		}
	}
	run("old", 1000) // alone for long
	run("new", 1)
	// Both now flood: neither may be owed the past.
	turns := map[string]int{}
	for _, k := range []string{"old", "new"} {
		for range 100 {
			o.Push(now, now, &Item{Key: k, Input: 100})
		}
	}
	for range 40 {
		it := o.Next(now, func(*Item) bool { return true })
		o.Settle(now, it, 100, 0)
		turns[it.Key]++
	}
	if turns["old"] < 18 || turns["new"] < 18 {
		t.Errorf("turns %v of 40, want about half each", turns)
	}
}

// slots are Slots that are free or not.
type slots bool

func (s slots) TrySlot(time.Time) bool { return bool(s) }

// TestRequestWithASlotIsNotHiddenByOneThatWaitsForIt: its key's first request
// gets no slot, another has one already.
func TestRequestWithASlotIsNotHiddenByOneThatWaitsForIt(t *testing.T) {
	now := epochTime()
	o := &Order{}
	o.Push(now, now, &Item{Key: "a", Input: 1, Slots: slots(false)})
	has := &Item{Key: "a", Input: 1000, Slots: slots(true), asked: true}
	o.Push(now, now, has)
	if got := o.Next(now, func(*Item) bool { return true }); got != has {
		t.Errorf("got %+v, want the request that has its slot", got)
	}
}

// TestRoomKeptForOneLaneDoesNotHoldUpAnother: a scoring request that waits for
// its lane's room does not stop chat.
func TestRoomKeptForOneLaneDoesNotHoldUpAnother(t *testing.T) {
	now := epochTime()
	o := &Order{Hold: 5 * time.Second}
	for range 20 {
		o.Push(now, now, &Item{Key: "a", Lane: 1, Input: 10})
	}
	fits := func(it *Item) bool { return it.Lane == 0 }
	for i := range 20 {
		chat := &Item{Key: "a", Input: 1000}
		o.Push(now, now, chat)
		if c := o.Candidates(now, nil, 64, 8); len(c) > 9 {
			t.Fatalf("%d candidates, want 8 of one lane and 1 of the other at most", len(c))
		}
		if got := o.Next(now, fits); got != chat {
			t.Fatalf("after %d s: got %+v, want the chat request", i, got)
		}
		now = now.Add(time.Second)
	}
	if got := o.Candidates(now, nil, 64, 8); len(got) != 1 {
		t.Errorf("%d candidates of the lane whose head was passed over, want the head alone", len(got))
	}
}

package gateway

import (
	"context"
	"errors"
	"sync"
	"testing"

	"penstock/gateway/relay"
)

// wants are the ways in which somebody may want the real context.
var wants = map[string]func(*waiting){
	"nobody":  func(*waiting) {},
	"Done":    func(w *waiting) { w.Done() },
	"Cause":   func(w *waiting) { _ = context.Cause(w) },
	"derived": func(w *waiting) { _, cancel := context.WithCancel(w); cancel() },
}

func TestAWaitEndsForItsFirstCause(t *testing.T) {
	for name, want := range wants {
		for _, early := range []bool{true, false} {
			drain, stop := context.WithCancelCause(context.Background())
			w := &waiting{parent: drain}
			if w.Err() != nil || w.why() != nil {
				t.Errorf("%s: it has ended before its end: %v, %v", name, w.Err(), w.why())
			}
			if early {
				want(w)
			}
			w.end(errClientGone)
			w.end(nil)
			stop(relay.ErrDraining)
			if !early {
				want(w)
			}
			ended(t, name, w, errClientGone)
		}
	}
}

func TestAWaitEndsWithItsParent(t *testing.T) {
	for name, want := range wants {
		for _, early := range []bool{true, false} {
			drain, stop := context.WithCancelCause(context.Background())
			w := &waiting{parent: drain}
			if early {
				want(w)
			}
			stop(relay.ErrDraining)
			w.end(errClientGone)
			if !early {
				want(w)
			}
			ended(t, name, w, relay.ErrDraining)
		}
	}
}

// ended checks all that can be asked of a wait after its end.
func ended(t *testing.T, name string, w *waiting, cause error) {
	t.Helper()
	if got := w.why(); !errors.Is(got, cause) {
		t.Errorf("%s: it ended for %v, want %v", name, got, cause)
	}
	if !errors.Is(w.Err(), context.Canceled) {
		t.Errorf("%s: Err is %v, want context.Canceled", name, w.Err())
	}
	if got := context.Cause(w); !errors.Is(got, cause) {
		t.Errorf("%s: context.Cause is %v, want %v", name, got, cause)
	}
	select {
	case <-w.Done():
	default:
		t.Errorf("%s: Done is open after the end", name)
	}
	derived, cancel := context.WithCancel(w)
	defer cancel()
	if got := context.Cause(derived); !errors.Is(got, cause) {
		t.Errorf("%s: a derived context's cause is %v, want %v", name, got, cause)
	}
}

// A part's wait ends with the whole's, and by itself.
func TestAWaitWithinAWait(t *testing.T) {
	whole := &waiting{parent: context.Background()}
	one, other := &waiting{parent: whole}, &waiting{parent: whole}
	one.end(errSibling)
	if whole.why() != nil || other.why() != nil {
		t.Errorf("a part's end ended the whole (%v) or another part (%v)", whole.why(), other.why())
	}
	told := make(chan struct{})
	context.AfterFunc(other, func() { close(told) })
	whole.end(errClientGone)
	<-told
	ended(t, "the part that failed", one, errSibling)
	ended(t, "the other", other, errClientGone)
}

// counted counts what registers with it and has not gone, as the parent of all waits would keep it.
type counted struct {
	context.Context
	mu   sync.Mutex
	kept int
}

func (c *counted) Value(any) any { return nil }

func (c *counted) Done() <-chan struct{} { return make(chan struct{}) }

func (c *counted) AfterFunc(func()) func() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.kept++
	return func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.kept--
		return true
	}
}

func TestAWaitLeavesNothingBehind(t *testing.T) {
	for name, want := range wants {
		for _, early := range []bool{true, false} {
			c := &counted{Context: context.Background()}
			w := &waiting{parent: c}
			if early {
				want(w)
			}
			if wanted := early && (name == "Done" || name == "derived"); wanted != (c.kept == 1) {
				t.Errorf("%s: %d kept by the parent before the end", name, c.kept)
			}
			w.end(nil)
			if !early {
				want(w)
			}
			if c.kept != 0 {
				t.Errorf("%s, early %v: %d kept by the parent after the end", name, early, c.kept)
			}
		}
	}
}

func TestAWaitThatNobodyWaitsForAllocatesNothing(t *testing.T) {
	drain, stop := context.WithCancelCause(context.Background())
	defer stop(nil)
	var w waiting
	if n := testing.AllocsPerRun(100, func() {
		w.parent, w.cause = drain, nil
		if w.Err() != nil || w.why() != nil {
			t.Error("it has ended")
		}
		w.end(nil)
	}); n > 0 {
		t.Errorf("%v allocations, want none", n)
	}
}

// A client leaves, the drain ends and others look, all at once.
func TestAWaitUnderRaces(t *testing.T) {
	for range 200 {
		drain, stop := context.WithCancelCause(context.Background())
		w := &waiting{parent: drain}
		var wg sync.WaitGroup
		for _, f := range []func(){
			func() { w.end(errClientGone) },
			func() { stop(relay.ErrDraining) },
			func() { <-w.Done() },
			func() { w.Err(); w.why() },
			func() { _, cancel := context.WithCancel(w); cancel() },
		} {
			wg.Go(f)
		}
		wg.Wait()
		if w.why() == nil || !errors.Is(context.Cause(w), w.why()) {
			t.Fatalf("why is %v, context.Cause %v", w.why(), context.Cause(w))
		}
		w.end(nil)
	}
}

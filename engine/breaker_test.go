package engine

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"penstock/configs"
)

// twoEngines runs a test in virtual time with engines a and b of one model.
func twoEngines(t *testing.T, run func(t *testing.T, m *memory, a, b *Replica, rec *recorder)) {
	synctest.Test(t, func(t *testing.T) {
		m := startMemory(t, map[string]*fake{"a": bare(KindSGLang, 1), "b": bare(KindSGLang, 1)})
		rec := &recorder{}
		f := NewFleet(Options{Notify: rec.notify, Dial: m.dial})
		defer f.Close()
		apply(t, f, slow(served("m",
			configs.Engine{URL: "http://a:80", ID: "a"}, configs.Engine{URL: "http://b:80", ID: "b"})))
		run(t, m, replica(t, f, "a"), replica(t, f, "b"), rec)
	})
}

// report sends one attempt with the given outcome through the breaker.
func report(t *testing.T, r *Replica, o Outcome) {
	t.Helper()
	done, err := r.Allow()
	if err != nil {
		t.Fatalf("replica %s, outcome %d: %v", r.ID(), o, err)
	}
	done(o)
}

func TestBreakerOpensTriesAndCloses(t *testing.T) {
	twoEngines(t, func(t *testing.T, _ *memory, a, b *Replica, rec *recorder) {
		for range 5 {
			report(t, a, Failure)
		}
		if a.State() != StateOpen || a.Usable() || !b.Usable() {
			t.Fatalf("after 5 failures in a row: got state %s, usable %v; want open, not usable", a.State(), a.Usable())
		}
		if _, err := a.Allow(); !errors.Is(err, ErrOpen) {
			t.Errorf("Allow on an open breaker: got %v, want ErrOpen", err)
		}
		time.Sleep(5*time.Second + 10*time.Millisecond)
		synctest.Wait()
		if a.State() != StateHalfOpen || !a.Usable() {
			t.Fatalf("after the open time: got state %s, usable %v; want half_open, usable", a.State(), a.Usable())
		}
		first, err1 := a.Allow()
		second, err2 := a.Allow()
		if err1 != nil || err2 != nil || a.Usable() {
			t.Fatalf("two trials: got %v, %v, usable %v; want both, and then no more", err1, err2, a.Usable())
		}
		first(Neutral) // a trial that says nothing gives its place back
		if !a.Usable() {
			t.Error("a neutral trial kept its place")
		}
		second(Success)
		report(t, a, Success)
		if a.State() != StateHealthy || !a.Usable() {
			t.Errorf("after two successful trials: got state %s, want healthy", a.State())
		}
		if got := rec.count(StateChanged); got != 3 {
			t.Errorf("state_changed events: got %d, want open, half_open, healthy", got)
		}
	})
}

func TestFailedTrialOpensAgain(t *testing.T) {
	twoEngines(t, func(t *testing.T, _ *memory, a, _ *Replica, _ *recorder) {
		for range 5 {
			report(t, a, Failure)
		}
		time.Sleep(5*time.Second + 10*time.Millisecond)
		report(t, a, Failure)
		if a.State() != StateOpen {
			t.Errorf("after a failed trial: got state %s, want open", a.State())
		}
		time.Sleep(5*time.Second + 10*time.Millisecond)
		if a.State() != StateHalfOpen {
			t.Errorf("after another open time: got state %s, want half_open", a.State())
		}
	})
}

func TestBackpressureAndClientErrorsDoNotOpen(t *testing.T) {
	twoEngines(t, func(t *testing.T, _ *memory, a, _ *Replica, _ *recorder) {
		for _, status := range []int{429, 503, 400, 404, 422, 499} {
			for range 100 {
				report(t, a, OutcomeOf(status))
			}
			if a.State() != StateHealthy || !a.Usable() {
				t.Errorf("after 100 answers of %d: got state %s, want healthy", status, a.State())
			}
		}
		for range 4 {
			report(t, a, OutcomeOf(500))
		}
		report(t, a, OutcomeOf(200))
		for range 4 {
			report(t, a, OutcomeOf(502))
		}
		if a.State() != StateHealthy {
			t.Errorf("4 failures, a success, 4 failures: got state %s, want healthy", a.State())
		}
	})
}

func TestHalfOfManyFailingOpens(t *testing.T) {
	twoEngines(t, func(t *testing.T, _ *memory, a, _ *Replica, _ *recorder) {
		for range 9 {
			report(t, a, Success)
			report(t, a, Failure)
		}
		if a.State() != StateHealthy {
			t.Fatalf("9 of 18 failed: got state %s, want healthy below 20 requests", a.State())
		}
		report(t, a, Success)
		report(t, a, Failure)
		if a.State() != StateOpen {
			t.Errorf("10 of 20 failed: got state %s, want open", a.State())
		}
	})
}

func TestLastReplicaIsNeverTakenOutByItsBreaker(t *testing.T) {
	twoEngines(t, func(t *testing.T, m *memory, a, b *Replica, _ *recorder) {
		for range 5 {
			report(t, a, Failure)
		}
		for range 50 {
			report(t, b, Failure)
		}
		if b.State() != StateHealthy || !b.Usable() {
			t.Fatalf("the last one, after 50 failures: got state %s, usable %v; want healthy and usable", b.State(), b.Usable())
		}
		m.kill("b")
		within(t, 3*time.Second, "b out by its probes", func() bool { return !b.Usable() })
		if a.State() == StateHealthy || !a.Usable() {
			t.Errorf("a, alone left, with its breaker %s: got usable %v, want usable", a.State(), a.Usable())
		}
		report(t, a, Success)
	})
}

func TestAllBreakersHalfOpenWithoutTrialsStillServe(t *testing.T) {
	twoEngines(t, func(t *testing.T, m *memory, a, b *Replica, _ *recorder) {
		for range 5 {
			report(t, a, Failure)
		}
		m.kill("b")
		time.Sleep(6 * time.Second)
		for range 10 { // more than the trials: their outcomes are still to come
			if _, err := a.Allow(); err != nil || !a.Usable() {
				t.Fatalf("the only one left, half-open: got %v, usable %v; want it to serve", err, a.Usable())
			}
		}
	})
}

func TestRanksOfAURLShareItsBreaker(t *testing.T) {
	x, y := newFake(t, KindSGLang, 2), newFake(t, KindSGLang, 2)
	f, _ := startFleet(t, quick(served("m", configs.Engine{URL: x.URL, ID: "x"}, configs.Engine{URL: y.URL, ID: "y"})))
	for range 5 {
		report(t, replica(t, f, "x/0"), Failure)
	}
	if s := replica(t, f, "x/1").State(); s != StateOpen {
		t.Errorf("the other rank of a URL with an open breaker: got state %s, want open", s)
	}
	eventually(t, "half-open after the open time", func() bool { return replica(t, f, "x/1").State() == StateHalfOpen })
}

func BenchmarkAllow(b *testing.B) {
	x := newFake(b, KindSGLang, 1)
	f, _ := startFleet(b, quick(served("m", at(x))))
	r := f.Replicas()[0]
	b.ReportAllocs()
	for b.Loop() {
		done, _ := r.Allow()
		done(Success)
	}
}

func BenchmarkBeginEnd(b *testing.B) {
	x := newFake(b, KindSGLang, 2)
	f, _ := startFleet(b, quick(served("m", at(x))))
	r := f.Replicas()[0]
	b.ReportAllocs()
	for b.Loop() {
		r.Begin(true).End(true)
	}
}

package sched

import (
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

// clocked notes when, by the clock, its tokens came.
type clocked struct {
	mu    sync.Mutex
	n     int
	times []time.Time
	ready time.Time
	done  chan struct{}
}

func newClocked(n int) *clocked { return &clocked{n: n, done: make(chan struct{})} }

func (c *clocked) Prefilled(int) { c.ready = time.Now() }
func (c *clocked) Signal()       {}
func (c *clocked) Next() (uint32, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.times = append(c.times, time.Now())
	if len(c.times) == c.n {
		close(c.done)
		return 1, true
	}
	return 1, false
}

func (c *clocked) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.times)
}

func submit(t *testing.T, r *Rank, prompt []uint32, n int) (*Task, *clocked) {
	t.Helper()
	c := newClocked(n)
	task := &Task{Prompt: prompt, Max: n, Seq: c}
	if err := r.Submit(task); err != nil {
		t.Fatalf("Submit: %v", err)
	}
	return task, c
}

func TestRankKeepsTheProfilesTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, err := ProfileNamed(GLM52)
		if err != nil {
			t.Fatal(err)
		}
		for _, scale := range []float64{1, 10} {
			r := NewRank(Config{Profile: p.Scaled(scale)})
			begun := time.Now()
			_, c := submit(t, r, seq(0, 256), 256)
			<-c.done
			first, each := c.times[0].Sub(begun).Seconds()*scale, c.times[255].Sub(c.times[0]).Seconds()/255*scale
			if first < 0.235 || first > 0.245 || each < 0.0127 || each > 0.0129 {
				t.Errorf("at %v times the pace: got TTFT %.4f and TPOT %.5f, want 0.24 and 0.0128", scale, first, each)
			}
			r.Close()
		}
	})
}

func TestLateTimersDoNotAddUp(t *testing.T) {
	// In a bubble timers are exact; this is about steps that begin where the last
	// one ended even when it is over: a thousand steps take a thousand seconds.
	synctest.Test(t, func(t *testing.T) {
		r := NewRank(Config{Profile: unit(func(p *Profile) { p.KVTokens = 5000 })})
		defer r.Close()
		begun := time.Now()
		_, c := submit(t, r, seq(0, 10), 1000)
		<-c.done
		if got := time.Since(begun); got != 1000*time.Second {
			t.Errorf("a thousand steps of a second: got %v", got)
		}
	})
}

func TestFrozenRankStandsStillAndGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := NewRank(Config{Profile: unit(nil)})
		defer r.Close()
		_, c := submit(t, r, seq(0, 10), 20)
		time.Sleep(5500 * time.Millisecond)
		r.Freeze(true)
		had := c.count()
		time.Sleep(time.Hour)
		if got := c.count(); got != had || had != 5 {
			t.Errorf("frozen after 5.5 s, an hour later: got %d tokens, had %d, want 5", got, had)
		}
		r.Freeze(false)
		<-c.done
	})
}

func TestSlowPrefillIsSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := NewRank(Config{Profile: unit(func(p *Profile) { p.PerToken = time.Second })})
		defer r.Close()
		r.SlowPrefill(3)
		begun := time.Now()
		_, c := submit(t, r, seq(0, 10), 1)
		<-c.done
		if got := time.Since(begun); got != 31*time.Second {
			t.Errorf("ten tokens of a second three times as slow and a step of one: got %v, want 31s", got)
		}
	})
}

func TestAbortReturnsWhenNothingIsCalledAnyMore(t *testing.T) {
	defer goleak.VerifyNone(t)
	r := NewRank(Config{Profile: Profiles()[0]})
	defer r.Close()
	for range 50 {
		task, c := submit(t, r, seq(0, 10), 1e5)
		r.Abort(task)
		had := c.count()
		r.Load()
		if got := c.count(); got != had {
			t.Fatalf("after Abort: got %d tokens, had %d", got, had)
		}
	}
	if l := r.Load(); l.Running+l.Waiting+l.Used != 0 {
		t.Errorf("after all aborts: got load %+v, want nothing", l)
	}
}

func TestClosedRankRefuses(t *testing.T) {
	defer goleak.VerifyNone(t)
	r := NewRank(Config{Profile: Profiles()[0]})
	r.Close()
	r.Close()
	if err := r.Submit(&Task{Prompt: seq(0, 3), Max: 1, Seq: newClocked(1)}); !errors.Is(err, ErrClosed) {
		t.Errorf("Submit after Close: got %v, want %v", err, ErrClosed)
	}
}

func BenchmarkInstantTokens(b *testing.B) {
	c := NewCore(Config{Profile: Profiles()[0]})
	now := time.Unix(1e9, 0)
	b.ReportAllocs()
	tokens := 0
	for b.Loop() {
		for range 16 {
			if err := c.Add(&Task{Prompt: seq(0, 64), Max: 128, Seq: &script{n: 128}}, now); err != nil {
				b.Fatal(err)
			}
		}
		for {
			if _, ok := c.Start(now); !ok {
				break
			}
			c.Finish(now)
		}
		tokens += 16 * 128
	}
	b.ReportMetric(float64(tokens)/b.Elapsed().Seconds(), "tokens/s")
}

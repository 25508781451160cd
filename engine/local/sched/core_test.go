package sched

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// unit is a profile whose steps take a second each, whatever they do.
func unit(change func(*Profile)) Profile {
	p := Profile{Name: "unit", Base: time.Second, Chunk: 100, KVTokens: 1000, PageSize: 1, MaxRunning: 10, ContextLen: 1000}
	if change != nil {
		change(&p)
	}
	return p
}

// script is a sequence that generates n tokens and notes what happens to it.
type script struct {
	n        int
	prefills int
	cached   int
	tokens   int
	over     bool
	token    uint32
}

func (s *script) Prefilled(cached int) { s.prefills++; s.cached = cached }
func (s *script) Signal()              {}
func (s *script) Next() (uint32, bool) {
	s.tokens++
	s.over = s.tokens == s.n
	s.token++
	return 5000 + s.token, s.over
}

// driver runs a core in simulated time.
type driver struct {
	t    *testing.T
	core *Core
	now  time.Time
}

func drive(t *testing.T, cfg Config) *driver {
	return &driver{t: t, core: NewCore(cfg), now: time.Unix(1e9, 0)}
}

func (d *driver) add(prompt []uint32, n int) (*Task, *script) {
	d.t.Helper()
	s := &script{n: n}
	task := &Task{Prompt: prompt, Max: n, Seq: s}
	if err := d.core.Add(task, d.now); err != nil {
		d.t.Fatalf("Add(%d tokens): %v", len(prompt), err)
	}
	return task, s
}

// step runs one step; it is false when there was nothing to do.
func (d *driver) step() bool {
	end, ok := d.core.Start(d.now)
	if !ok {
		if next := d.core.Next(); next.After(d.now) {
			d.now = next
			return true
		}
		return false
	}
	d.now = end
	d.core.Finish(end)
	check(d.t, d.core.cache)
	if l := d.core.Load(); l.Running > d.core.cfg.Profile.MaxRunning || l.Used > l.Capacity {
		d.t.Fatalf("load %+v: over a limit", l)
	}
	return true
}

func (d *driver) drain() (steps int) {
	for d.step() {
		if steps++; steps > 1e6 {
			d.t.Fatal("a million steps without an end")
		}
	}
	return steps
}

func TestPromptsAreReadInChunksBesideDecoding(t *testing.T) {
	d := drive(t, Config{Profile: unit(nil)})
	_, a := d.add(seq(0, 10), 50)
	d.step()
	if a.tokens != 1 {
		t.Fatalf("after the step that read its prompt: got %d tokens, want 1", a.tokens)
	}
	_, b := d.add(seq(1000, 1250), 5) // two and a half chunks
	for i, want := range []struct{ a, b int }{{2, 0}, {3, 0}, {4, 1}, {5, 2}} {
		d.step()
		if a.tokens != want.a || b.tokens != want.b {
			t.Errorf("step %d: got %d and %d tokens, want %d and %d", i, a.tokens, b.tokens, want.a, want.b)
		}
	}
}

func TestRunningLimitHoldsAndOrderIsThatOfArrival(t *testing.T) {
	d := drive(t, Config{Profile: unit(func(p *Profile) { p.MaxRunning = 2 })})
	var all []*script
	for i := range uint32(6) {
		_, s := d.add(seq(i*100, i*100+5), 3)
		all = append(all, s)
	}
	for d.step() {
		for i := 1; i < len(all); i++ {
			if all[i].tokens > all[i-1].tokens {
				t.Fatalf("request %d has %d tokens, the one before it %d", i, all[i].tokens, all[i-1].tokens)
			}
		}
	}
	for i, s := range all {
		if !s.over {
			t.Errorf("request %d: got %d tokens, want 3", i, s.tokens)
		}
	}
}

func TestQueueLimitRefuses(t *testing.T) {
	d := drive(t, Config{Profile: unit(func(p *Profile) { p.MaxRunning = 1 }), MaxQueued: 2})
	d.add(seq(0, 5), 5)
	d.step() // it runs now
	d.add(seq(10, 15), 5)
	d.add(seq(20, 25), 5)
	if err := d.core.Add(&Task{Prompt: seq(30, 35), Max: 5, Seq: &script{}}, d.now); !errors.Is(err, ErrQueueFull) {
		t.Errorf("third in a queue of two: got %v, want %v", err, ErrQueueFull)
	}
	d.drain()
	if got := d.core.Load().Rejected; got != 1 {
		t.Errorf("rejected: got %d, want 1", got)
	}
}

func TestTooLongForTheCacheIsRefused(t *testing.T) {
	d := drive(t, Config{Profile: unit(nil)})
	if err := d.core.Add(&Task{Prompt: seq(0, 990), Max: 11, Seq: &script{}}, d.now); !errors.Is(err, ErrTooLong) {
		t.Errorf("990 + 11 tokens in a cache of 1000: got %v, want %v", err, ErrTooLong)
	}
	d.add(seq(0, 990), 10)
	d.drain()
}

func TestCachedTokensGrowWithEachTurn(t *testing.T) {
	d := drive(t, Config{Profile: unit(func(p *Profile) { p.PageSize = 4 })})
	history := seq(0, 20)
	last := -1
	for turn := range 6 {
		task, s := d.add(history, 8)
		d.drain()
		want := 0
		if turn > 0 {
			want = (len(history) - 10) / 4 * 4 // all but the new message
		}
		if s.cached < want-4 || s.cached <= last && turn > 1 || s.cached > len(history)-1 {
			t.Errorf("turn %d of %d tokens: got %d cached, want about %d and more than %d", turn, len(history), s.cached, want, last)
		}
		last = s.cached
		history = append(slices.Clone(task.tokens), seq(uint32(100*turn+100), uint32(100*turn+110))...)
	}
}

func TestFreshTasksReadNothingFromTheCacheButFillIt(t *testing.T) {
	d := drive(t, Config{Profile: unit(nil)})
	d.add(seq(0, 50), 2)
	d.drain()
	s := &script{}
	if err := d.core.Add(&Task{Prompt: seq(0, 50), Fresh: true, Seq: s}, d.now); err != nil {
		t.Fatal(err)
	}
	d.drain()
	if s.cached != 0 || s.prefills != 1 || s.tokens != 0 {
		t.Errorf("fresh task: got %d cached, %d prefills, %d tokens, want 0, 1, 0", s.cached, s.prefills, s.tokens)
	}
	_, after := d.add(seq(0, 50), 1)
	d.drain()
	if after.cached != 49 {
		t.Errorf("after it: got %d cached tokens, want 49", after.cached)
	}
}

func TestPrivateTasksLeaveNothingBehind(t *testing.T) {
	d := drive(t, Config{Profile: unit(nil)})
	if err := d.core.Add(&Task{Prompt: seq(0, 50), Private: true, Fresh: true, Seq: &script{}}, d.now); err != nil {
		t.Fatal(err)
	}
	d.drain()
	if l := d.core.Load(); l.Stored != 0 || l.Used != 0 {
		t.Errorf("after a private task: got %d stored and %d used tokens, want none", l.Stored, l.Used)
	}
}

func TestFullCachePreemptsTheYoungestAndFinishesAll(t *testing.T) {
	d := drive(t, Config{Profile: unit(func(p *Profile) { p.KVTokens = 120 })})
	var all []*script
	for i := range uint32(4) {
		_, s := d.add(seq(i*100, i*100+10), 60) // 70 each: not two at once
		all = append(all, s)
	}
	d.drain()
	for i, s := range all {
		if s.tokens != 60 || s.prefills != 1 {
			t.Errorf("request %d: got %d tokens and %d prefills, want 60 and 1", i, s.tokens, s.prefills)
		}
	}
	if l := d.core.Load(); l.Preempted == 0 || l.Used != 0 {
		t.Errorf("after all: got %d preempted and %d tokens in use, want some and none", l.Preempted, l.Used)
	}
}

func TestAbortFreesSlotAndCache(t *testing.T) {
	d := drive(t, Config{Profile: unit(func(p *Profile) { p.MaxRunning = 1 })})
	a, sa := d.add(seq(0, 10), 50)
	b, sb := d.add(seq(100, 110), 50)
	_, sc := d.add(seq(200, 210), 2)
	d.step()
	if _, ok := d.core.Start(d.now); !ok {
		t.Fatal("no step to abort in")
	}
	d.core.Abort(a, d.now) // in the middle of a step
	d.core.Abort(b, d.now) // while it waits
	d.core.Finish(d.now)
	had := sa.tokens
	d.drain()
	if sa.tokens != had || sb.tokens != 0 || !sc.over {
		t.Errorf("after both aborts: got %d, %d tokens and third over=%v, want %d, 0 and true", sa.tokens, sb.tokens, sc.over, had)
	}
	d.core.Abort(a, d.now) // again: nothing
	if l := d.core.Load(); l.Used != 0 || l.Aborted != 2 || l.Requests != 3 {
		t.Errorf("load %+v: want nothing in use, 2 aborted of 3", l)
	}
}

func FuzzEveryTaskEnds(f *testing.F) {
	f.Add(uint64(1))
	f.Add(uint64(77))
	f.Fuzz(func(t *testing.T, seed uint64) {
		rng := rand.New(rand.NewPCG(seed, 0))
		d := drive(t, Config{Profile: unit(func(p *Profile) {
			p.KVTokens, p.PageSize, p.MaxRunning, p.Chunk = 300, 1+rng.IntN(8), 1+rng.IntN(6), 1+rng.IntN(64)
			p.Latency = time.Duration(rng.IntN(3)) * time.Second / 2
		})})
		var tasks []*Task
		var scripts []*script
		aborted := make(map[int]bool)
		for range 120 {
			if rng.IntN(3) == 0 {
				start := uint32(rng.IntN(3) * 50)
				task, s := d.add(seq(start, start+1+uint32(rng.IntN(150))), rng.IntN(100)+1)
				task.Fresh = rng.IntN(4) == 0
				tasks, scripts = append(tasks, task), append(scripts, s)
			}
			if len(tasks) > 0 && rng.IntN(6) == 0 {
				i := rng.IntN(len(tasks))
				aborted[i] = aborted[i] || !scripts[i].over
				d.core.Abort(tasks[i], d.now)
			}
			d.step()
		}
		d.drain()
		for i, s := range scripts {
			if !aborted[i] && (s.tokens != s.n || s.prefills != 1) {
				t.Errorf("seed %d: task %d: got %d of %d tokens and %d prefills", seed, i, s.tokens, s.n, s.prefills)
			}
		}
		if l := d.core.Load(); l.Used != 0 || l.Running != 0 || l.Waiting != 0 {
			t.Errorf("seed %d: at the end: got load %+v, want nothing in use", seed, l)
		}
	})
}

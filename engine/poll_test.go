package engine

import (
	"math"
	"reflect"
	"testing"
	"time"
)

func TestRunningLimitIsLearned(t *testing.T) {
	const kv = 1000
	load := func(running, waiting, used int) Load {
		return Load{Running: running, Waiting: waiting, UsedTokens: used}
	}
	repeat := func(n int, l Load) (ls []Load) {
		for range n {
			ls = append(ls, l)
		}
		return ls
	}
	for name, tt := range map[string]struct {
		loads []Load
		want  int
	}{
		"below the limit":                   {repeat(10, load(100, 0, 500)), 256},
		"waiting at a standstill":           {repeat(5, load(64, 9, 500)), 64},
		"a burst of prefills":               {[]Load{load(4, 60, 100), load(20, 44, 100), load(50, 14, 100), load(64, 0, 100)}, 256},
		"the cache is full":                 {repeat(10, load(64, 9, 950)), 256},
		"the cache's use is unknown":        {repeat(5, load(64, 9, -1)), 64},
		"few running, prefilled one by one": {repeat(10, load(2, 3, 100)), 256},
		"few running for long":              {repeat(13, load(2, 3, 100)), 2},
		"fewer than once ran":               {append(repeat(1, load(12, 0, 100)), repeat(30, load(1, 3, 100))...), 12},
		"a low limit grows":                 {append(repeat(13, load(2, 3, 100)), repeat(3, load(4, 0, 100))...), 5},
		"room beyond the limit":             {repeat(2, load(256, 0, 500)), 288},
		"more running than the limit":       {repeat(1, load(400, 0, 500)), 400},
		"nothing runs, some wait":           {repeat(10, load(0, 5, 0)), 256},
	} {
		rl := &runningLimit{limit: vllmDefaultRunning}
		for _, l := range tt.loads {
			rl.observe(l, kv)
		}
		if rl.limit != tt.want {
			t.Errorf("%s: got a limit of %d, want %d", name, rl.limit, tt.want)
		}
	}
}

func TestLearnedLimitIsTold(t *testing.T) {
	e := newFake(t, KindVLLM, 1)
	f, rec := startFleet(t, quick(served("m", at(e))))
	e.set(func(e *fake) { e.running, e.waiting = 32, 5 })
	r := f.Replicas()[0]
	eventually(t, "the learned limit", func() bool { return r.Capacity().MaxRunning == 32 })
	if rec.count(CapacityChanged) != 1 || r.Capacity().RunningBy != "learned" {
		t.Errorf("got %d capacity_changed, %+v; want 1, learned", rec.count(CapacityChanged), r.Capacity())
	}
}

func TestPrefillRateFollowsFromTwoPolls(t *testing.T) {
	poll := func(tokens, busy float64) rankLoad { return rankLoad{prefillTokens: tokens, prefillBusy: busy} }
	before := poll(1000, 0.5)
	before.PrefillRate = 7
	for name, tt := range map[string]struct {
		now  rankLoad
		want float64
	}{
		"prefill in between":    {poll(3000, 1), 4000},
		"none in between":       {poll(1000, 0.5), 7},
		"the engine starts new": {poll(10, 0.1), 7},
		"not told":              {poll(-1, -1), 7},
		"beyond all engines":    {poll(1e308, 0.6), 7},
		"infinite":              {poll(math.Inf(1), 0.6), 7},
		"not a number":          {poll(math.Inf(1), math.Inf(1)), 7},
	} {
		if got := prefillRate(before, tt.now); got != tt.want {
			t.Errorf("%s: got %v tokens/s, want %v", name, got, tt.want)
		}
	}
}

func TestRanksAddUpToOneReplica(t *testing.T) {
	now := time.Now()
	a, b := rankLoad{rank: 0}, rankLoad{rank: 1}
	a.Running, a.Waiting, a.WaitingUncached, a.UsedTokens, a.PrefillRate = 1, 2, 30, 400, 1000
	b.Running, b.Waiting, b.WaitingUncached, b.UsedTokens, b.PrefillRate = 5, 6, -1, 800, 2000
	want := Load{Running: 6, Waiting: 8, WaitingUncached: -1, UsedTokens: 1200, PrefillRate: 3000, At: now}
	if got := sumLoads(map[int]rankLoad{0: a, 1: b}, now); !reflect.DeepEqual(got, want) {
		t.Errorf("sum of two ranks: got %+v, want %+v", got, want)
	}
}

// Beyond 100 URLs the polls of one come less often, so that those of all come
// no more often.
func TestManyEnginesArePolledLessOften(t *testing.T) {
	f := NewFleet(Options{})
	defer f.Close()
	e := &entry{}
	f.entries = []*entry{e}
	set := &settings{}
	set.health.LoadInterval = time.Second
	s := &server{fleet: f}
	s.settings.Store(set)
	for n, want := range map[int]time.Duration{1: time.Second, 100: time.Second, 101: 1010 * time.Millisecond, 500: 5 * time.Second} {
		e.servers = make([]*server, n)
		if got := s.pollEvery(); got != want {
			t.Errorf("%d engines: got a poll every %v, want %v", n, got, want)
		}
	}
	e.servers, f.entries = nil, nil
}

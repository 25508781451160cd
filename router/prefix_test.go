package router

import (
	"errors"
	"testing"
	"time"
)

// burst offers the requests at once, then plays an engine that prefills in
// order at rate tokens per second; it retries what waits after every first
// token. It returns how many requests and how many whole prefills each replica got.
func burst(t *testing.T, p *Pool, requests []*Request, rate float64) (served, computed map[string]int) {
	t.Helper()
	served, computed = map[string]int{}, map[string]int{}
	type run struct {
		l  *Lease
		at time.Time
	}
	var runs []run
	free := map[string]time.Time{}
	now, waiting := t0, requests
	for step := 0; len(waiting) > 0 || len(runs) > 0; step++ {
		if step > 10*len(requests) {
			t.Fatalf("%d of %d requests still wait after %v", len(waiting), len(requests), now.Sub(t0))
		}
		var still []*Request
		for i, q := range waiting {
			p.SetHeld(len(still) + len(waiting) - i - 1)
			l, err := p.Choose(now, q)
			if errors.Is(err, ErrNoRoom) || errors.Is(err, ErrHeld) {
				still = append(still, q)
				continue
			}
			if err != nil {
				t.Fatalf("Choose: %v", err)
			}
			id := l.Replica().ID()
			served[id]++
			if l.Decision().Uncached == q.Tokens {
				computed[id]++
			}
			start := now
			if free[id].After(now) {
				start = free[id]
			}
			free[id] = start.Add(time.Duration(float64(l.Decision().Uncached) / rate * 1e9))
			runs = append(runs, run{l, free[id]})
		}
		waiting = still
		if len(runs) == 0 {
			continue
		}
		first := 0
		for i := range runs {
			if runs[i].at.Before(runs[first].at) {
				first = i
			}
		}
		now = runs[first].at
		runs[first].l.First(now)
		runs = append(runs[:first], runs[first+1:]...)
	}
	return served, computed
}

func TestBurstOfEqualPromptsNeitherPilesUpNorIsComputedEverywhere(t *testing.T) {
	for _, blocks := range []int{50, 200, 600} {
		p := newTestPool(Options{Seed: 3}, 8, Capacity{KVTokens: 1 << 22})
		var requests []*Request
		for range 64 {
			q := prompt(1, blocks)
			q.MayWait = true
			requests = append(requests, q)
		}
		served, computed := burst(t, p, requests, startRate)
		most, total := 0, 0
		for _, n := range served {
			most = max(most, n)
		}
		for _, n := range computed {
			total += n
		}
		t.Logf("64 prompts of %d tokens: served %v, computed in full %v", blocks*64, served, computed)
		if most > 48 {
			t.Errorf("64 equal prompts of %d tokens: one replica got %d", blocks*64, most)
		}
		if len(computed) == 8 || total > 8 {
			t.Errorf("64 equal prompts of %d tokens were computed %d times on %d replicas", blocks*64, total, len(computed))
		}
	}
}

func TestARequestThatMayNotWaitIsBoundAtOnce(t *testing.T) {
	p := newTestPool(Options{}, 2, Capacity{KVTokens: 1 << 20})
	mustChoose(t, p, t0, prompt(1, 400))
	q := prompt(1, 400)
	q.MayWait = true
	if _, err := p.Choose(t0, q); !errors.Is(err, ErrHeld) {
		t.Fatalf("beside the prefill of its prefix: %v, want ErrHeld to wait for it", err)
	}
	q.MayWait = false
	mustChoose(t, p, t0, q)
}

func TestWaitingForAPrefixEnds(t *testing.T) {
	p := newTestPool(Options{}, 2, Capacity{KVTokens: 1 << 20})
	mustChoose(t, p, t0, prompt(1, 400)) // its first token never comes
	q := prompt(1, 400)
	q.MayWait = true
	for wait := time.Duration(0); ; wait += 100 * time.Millisecond {
		if _, err := p.Choose(t0.Add(wait), q); err == nil {
			if wait < time.Second {
				t.Errorf("waited %v, want some seconds", wait)
			}
			return
		}
		if wait > 10*time.Second {
			t.Fatalf("still waits after %v for a prefill of half a second", wait)
		}
	}
}

func TestHotSystemPromptSpreadsUnderLoadAndConsolidates(t *testing.T) {
	p := newTestPool(Options{Seed: 5}, 8, Capacity{KVTokens: 200_000})
	system := prompt(1, 40) // 2560 tokens that every request begins with
	ask := func(now time.Time, family uint64) *Lease {
		own := prompt(1000+family, 60)
		q := &Request{Tokens: system.Tokens + own.Tokens, Streamed: true}
		b := NewKeyBuilder(0, 0)
		b.Reset("m", "", "")
		for i := range 40 * 64 {
			b.Token(1<<16 + uint64(i/64))
		}
		for i := range 60 * 64 {
			b.Token((1000+family)<<16 + uint64(i/64))
		}
		q.Key = b.Key().Clone()
		return mustChoose(t, p, now, q)
	}
	holders := func() (n int) {
		for _, r := range p.Replicas() {
			if m, _ := r.index.match(system.Key.Hashes, 0); m == len(system.Key.Hashes) {
				n++
			}
		}
		return n
	}
	now, family := t0, uint64(0)
	finish(ask(now, 0), now.Add(time.Second))
	if got := holders(); got != 1 {
		t.Fatalf("after one request %d replicas hold the system prompt, want 1", got)
	}
	for range 30 { // 32 requests at a time
		var leases []*Lease
		for range 32 {
			family++
			leases = append(leases, ask(now, family))
		}
		now = now.Add(500 * time.Millisecond)
		for _, l := range leases {
			finish(l, now)
		}
	}
	if got := holders(); got < 6 {
		t.Errorf("under load %d of 8 replicas hold the system prompt, want at least 6", got)
	}
	used := map[string]int{}
	for range 60 { // one at a time
		family++
		l := ask(now, family)
		used[l.Replica().ID()]++
		now = now.Add(2 * time.Second)
		finish(l, now)
		if l.Decision().Matched < 2560 {
			t.Fatalf("at light load a request went where the system prompt is not: %d tokens matched", l.Decision().Matched)
		}
	}
	t.Logf("%d holders; at light load used: %v", holders(), used)
}

func TestASlowReplicaGetsLessAndEqualOnesTheSame(t *testing.T) {
	p := newTestPool(Options{Seed: 2}, 4, Capacity{KVTokens: 1 << 22})
	now := t0
	rate := func(r *Replica) float64 {
		switch r.ID() {
		case "r0":
			return 20000 // three times slower
		case "r1":
			return 52000 // a little
		default:
			return 60000
		}
	}
	for i := range uint64(200) {
		l := mustChoose(t, p, now, prompt(i, 100))
		took := time.Duration(6400 / rate(l.Replica()) * 1e9)
		l.First(now.Add(took))
		l.Done(now.Add(took), Usage{OK: true, CachedTokens: -1, PromptTokens: -1})
		now = now.Add(took)
	}
	stats := map[string]Stats{}
	for _, r := range p.Replicas() {
		stats[r.ID()] = r.Stats()
	}
	if a, b := stats["r1"].PrefillRate, stats["r2"].PrefillRate; a != b {
		t.Errorf("replicas of nearly equal speed are priced at %.0f and %.0f tokens/s", a, b)
	}
	if slow, usual := stats["r0"].PrefillRate, stats["r2"].PrefillRate; slow > 0.6*usual {
		t.Errorf("a replica three times slower is priced at %.0f tokens/s, the others at %.0f", slow, usual)
	}
}

// TestANewConversationBeginsWhereFewRanOfLate: those who talk on a replica may
// all be thinking at the moment; their next turns come back there.
func TestANewConversationBeginsWhereFewRanOfLate(t *testing.T) {
	p := newTestPool(Options{}, 2, Capacity{})
	busy := p.Replicas()[0]
	only := func(r *Replica) bool { return r == busy }
	now := t0
	var leases []*Lease
	for family := range uint64(5) {
		q := prompt(family, 10)
		q.Only = only
		l := mustChoose(t, p, now, q)
		l.First(now)
		leases = append(leases, l)
		now = now.Add(5 * time.Second)
	}
	for _, l := range leases {
		finish(l, now)
	}
	for family := range uint64(5) {
		l := mustChoose(t, p, now, prompt(100+family, 10))
		if l.Replica() == busy {
			t.Fatalf("conversation %d began where five ran until now, not where none did", family)
		}
		l.First(now)
		finish(l, now)
	}
}

// TestANewConversationBeginsWhereFewBegan: as much runs on both replicas all the
// time, but one has those who come back twenty times as often.
func TestANewConversationBeginsWhereFewBegan(t *testing.T) {
	p := newTestPool(Options{}, 2, Capacity{})
	often, seldom := p.Replicas()[0], p.Replicas()[1]
	now := t0
	on := func(r *Replica, family uint64) *Lease {
		q := prompt(family, 40)
		q.Only = func(o *Replica) bool { return o == r }
		l := mustChoose(t, p, now, q)
		l.First(now)
		return l
	}
	for range 5 {
		long := on(seldom, 1)
		for range 20 {
			short := on(often, 2)
			now = now.Add(500 * time.Millisecond)
			finish(short, now)
		}
		finish(long, now)
	}
	defer finish(on(seldom, 1), now)
	defer finish(on(often, 2), now)
	for family := range uint64(5) {
		l := mustChoose(t, p, now, prompt(100+family, 10))
		if l.Replica() != seldom {
			t.Errorf("conversation %d began where a hundred requests had begun, not where five had", family)
		}
		l.First(now)
		finish(l, now)
	}
	if l := mustChoose(t, p, now, prompt(2, 40)); l.Replica() != often {
		t.Error("a conversation was moved from its prefix, since many come back there")
	}
}

// TestALoneConversationStays: where nothing else runs there is nothing to
// balance, however often it comes back.
func TestALoneConversationStays(t *testing.T) {
	p := newTestPool(Options{}, 2, Capacity{})
	now := t0
	home := (*Replica)(nil)
	for turn := range 40 {
		l := mustChoose(t, p, now, prompt(1, 6+2*turn))
		if home == nil {
			home = l.Replica()
		}
		if l.Replica() != home {
			t.Fatalf("turn %d went elsewhere", turn)
		}
		l.First(now.Add(10 * time.Millisecond))
		now = now.Add(100 * time.Millisecond)
		finish(l, now)
	}
}

func TestFadingForgets(t *testing.T) {
	var f fading
	for range 10 {
		f.add(t0, 1, time.Minute)
	}
	if got := f.value(t0.Add(time.Minute), time.Minute); got < 3.6 || got > 3.7 {
		t.Errorf("of ten a span ago %g are left, want ten over e", got)
	}
	f.add(t0.Add(-time.Hour), 1, time.Minute)
	if got := f.value(t0, time.Minute); got != 11 {
		t.Errorf("with one more by a clock that went back there are %g, want 11", got)
	}
}

func TestLevelFollowsWhatIsSeen(t *testing.T) {
	var l level
	now := t0
	for range 100 {
		l.look(now, 8, time.Second)
		if again := l.look(now, 0, time.Second); again != l.value {
			t.Fatalf("a second look at one instant gave %g, want the same %g", again, l.value)
		}
		now = now.Add(100 * time.Millisecond)
	}
	if l.value < 7.9 || l.value > 8 {
		t.Errorf("after ten spans of 8 the mean is %g", l.value)
	}
	if back := l.look(now.Add(-time.Minute), 0, time.Second); back < 7.9 {
		t.Errorf("a clock that went back a minute gave %g, want no change", back)
	}
}

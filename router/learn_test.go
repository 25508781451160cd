package router

import (
	"math/rand/v2"
	"testing"
	"time"
)

func TestIndexShrinksWhereHitsDoNotComeTrueAndGrowsBack(t *testing.T) {
	p := newTestPool(Options{}, 1, Capacity{KVTokens: 100_000})
	r := p.Replicas()[0]
	full := r.index.capacity
	turn := func(cached int) {
		l := mustChoose(t, p, t0, prompt(1, 200))
		l.First(t0)
		l.Done(t0, Usage{PromptTokens: 12800, CachedTokens: cached, OutputTokens: 1, OK: true})
	}
	turn(0)
	turn(12736)
	for range 20 {
		turn(6000)
	}
	small := r.index.capacity
	if small > full*3/4 {
		t.Errorf("after 20 hits of which half was not found the index is %d blocks of %d, want less than three quarters", small, full)
	}
	for range 300 {
		turn(12736)
	}
	if r.index.capacity <= small {
		t.Errorf("after 300 hits that came true the index is %d blocks, was %d", r.index.capacity, small)
	}
	if s := r.Stats(); s.HitActual < 0.9 || s.HitPredicted < 0.9 {
		t.Errorf("recent hits: predicted %.2f, reported %.2f, want above 0.9", s.HitPredicted, s.HitActual)
	}
}

func TestAnEngineThatNeverReportsHitsChangesNothing(t *testing.T) {
	p := newTestPool(Options{}, 1, Capacity{KVTokens: 100_000})
	r := p.Replicas()[0]
	full := r.index.capacity
	for range 30 {
		l := mustChoose(t, p, t0, prompt(1, 200))
		l.First(t0)
		l.Done(t0, Usage{PromptTokens: 12800, CachedTokens: 0, OutputTokens: 1, OK: true})
	}
	if r.index.capacity != full || r.index.count == 0 {
		t.Errorf("index of %d blocks, %d held; want %d and some", r.index.capacity, r.index.count, full)
	}
}

func TestACacheEmptiedWithoutAWordIsNoticed(t *testing.T) {
	p := newTestPool(Options{}, 1, Capacity{KVTokens: 1 << 20})
	report := func(family uint64, cached int) {
		l := mustChoose(t, p, t0, prompt(family, 100))
		l.First(t0)
		l.Done(t0, Usage{PromptTokens: 6400, CachedTokens: cached, OutputTokens: 1, OK: true})
	}
	for f := range uint64(10) {
		report(f, 0)
	}
	report(0, 6336)
	for f := range uint64(3) {
		report(1+f, 0)
	}
	if got := p.Work(prompt(9, 100)); got != 6400 {
		t.Errorf("after three hits of which nothing was found, work of an older prompt is %d, want 6400", got)
	}
}

func TestBytesPerTokenAreLearned(t *testing.T) {
	p := newTestPool(Options{}, 1, Capacity{KVTokens: 100_000})
	for i := range uint64(400) {
		q := prompt(i, 10) // 2560 bytes
		l := mustChoose(t, p, t0, q)
		l.First(t0)
		l.Done(t0, Usage{PromptTokens: 1280, CachedTokens: -1, OutputTokens: 1, OK: true})
	}
	if got := p.TokensPerUnit(); got < 110 || got > 130 {
		t.Errorf("a block of 256 bytes at 2 bytes for each token is priced at %.0f tokens, want about 128", got)
	}
}

func TestLoadReportsCountWhatIsNotOurs(t *testing.T) {
	p := newTestPool(Options{Seed: 1}, 2, Capacity{KVTokens: 1 << 20, MaxRunning: 10})
	a, b := p.Replicas()[0], p.Replicas()[1]
	a.Observe(t0, Load{Running: 4, Waiting: 2, WaitingTokens: 500_000})
	for i := range uint64(4) {
		if l := mustChoose(t, p, t0, prompt(i, 10)); l.Replica() != b {
			t.Errorf("request %d went beside 500000 tokens of somebody else", i)
		}
	}
	if got := a.strangers(t0); got != 6 {
		t.Errorf("%d requests are not ours, want 6", got)
	}
	if got := a.strangers(t0.Add(time.Minute)); got != 0 {
		t.Errorf("a report of a minute ago still counts %d requests", got)
	}
	if got := a.foreignTokens(t0.Add(time.Second)); got <= 0 || got >= 500_000 {
		t.Errorf("a second later %d of 500000 tokens wait, want some less", got)
	}
}

func TestReportedRatesAreBelieved(t *testing.T) {
	p := newTestPool(Options{}, 4, Capacity{})
	for i, r := range p.Replicas() {
		rate := 60000.0
		if i == 0 {
			rate = 20000
		}
		for range 20 {
			r.Observe(t0, Load{Running: 1, PrefillRate: rate})
		}
	}
	slow, usual := p.Replicas()[0].Stats().PrefillRate, p.Replicas()[1].Stats().PrefillRate
	if slow > usual/2 {
		t.Errorf("an engine that reports a third of the others' rate is priced at %.0f tokens/s, they at %.0f", slow, usual)
	}
}

func TestAnIdleEngineReleasesUnstreamedReservationsEarly(t *testing.T) {
	p := newTestPool(Options{}, 1, Capacity{})
	q, long := prompt(1, 10), prompt(2, 2000)
	q.Streamed, long.Streamed = false, false
	mustChoose(t, p, t0, long)
	mustChoose(t, p, t0, q)
	r := p.Replicas()[0]
	before := q.Tokens + long.Tokens
	if got := r.Stats().QueuedTokens; got != before {
		t.Fatalf("%d tokens queued, want %d", got, before)
	}
	r.Observe(t0.Add(time.Second), Load{Running: 2})
	p.Tick(t0.Add(time.Second + 50*time.Millisecond))
	if got := r.Stats().QueuedTokens; got >= before {
		t.Errorf("%d tokens queued soon after a report that nothing waits, want less than %d", got, before)
	}
}

func TestRunningLimitIsLearnedWhereItIsNotTold(t *testing.T) {
	p := newTestPool(Options{}, 1, Capacity{KVTokens: 1 << 20})
	r := p.Replicas()[0]
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 20 { // coming and going: no limit
		r.Observe(t0, Load{Running: 20 + rnd.IntN(2)*3, Waiting: 0})
	}
	if got := r.Stats().MaxRunning; got != defaultMaxRunning {
		t.Errorf("running limit %d without any waiting, want %d", got, defaultMaxRunning)
	}
	for range 5 {
		r.Observe(t0, Load{Running: 48, Waiting: 7})
	}
	if got := r.Stats().MaxRunning; got != 48 {
		t.Errorf("running limit %d after 48 stood still with 7 waiting, want 48", got)
	}
}

package router

import (
	"testing"
	"time"
)

func TestGatewaysLearnPlacementsFromEachOther(t *testing.T) {
	a, b := newTestPool(Options{}, 4, Capacity{KVTokens: 1 << 20}), newTestPool(Options{}, 4, Capacity{KVTokens: 1 << 20})
	a.Share(1)
	b.Share(2)
	l := mustChoose(t, a, t0, prompt(1, 50))
	l.First(t0)
	batch := a.Export(t0)
	if max := 8*50 + 150; len(batch) > max {
		t.Errorf("50 blocks take %d bytes, want at most %d", len(batch), max)
	}
	for range 2 { // doubled does no harm
		if err := b.Import(t0, batch); err != nil {
			t.Fatal(err)
		}
	}
	next := mustChoose(t, b, t0, prompt(1, 60))
	if next.Replica().ID() != l.Replica().ID() || next.Decision().Matched != 3200 {
		t.Errorf("the next turn at the other gateway: %d tokens matched on %s, want 3200 on %s", next.Decision().Matched, next.Replica().ID(), l.Replica().ID())
	}
	next.First(t0)
	if err := a.Import(t0, b.Export(t0)); err != nil {
		t.Fatal(err)
	}
	if got := a.Work(prompt(1, 60)); got != 1 {
		t.Errorf("work of the other's turn at the first gateway: %d, want 1", got)
	}
	for _, p := range []*Pool{a, b} {
		for _, r := range p.Replicas() {
			r.index.check(t)
		}
	}
}

func TestWhatOthersHaveInFlightCountsForAWhile(t *testing.T) {
	a, b := newTestPool(Options{}, 2, Capacity{KVTokens: 1 << 20}), newTestPool(Options{}, 2, Capacity{KVTokens: 1 << 20})
	a.Share(1)
	b.Share(2)
	l := mustChoose(t, a, t0, prompt(1, 500))
	if err := b.Import(t0, a.Export(t0)); err != nil {
		t.Fatal(err)
	}
	for i := range uint64(3) {
		if m := mustChoose(t, b, t0, prompt(10+i, 10)); m.Replica().ID() == l.Replica().ID() {
			t.Errorf("request %d went behind the other gateway's 32000 tokens", i)
		}
	}
	r := b.Replicas()[0]
	if l.Replica().ID() != r.ID() {
		r = b.Replicas()[1]
	}
	if got := r.remote.sum(t0.Add(time.Minute)); got.queued != 0 || got.inFlight != 0 {
		t.Errorf("a minute after the last batch the other gateway still has %d tokens in flight", got.queued)
	}
}

func TestALostBatchDoesNoHarm(t *testing.T) {
	a, b := newTestPool(Options{}, 1, Capacity{}), newTestPool(Options{}, 1, Capacity{})
	a.Share(1)
	finish(mustChoose(t, a, t0, prompt(1, 10)), t0)
	a.Export(t0) // lost
	finish(mustChoose(t, a, t0, prompt(1, 20)), t0)
	if err := b.Import(t0, a.Export(t0)); err != nil {
		t.Fatal(err)
	}
	if got := b.Work(prompt(1, 20)); got != 1280 {
		t.Errorf("blocks whose beginning is not known were taken: work %d, want 1280", got)
	}
	b.Replicas()[0].index.check(t)
}

func TestOwnBatchesAreIgnored(t *testing.T) {
	a := newTestPool(Options{}, 1, Capacity{})
	a.Share(1)
	l := mustChoose(t, a, t0, prompt(1, 10))
	if err := a.Import(t0, a.Export(t0)); err != nil {
		t.Fatal(err)
	}
	if n := len(l.Replica().remote.loads); n != 0 {
		t.Errorf("the gateway counts itself among the others (%d)", n)
	}
	l.Done(t0, Usage{OK: true})
	a.Export(t0)
	if b := a.Export(t0); b != nil {
		t.Errorf("with nothing in flight and nothing new the batch has %d bytes, want none", len(b))
	}
}

func FuzzImport(f *testing.F) {
	p := newTestPool(Options{}, 3, Capacity{KVTokens: 10000})
	p.Share(1)
	finish(mustChoose(f, p, t0, prompt(1, 10)), t0)
	f.Add(p.Export(t0))
	f.Add([]byte{})
	f.Add([]byte{1, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255, 15})
	f.Fuzz(func(t *testing.T, batch []byte) {
		q := newTestPool(Options{}, 3, Capacity{KVTokens: 10000})
		q.Import(t0, batch)
		for _, r := range q.Replicas() {
			r.index.check(t)
		}
	})
}

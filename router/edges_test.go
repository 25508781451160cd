package router

import (
	"testing"
	"time"
)

// A request that failed leaves nothing behind that the next one would wait for,
// also when the index is smaller than what was in flight.
func TestAFailedRequestLeavesNoPrefillToWaitFor(t *testing.T) {
	p := NewPool(Options{})
	r := p.Add("r", Capacity{KVTokens: 100_000}, nil)
	r.blockRoom = roomLeast
	r.sizeIndex()
	mustChoose(t, p, t0, prompt(1, 900)).First(t0) // it streams on
	failed := mustChoose(t, p, t0, prompt(2, 60))
	failed.Done(t0, Usage{PromptTokens: -1, CachedTokens: -1, OutputTokens: -1})
	q := prompt(2, 60)
	q.MayWait = true
	if _, err := p.Choose(t0, q); err != nil {
		t.Errorf("the same prompt again: %v, want it bound at once", err)
	}
}

func TestNonsenseInAnAnswerTeachesNothing(t *testing.T) {
	p := NewPool(Options{})
	p.Add("r", Capacity{KVTokens: 1 << 20}, nil)
	before, output := p.TokensPerUnit(), p.output
	l := mustChoose(t, p, t0, prompt(1, 10))
	l.Done(t0.Add(time.Second), Usage{OK: true, PromptTokens: 1 << 50, CachedTokens: -1, OutputTokens: 1 << 50})
	if got := p.TokensPerUnit(); got != before || p.output != output {
		t.Errorf("after an answer of 2^50 tokens: %.1f tokens in a unit, was %.1f; answers of %.0f tokens, was %.0f", got, before, p.output.value(), output.value())
	}
}

// Placements that no prompt of the replica can have, as of a gateway that cuts
// prompts in another way, do not empty its index.
func TestAttachRefusesWhatIsTooDeep(t *testing.T) {
	x := newIndex(1000)
	held := []uint64{1 << 40, 2 << 40, 3 << 40}
	s := x.insert(held, 0)
	x.unpin(s)
	deep := make([]uint64, 700)
	for i := range deep {
		deep[i] = uint64(i+100) << 40
	}
	x.attach(0, deep)
	x.check(t)
	if x.units > 2*x.capacity {
		t.Errorf("%d units at a capacity of %d", x.units, x.capacity)
	}
}

package router

import (
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"
)

// loaded is a pool whose replicas hold prompts of their own, and a prompt of so
// many tokens of which all of them hold the first quarter and every eighth three
// quarters: a system prompt and a conversation. ragged: each holds another part
// of it, the worst for matching.
func loaded(replicas, tokens int, ragged bool) (*Pool, *Request) {
	p := newTestPool(Options{Seed: 1}, replicas, Capacity{KVTokens: 1 << 20, MaxRunning: 1 << 20})
	rnd := rand.New(rand.NewPCG(7, 8))
	hashes := make([]uint64, tokens/64)
	for i := range hashes {
		hashes[i] = rnd.Uint64()
	}
	q := &Request{Key: Key{Hashes: hashes, Bytes: 4 * tokens}, Tokens: tokens, Streamed: true}
	other := make([]uint64, 1000)
	for i, r := range p.Replicas() {
		for i := range other {
			other[i] = rnd.Uint64()
		}
		held := len(hashes) / 4
		switch {
		case ragged:
			held += rnd.IntN(len(hashes) / 2)
		case i%8 == 0:
			held *= 3
		}
		for _, h := range [][]uint64{other, hashes[:held]} {
			s := r.index.insert(h, 0)
			r.index.markReady(s, nil)
			r.index.unpin(s)
		}
	}
	return p, q
}

// chooseOnly is a choice without the insertion of blocks: what the request lacks
// is not written into the index.
func chooseOnly(p *Pool, now time.Time, q *Request) *Lease {
	c := p.begin(now, q)
	p.mu.Lock()
	p.candidates(c)
	l := p.reserve(c, &c.Candidates[p.pick(c)])
	p.mu.Unlock()
	p.scratch.Put(c)
	return l
}

func BenchmarkMatchChooseReserve(b *testing.B) {
	for _, tokens := range []int{1 << 10, 32 << 10, 128 << 10} {
		for _, replicas := range []int{1, 32, 1000} {
			b.Run(fmt.Sprintf("tokens=%d/replicas=%d", tokens, replicas), func(b *testing.B) {
				p, q := loaded(replicas, tokens, false)
				b.ReportAllocs()
				for b.Loop() {
					chooseOnly(p, t0, q).Done(t0, Usage{PromptTokens: -1, CachedTokens: -1, OK: true})
				}
			})
		}
	}
}

func BenchmarkMatchChooseReserveRagged(b *testing.B) {
	for _, replicas := range []int{32, 1000} {
		b.Run(fmt.Sprintf("tokens=32768/replicas=%d", replicas), func(b *testing.B) {
			p, q := loaded(replicas, 32<<10, true)
			b.ReportAllocs()
			for b.Loop() {
				chooseOnly(p, t0, q).Done(t0, Usage{PromptTokens: -1, CachedTokens: -1, OK: true})
			}
		})
	}
}

func BenchmarkInsertAndRelease(b *testing.B) {
	for _, tokens := range []int{1 << 10, 32 << 10, 128 << 10} {
		b.Run(fmt.Sprintf("tokens=%d", tokens), func(b *testing.B) {
			x := newIndex(18000)
			hashes := make([]uint64, tokens/64)
			rnd := rand.New(rand.NewPCG(1, 1))
			b.ReportAllocs()
			for b.Loop() {
				for i := range hashes {
					hashes[i] = rnd.Uint64()
				}
				s := x.insert(hashes, 0)
				x.markReady(s, nil)
				x.unpin(s)
			}
		})
	}
}

func BenchmarkChooseInParallel(b *testing.B) {
	p, q := loaded(32, 32<<10, true)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		q := *q
		for pb.Next() {
			if l, err := p.Choose(t0, &q); err == nil {
				l.Done(t0, Usage{PromptTokens: -1, CachedTokens: -1, OK: true})
			}
		}
	})
}

func TestChoiceAllocatesLittle(t *testing.T) {
	if raceOn {
		t.Skip("the race detector changes what is allocated")
	}
	p, q := loaded(32, 32<<10, true)
	least := uint64(math.MaxUint64)
	for range 20 { // the least of several: a collection empties the pools
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		const rounds = 20
		for range rounds {
			chooseOnly(p, t0, q).Done(t0, Usage{PromptTokens: -1, CachedTokens: -1, OK: true})
		}
		runtime.ReadMemStats(&after)
		least = min(least, (after.TotalAlloc-before.TotalAlloc)/rounds)
	}
	t.Logf("a choice of 32k tokens over 32 replicas: %d B", least)
	if least >= 1024 {
		t.Errorf("a choice of 32k tokens over 32 replicas allocates %d B, want less than 1024", least)
	}
}

func TestMatchingGrowsSlowlyWithThePrompt(t *testing.T) {
	took := func(tokens int) time.Duration {
		p, q := loaded(32, tokens, true)
		best := time.Hour
		for range 20 { // the least of several: other processes only add
			began := time.Now()
			for range 50 {
				p.scratch.Put(p.begin(t0, q))
			}
			best = min(best, time.Since(began))
		}
		return best
	}
	short, long := took(1<<10), took(128<<10)
	t.Logf("50 matches over 32 replicas: %v at 1k tokens, %v at 128k", short, long)
	if long > 16*short {
		t.Errorf("128 times the prompt takes %.1f times as long to match, want at most 16", float64(long)/float64(short))
	}
}

package router

import (
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
)

// check verifies the invariants that matching by halves and tail-first ageing rest on.
func (x *index) check(t *testing.T) {
	t.Helper()
	place := map[int32]int{}
	for s, n := x.head, 0; s != none; s, n = x.entries[s].next, n+1 {
		if x.entries[s].refs != 0 {
			t.Fatalf("slot %d is in the LRU list with %d pins", s, x.entries[s].refs)
		}
		place[s] = n
	}
	held, listed, units, pinned := 0, 0, 0, 0
	for i, e := range x.entries {
		if e.refs < 0 {
			continue
		}
		held++
		listed++
		s := int32(i)
		if x.find(e.hash) != s {
			t.Fatalf("the table finds slot %d for the hash of slot %d", x.find(e.hash), s)
		}
		units += e.units()
		if e.refs > 0 {
			pinned += e.units()
			listed--
		}
		if e.parent == none {
			if e.depth != 0 {
				t.Fatalf("slot %d has no parent at depth %d", s, e.depth)
			}
			continue
		}
		p := x.entries[e.parent]
		switch {
		case p.depth+1 != e.depth:
			t.Fatalf("slot %d is at depth %d, its parent at %d", s, e.depth, p.depth)
		case p.refs < 0:
			t.Fatalf("slot %d has lost its parent", s)
		case e.refs > 0 && p.refs == 0:
			t.Fatalf("slot %d is pinned, its parent is not", s)
		case e.ready && !p.ready:
			t.Fatalf("slot %d is ready, its parent is not", s)
		case e.refs == 0 && p.refs == 0 && place[e.parent] > place[s]:
			t.Fatalf("slot %d would outlive its parent", s)
		}
	}
	if held != x.count || units != x.units || pinned != int(x.pinned.Load()) || listed != len(place) {
		t.Fatalf("%d blocks, %d units, %d pinned, %d listed; found %d, %d, %d, %d",
			x.count, x.units, x.pinned.Load(), len(place), held, units, pinned, listed)
	}
}

func TestIndexKeepsPrefixesWhole(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 4))
	x := newIndex(300)
	var prompts [][]uint64
	type pin struct {
		slot int32
	}
	var pins []pin
	for range 4000 {
		switch {
		case len(pins) > 12 || len(pins) > 0 && rnd.IntN(2) == 0:
			i := rnd.IntN(len(pins))
			ok := rnd.IntN(4) > 0
			if ok {
				x.markReady(pins[i].slot, nil)
			}
			x.unpin(pins[i].slot)
			if !ok {
				x.forget(pins[i].slot)
			}
			x.trim(x.capacity, 8)
			pins = slices.Delete(pins, i, i+1)
		default:
			var p []uint64
			if len(prompts) > 0 && rnd.IntN(3) > 0 {
				p = prompts[rnd.IntN(len(prompts))]
				p = slices.Clone(p[:1+rnd.IntN(len(p))])
			}
			for range 1 + rnd.IntN(15) {
				p = append(p, rnd.Uint64())
			}
			prompts = append(prompts, p)
			m, ready := x.match(p, rnd.IntN(len(p)+1))
			for i, h := range p {
				if (x.find(h) != none) != (i < m) {
					t.Fatalf("match says %d of %d blocks, block %d is %v", m, len(p), i, x.find(h) != none)
				}
				if i < m && x.entries[x.find(h)].ready != (i < ready) {
					t.Fatalf("match says %d ready, block %d is %v", ready, i, x.entries[x.find(h)].ready)
				}
			}
			pins = append(pins, pin{slot: x.insert(p, m)})
			if got, _ := x.match(p, 0); got != len(p) {
				t.Fatalf("%d of %d blocks found after insertion", got, len(p))
			}
			if got := x.pinnedPrefix(p); got != len(p) {
				t.Fatalf("%d of %d blocks pinned after insertion", got, len(p))
			}
		}
		x.check(t)
		if x.units > 2*x.capacity {
			t.Fatalf("%d units at a capacity of %d", x.units, x.capacity)
		}
	}
}

func TestIndexForgetsExtensionsBeforeTheirPrefix(t *testing.T) {
	x := newIndex(10)
	a := []uint64{1 << 40, 2 << 40, 3 << 40, 4 << 40, 5 << 40, 6 << 40}
	x.unpin(x.insert(a, 0))
	x.unpin(x.insert([]uint64{11 << 40, 12 << 40, 13 << 40, 14 << 40, 15 << 40, 16 << 40}, 0))
	if m, _ := x.match(a, 0); m != 4 {
		t.Errorf("12 blocks in a capacity of 10: the older six match %d, want 4", m)
	}
}

func TestIndexStaysBoundedWhenEverythingIsPinned(t *testing.T) {
	x := newIndex(100)
	var pins []int32
	for i := range uint64(50) {
		p := make([]uint64, 10)
		for j := range p {
			p[j] = (i*10+uint64(j))<<32 + 1
		}
		pins = append(pins, x.insert(p, 0))
	}
	if x.count > 200 {
		t.Errorf("%d blocks at a capacity of 100 with everything pinned, want at most 200", x.count)
	}
	for _, s := range pins {
		x.unpin(s)
		x.trim(x.capacity, 8)
	}
	x.check(t)
	if x.count > 120 {
		t.Errorf("%d blocks left at a capacity of 100 after everything was unpinned", x.count)
	}
}

func TestIndexOf32ReplicasOfAMillionTokensIsUnder64MB(t *testing.T) {
	before := heapInUse()
	p := NewPool(Options{})
	rnd := rand.New(rand.NewPCG(5, 6))
	for range 32 {
		r := p.Add("r", Capacity{KVTokens: 1 << 20}, nil)
		prompt := make([]uint64, evenBlocks) // short prompts have the most blocks
		for r.index.units+len(prompt) <= r.index.capacity {
			for i := range prompt {
				prompt[i] = rnd.Uint64()
			}
			r.index.unpin(r.index.insert(prompt, 0))
		}
	}
	got := float64(heapInUse()-before) / (1 << 20)
	runtime.KeepAlive(p)
	t.Logf("%.1f MiB", got)
	if got > 64e6/(1<<20) {
		t.Errorf("the index of 32 full replicas takes %.1f MiB, want at most 61 (64 MB)", got)
	}
}

func heapInUse() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

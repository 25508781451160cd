package sched

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// seq makes the tokens from, from+1, … to-1.
func seq(from, to uint32) []uint32 {
	var s []uint32
	for ; from < to; from++ {
		s = append(s, from)
	}
	return s
}

// keep puts a sequence into the cache as a finished request would.
func keep(t *testing.T, c *Cache, tokens []uint32) {
	t.Helper()
	at, had := c.Pin(tokens)
	need := c.pages(len(tokens)) - had
	if !c.Reserve(need) {
		t.Fatalf("Reserve(%d) with %d free: got false", need, c.Free())
	}
	at, stored := c.Store(at, had, tokens)
	c.Unpin(at)
	c.Release(need - (stored - had))
	check(t, c)
}

// check walks the whole tree and verifies the cache's account of it.
func check(t *testing.T, c *Cache) {
	t.Helper()
	stored, pinned, unpinned := 0, 0, 0
	var walk func(n *node)
	walk = func(n *node) {
		for h, child := range n.children {
			if child.parent != n || h != pageHash(child.tokens[:c.page]) || len(child.tokens)%c.page != 0 {
				t.Fatalf("node %v: wrong parent, hash or length", child.tokens)
			}
			stored += len(child.tokens)
			if child.pins > 0 {
				pinned += len(child.tokens)
				if n != &c.root && n.pins < child.pins {
					t.Fatalf("node %v has %d pins, its parent %d", child.tokens, child.pins, n.pins)
				}
			} else {
				unpinned++
			}
			walk(child)
		}
	}
	walk(&c.root)
	if stored != c.stored || pinned != c.pinned {
		t.Fatalf("tree holds %d tokens, %d pinned; the cache says %d and %d", stored, pinned, c.stored, c.pinned)
	}
	if c.stored+c.private > c.capacity {
		t.Fatalf("%d stored and %d private tokens in a cache of %d", c.stored, c.private, c.capacity)
	}
	seen := make(map[*node]bool)
	for n := c.root.next; n != &c.root; n = n.next {
		if n.pins > 0 || seen[n.parent] {
			t.Fatalf("node %v in the ring: pinned, or younger than its parent", n.tokens)
		}
		seen[n] = true
	}
	if len(seen) != unpinned {
		t.Fatalf("ring of %d nodes, tree has %d unpinned", len(seen), unpinned)
	}
}

func TestCacheFindsTheLongestPrefixInWholePages(t *testing.T) {
	c := NewCache(1000, 4)
	keep(t, c, seq(0, 30)) // 28 in whole pages
	for _, tc := range []struct {
		tokens []uint32
		want   int
	}{
		{seq(0, 30), 28},
		{seq(0, 28), 28},
		{seq(0, 27), 24},
		{seq(0, 3), 0},
		{seq(1, 30), 0},
		{append(seq(0, 13), 99, 99, 99), 12},
		{append(seq(0, 28), seq(100, 120)...), 28},
		{nil, 0},
	} {
		if got := c.Match(tc.tokens); got != tc.want {
			t.Errorf("Match(%v): got %d, want %d", tc.tokens, got, tc.want)
		}
		at, got := c.Pin(tc.tokens)
		if check(t, c); got != tc.want {
			t.Errorf("Pin(%v): got %d, want %d", tc.tokens, got, tc.want)
		}
		c.Unpin(at)
		check(t, c)
	}
}

func TestCacheEvictsTheOldestAndExtensionsBeforePrefixes(t *testing.T) {
	c := NewCache(100, 1)
	keep(t, c, seq(0, 40))
	keep(t, c, append(seq(0, 20), seq(100, 120)...)) // shares 20
	keep(t, c, seq(200, 230))                        // 90 in all
	keep(t, c, seq(300, 330))                        // 20 too many: the end of the first goes
	for _, tc := range []struct {
		name   string
		tokens []uint32
		want   int
	}{
		{"the oldest", seq(0, 40), 20},
		{"its prefix, used later too", append(seq(0, 20), seq(100, 120)...), 40},
		{"the next", seq(200, 230), 30},
		{"the newest", seq(300, 330), 30},
	} {
		if got := c.Match(tc.tokens); got != tc.want {
			t.Errorf("%s after eviction: got %d cached tokens, want %d", tc.name, got, tc.want)
		}
	}
}

func TestCacheNeverEvictsWhatIsPinned(t *testing.T) {
	c := NewCache(100, 1)
	keep(t, c, seq(0, 60))
	at, _ := c.Pin(seq(0, 60))
	if c.Reserve(41) {
		t.Errorf("Reserve(41) beside 60 pinned of 100: got true")
	}
	if !c.Reserve(40) {
		t.Errorf("Reserve(40) beside 60 pinned of 100: got false")
	}
	if got := c.Match(seq(0, 60)); got != 60 {
		t.Errorf("pinned prefix after Reserve: got %d tokens, want 60", got)
	}
	c.Unpin(at)
	c.Release(40)
	if got := c.Flush(); got != 60 || c.Used() != 0 {
		t.Errorf("Flush: got %d tokens dropped and %d in use, want 60 and 0", got, c.Used())
	}
	check(t, c)
}

func FuzzCacheKeepsItsAccounts(f *testing.F) {
	f.Add(uint64(1), uint8(1))
	f.Add(uint64(2), uint8(4))
	f.Fuzz(func(t *testing.T, seed uint64, page uint8) {
		rng := rand.New(rand.NewPCG(seed, 0))
		c := NewCache(400, int(page%8)+1)
		type held struct {
			at             *node
			stored, amount int
			tokens         []uint32
		}
		var running []held
		for range 300 {
			switch rng.IntN(3) {
			case 0: // a request comes: few different beginnings, so that they share
				tokens := seq(uint32(rng.IntN(3)*1000), uint32(rng.IntN(3)*1000+1))
				for len(tokens) < 1+rng.IntN(60) {
					tokens = append(tokens, uint32(rng.IntN(2)))
				}
				at, had := c.Pin(tokens)
				need := c.pages(len(tokens)) - had
				if !c.Reserve(need) {
					c.Unpin(at)
					break
				}
				running = append(running, held{at, had, had + need, tokens})
			case 1: // one computes a part
				if len(running) > 0 {
					h := &running[rng.IntN(len(running))]
					if n := h.stored + rng.IntN(len(h.tokens)-h.stored+1); n >= h.stored {
						h.at, h.stored = c.Store(h.at, h.stored, h.tokens[:max(n, h.stored)])
					}
				}
			case 2: // one ends
				if len(running) > 0 {
					i := rng.IntN(len(running))
					h := running[i]
					c.Unpin(h.at)
					c.Release(h.amount - h.stored)
					running = slices.Delete(running, i, i+1)
				}
			}
			check(t, c)
		}
		for _, h := range running {
			c.Unpin(h.at)
			c.Release(h.amount - h.stored)
		}
		if check(t, c); c.Used() != 0 {
			t.Fatalf("nothing runs: got %d tokens in use, want 0", c.Used())
		}
	})
}

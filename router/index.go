package router

import (
	"sync"
	"sync/atomic"
)

// index is what one replica holds: a prefix tree of blocks, found by chain hash.
//
// A block is pinned while a request that needs it is in flight there; pinned
// blocks are in no list and never evicted. The others are in one LRU list. A
// block leaves a request tail first, so its parent is always nearer the front
// of the list, and eviction from the back takes extensions before what they
// extend: if a block is here, everything before it is. That makes matching a
// search by halves, and lets a pin count sit on the last block of a request
// alone (a parent counts its pinned children).
//
// Matching reads the table alone: a slot's word tells besides the block's place
// whether its prefill is known to be over.
//
// Memory is 32 bytes for each block and 8 for each slot of the table, of which
// there are 1.3 to 2.7 for each block; nothing is allocated but when they grow.
type index struct {
	mu      sync.RWMutex
	version atomic.Uint64 // changes with every change; read without the lock
	table   []uint64      // hash's upper half, readyBit, slot + 1; 0: empty; length a power of two
	pinned  atomic.Int64  // units pinned; read without the lock

	entries    []entry
	free       int32 // list of free slots through next
	head, tail int32 // the LRU list, most recent first
	count      int   // blocks held, pinned ones included
	units      int   // what they cover
	capacity   int   // units at most, pinned ones aside
	generation uint32
}

type entry struct {
	hash       uint64
	prev, next int32
	parent     int32
	refs       int32 // requests that end here + pinned children; -1: a free slot
	depth      int32 // blocks before it
	ready      bool  // its prefill is known to be over
}

// units is how much of the prompt the block is.
func (e *entry) units() int { return blockUnits(int(e.depth)) }

const none = int32(-1)

// readyBit in a word of the table says that the block's prefill is over. The
// bits below it are the slot + 1.
const readyBit = 1 << 31

func slotOf(word uint64) int32 { return int32(word&(readyBit-1)) - 1 }

func newIndex(capacity int) *index {
	x := &index{capacity: capacity}
	x.reset()
	return x
}

// reset forgets everything; slots handed out before are void.
func (x *index) reset() {
	x.table, x.entries = make([]uint64, 64), nil
	x.free, x.head, x.tail = none, none, none
	x.count, x.units = 0, 0
	x.generation++
	x.pinned.Store(0)
	x.version.Add(1)
}

// match counts the leading blocks of hashes held here, and how many of those
// are ready (their prefill is over). guess is where the search starts: replicas
// that share a system prompt mostly match alike.
func (x *index) match(hashes []uint64, guess int) (matched, ready int) {
	matched = x.longest(hashes, guess, func(w uint64) bool { return w != 0 })
	if matched == 0 {
		return 0, 0
	}
	if x.word(hashes[matched-1])&readyBit != 0 {
		return matched, matched
	}
	return matched, x.longest(hashes[:matched], 0, func(w uint64) bool { return w&readyBit != 0 })
}

// pinnedPrefix counts the leading blocks of hashes that are pinned.
func (x *index) pinnedPrefix(hashes []uint64) int {
	return x.longest(hashes, 0, func(w uint64) bool { return w != 0 && x.entries[slotOf(w)].refs > 0 })
}

// longest is the number of leading hashes held with property ok, which must be
// one that a block's parent has when the block has it.
func (x *index) longest(hashes []uint64, guess int, ok func(word uint64) bool) int {
	has := func(i int) bool { return ok(x.word(hashes[i])) }
	lo, hi := 0, len(hashes) // hashes[:lo] are held, hashes[hi] is not
	if hi == 0 {
		return 0
	}
	if guess = min(guess, hi); guess > 0 {
		if has(guess - 1) {
			lo = guess
		} else {
			hi = guess - 1
		}
	}
	// Steps that double, from the known end: a miss is mostly near.
	for step := 1; lo < hi; step *= 2 {
		i := min(lo+step-1, hi-1)
		if !has(i) {
			hi = i
			break
		}
		lo = i + 1
	}
	for lo < hi {
		if i := int(uint(lo+hi) / 2); has(i) {
			lo = i + 1
		} else {
			hi = i
		}
	}
	return lo
}

// word is the table's word for a hash, 0 when it is not held. Position and upper
// half together leave an error of one in 2^40 or so, which costs a worse
// placement once.
func (x *index) word(hash uint64) uint64 {
	mask := uint64(len(x.table) - 1)
	for i := hash & mask; ; i = (i + 1) & mask {
		t := x.table[i]
		if t == 0 || t>>32 == hash>>32 {
			return t
		}
	}
}

// find is the slot of a hash, or none.
func (x *index) find(hash uint64) int32 { return slotOf(x.word(hash)) }

// place is where the table has slot s.
func (x *index) place(s int32) uint64 {
	mask := uint64(len(x.table) - 1)
	i := x.entries[s].hash & mask
	for slotOf(x.table[i]) != s {
		i = (i + 1) & mask
	}
	return i
}

// insert adds the blocks of hashes after the first matched, which are held, and
// pins the whole prefix. It returns the slot of the last block (none when there
// is none), which unpin takes back.
func (x *index) insert(hashes []uint64, matched int) int32 {
	last := none
	if matched > 0 {
		last = x.find(hashes[matched-1])
	}
	return x.extend(last, hashes[matched:])
}

// extend adds new blocks behind the one in slot last and pins all of them.
func (x *index) extend(last int32, hashes []uint64) int32 {
	x.pin(last)
	depth, pinned := int32(0), 0
	if last != none {
		depth = x.entries[last].depth + 1
	}
	for _, h := range hashes {
		units := blockUnits(int(depth))
		if units > x.capacity {
			break // no prompt of this replica is so long
		}
		x.trim(x.capacity-units, 1+units)
		if x.units >= 2*x.capacity {
			break // nearly all of it in flight: memory is bounded all the same
		}
		s := x.alloc(h, depth)
		// The pin moves on from the parent, which counts it as its pinned child now.
		x.entries[s].parent, x.entries[s].refs = last, 1
		pinned += units
		depth++
		last = s
	}
	x.pinned.Add(int64(pinned))
	x.version.Add(1)
	return last
}

// pin keeps the block in slot s, and all before it, until unpin.
func (x *index) pin(s int32) {
	for s != none {
		e := &x.entries[s]
		e.refs++
		if e.refs > 1 {
			return
		}
		x.unlink(s)
		x.pinned.Add(int64(e.units()))
		s = e.parent
	}
}

// unpin gives back a pin of insert. Blocks that nobody needs any more become
// the most recent of the list, the prefix before its extension. The index may
// then be larger than it should: trim it once the slot is not needed any more.
func (x *index) unpin(s int32) {
	for s != none {
		e := &x.entries[s]
		e.refs--
		if e.refs > 0 {
			break
		}
		x.pinned.Add(-int64(e.units()))
		x.pushFront(s)
		s = e.parent
	}
	x.version.Add(1)
}

// markReady says that the prefill of the block in slot s, and so of all before
// it, is over. It appends the hashes of those of which that was not known to
// buf, the last first, and returns the hash of the block before them, 0 for none.
func (x *index) markReady(s int32, buf []uint64) (fresh []uint64, parent uint64) {
	for ; s != none && !x.entries[s].ready; s = x.entries[s].parent {
		x.entries[s].ready = true
		x.table[x.place(s)] |= readyBit
		buf = append(buf, x.entries[s].hash)
	}
	x.version.Add(1)
	if s != none {
		parent = x.entries[s].hash
	}
	return buf, parent
}

// attach adds blocks behind a parent (0: at the beginning) as another gateway
// has placed them: ready, unpinned, the most recent. Without the parent they
// could not be found, and are left out.
func (x *index) attach(parent uint64, hashes []uint64) {
	last := none
	if parent != 0 {
		if last = x.find(parent); last == none {
			return
		}
	}
	for len(hashes) > 0 {
		s := x.find(hashes[0])
		if s == none {
			break
		}
		last, hashes = s, hashes[1:]
	}
	s := x.extend(last, hashes)
	x.markReady(s, nil)
	x.unpin(s)
	x.trim(x.capacity, 8)
}

// forget drops the block in slot s and those before it as far as they were
// never computed and nobody else needs them: their request failed.
func (x *index) forget(s int32) {
	for s != none && x.entries[s].refs == 0 && !x.entries[s].ready {
		parent := x.entries[s].parent
		x.drop(s)
		s = parent
	}
	x.version.Add(1)
}

// trim drops least recent blocks, most of them, until they cover size units.
// What a smaller capacity leaves over goes in steps: no call sweeps.
func (x *index) trim(size, most int) {
	for ; x.units > size && x.tail != none && most > 0; most-- {
		x.drop(x.tail)
	}
}

// setCapacity bounds the units held, from the next insertions on.
func (x *index) setCapacity(n int) { x.capacity = max(1, n) }

// drop removes an unpinned block.
func (x *index) drop(s int32) {
	x.unlink(s)
	x.remove(s)
	x.units -= x.entries[s].units()
	x.entries[s] = entry{next: x.free, refs: -1}
	x.free = s
	x.count--
}

func (x *index) pushFront(s int32) {
	e := &x.entries[s]
	e.prev, e.next = none, x.head
	if x.head != none {
		x.entries[x.head].prev = s
	} else {
		x.tail = s
	}
	x.head = s
}

func (x *index) unlink(s int32) {
	e := &x.entries[s]
	if e.prev != none {
		x.entries[e.prev].next = e.next
	} else {
		x.head = e.next
	}
	if e.next != none {
		x.entries[e.next].prev = e.prev
	} else {
		x.tail = e.prev
	}
}

// alloc takes a slot for a hash that is not held and enters it in the table.
func (x *index) alloc(hash uint64, depth int32) int32 {
	s := x.free
	if s != none {
		x.free = x.entries[s].next
	} else {
		s = int32(len(x.entries))
		x.entries = append(x.entries, entry{})
	}
	x.entries[s] = entry{hash: hash, parent: none, prev: none, next: none, depth: depth}
	x.count++
	x.units += x.entries[s].units()
	if x.count*4 > len(x.table)*3 {
		x.grow()
	}
	x.enter(s)
	return s
}

func (x *index) enter(s int32) {
	hash, mask := x.entries[s].hash, uint64(len(x.table)-1)
	i := hash & mask
	for x.table[i] != 0 {
		i = (i + 1) & mask
	}
	x.table[i] = hash>>32<<32 | uint64(s+1)
	if x.entries[s].ready {
		x.table[i] |= readyBit
	}
}

func (x *index) grow() {
	old := x.table
	x.table = make([]uint64, 2*len(old))
	for _, t := range old {
		if t != 0 {
			x.enter(slotOf(t))
		}
	}
}

// remove takes slot s out of the table and closes the gap, so that there are no
// tombstones to sweep.
func (x *index) remove(s int32) {
	mask := uint64(len(x.table) - 1)
	i := x.place(s)
	for j := i; ; {
		j = (j + 1) & mask
		t := x.table[j]
		if t == 0 {
			break
		}
		home := x.entries[slotOf(t)].hash & mask
		if (j-home)&mask >= (j-i)&mask {
			x.table[i] = t
			i = j
		}
	}
	x.table[i] = 0
}

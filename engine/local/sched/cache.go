package sched

import "slices"

// Cache is a paged prefix cache of limited size: a radix tree over tokens
// whose edges are cut at page boundaries. What running sequences use is pinned;
// the rest is evicted by age, the oldest first, an extension always before its
// prefix. Not safe for concurrent use.
type Cache struct {
	page     int
	root     node
	capacity int // in tokens, a multiple of the page
	private  int // tokens held by sequences outside the tree
	stored   int // tokens in the tree
	pinned   int // of those, in use
}

// node is a run of tokens that follows its parent's. Unpinned nodes are in a
// ring ordered by age; a child is always older than its parent, so the oldest
// node is a leaf.
type node struct {
	parent     *node
	children   map[uint64]*node // by the hash of the first page
	tokens     []uint32
	pins       int
	prev, next *node // in the ring; nil while pinned
}

// NewCache makes a cache of capacity tokens in pages of page tokens.
func NewCache(capacity, page int) *Cache {
	page = max(page, 1)
	c := &Cache{page: page, capacity: capacity / page * page}
	c.root.prev, c.root.next = &c.root, &c.root // the root heads the ring: next is the oldest
	return c
}

// Capacity is the size in tokens.
func (c *Cache) Capacity() int { return c.capacity }

// Used is what running sequences hold, in the tree or beside it.
func (c *Cache) Used() int { return c.pinned + c.private }

// Stored is what the tree holds, in use or not.
func (c *Cache) Stored() int { return c.stored }

// Free is what could still be allocated, by eviction if need be.
func (c *Cache) Free() int { return c.capacity - c.pinned - c.private }

// Pin finds the longest stored prefix of tokens, in whole pages, and holds it
// until Unpin. It returns its length.
func (c *Cache) Pin(tokens []uint32) (at *node, matched int) {
	at, matched = c.walk(tokens)
	c.pin(at)
	return at, matched
}

// Match is the length of the longest stored prefix; nothing is held or aged.
func (c *Cache) Match(tokens []uint32) int {
	n, matched := &c.root, 0
	for {
		child, same := c.follow(n, tokens[matched:])
		matched += same
		if child == nil || same < len(child.tokens) {
			return matched
		}
		n = child
	}
}

// walk finds the node that ends the longest stored prefix, splitting one if
// the prefix ends within it.
func (c *Cache) walk(tokens []uint32) (*node, int) {
	n, matched := &c.root, 0
	for {
		child, same := c.follow(n, tokens[matched:])
		if child == nil {
			return n, matched
		}
		matched += same
		if same < len(child.tokens) {
			return c.split(child, same), matched
		}
		n = child
	}
}

// follow finds the child of n that tokens go on with, and how many of its
// tokens agree, in whole pages.
func (c *Cache) follow(n *node, tokens []uint32) (*node, int) {
	if len(tokens) < c.page {
		return nil, 0
	}
	child := n.children[pageHash(tokens[:c.page])]
	if child == nil {
		return nil, 0
	}
	same := 0
	for same < len(child.tokens) && same < len(tokens) && child.tokens[same] == tokens[same] {
		same++
	}
	same -= same % c.page
	if same == 0 {
		return nil, 0
	}
	return child, same
}

// split cuts n after its first k tokens and returns the new node that holds them.
func (c *Cache) split(n *node, k int) *node {
	head := &node{parent: n.parent, tokens: n.tokens[:k:k], pins: n.pins, children: make(map[uint64]*node, 2)}
	n.parent.children[pageHash(head.tokens[:c.page])] = head
	n.tokens, n.parent = n.tokens[k:], head
	head.children[pageHash(n.tokens[:c.page])] = n
	if n.pins == 0 {
		link(head, n.next) // as old as its rest, but evicted after it
	}
	return head
}

// pin holds n and its ancestors.
func (c *Cache) pin(n *node) {
	for ; n != &c.root; n = n.parent {
		if n.pins == 0 {
			unlink(n)
			c.pinned += len(n.tokens)
		}
		n.pins++
	}
}

// Unpin lets go of what Pin or Store returned.
func (c *Cache) Unpin(n *node) {
	for ; n != &c.root; n = n.parent {
		n.pins--
		if n.pins == 0 {
			link(n, &c.root) // the youngest; a parent is linked after its child
			c.pinned -= len(n.tokens)
		}
	}
}

// Reserve takes n tokens for a sequence outside the tree, evicting as needed.
// It fails, taking nothing, if not even eviction makes room.
func (c *Cache) Reserve(n int) bool {
	if n > c.Free() {
		return false
	}
	c.private += n
	c.evict()
	return true
}

// Release gives back n tokens taken by Reserve.
func (c *Cache) Release(n int) { c.private -= n }

// Store puts a sequence's tokens, in whole pages, into the tree, where they
// count as stored and no longer as the sequence's own: of the reserved tokens
// it held, those now in the tree are given back. It moves the sequence's pin
// from at to the node of all its stored tokens, which it returns with their
// number.
func (c *Cache) Store(at *node, had int, tokens []uint32) (*node, int) {
	tokens = tokens[:len(tokens)/c.page*c.page]
	n, matched := c.walk(tokens)
	if rest := tokens[matched:]; len(rest) > 0 {
		child := &node{parent: n, tokens: slices.Clone(rest)}
		if n.children == nil {
			n.children = make(map[uint64]*node, 1)
		}
		n.children[pageHash(rest[:c.page])] = child
		link(child, &c.root)
		c.stored += len(rest)
		n = child
	}
	c.pin(n)
	c.Unpin(at)
	c.Release(len(tokens) - had)
	return n, len(tokens)
}

// evict drops the oldest unpinned tokens until all fits.
func (c *Cache) evict() {
	for over := c.stored + c.private - c.capacity; over > 0; over = c.stored + c.private - c.capacity {
		n := c.root.next
		if n == &c.root {
			return
		}
		drop := min(len(n.tokens), (over+c.page-1)/c.page*c.page)
		c.stored -= drop
		if drop < len(n.tokens) { // the tail goes first
			n.tokens = n.tokens[:len(n.tokens)-drop]
			return
		}
		unlink(n)
		delete(n.parent.children, pageHash(n.tokens[:c.page]))
	}
}

// Flush forgets everything that no sequence uses, and returns how much that was.
func (c *Cache) Flush() int {
	before := c.stored
	for n := c.root.next; n != &c.root; n = c.root.next {
		unlink(n)
		delete(n.parent.children, pageHash(n.tokens[:c.page]))
		c.stored -= len(n.tokens)
	}
	return before - c.stored
}

// link puts n into the ring just before at.
func link(n, at *node) {
	n.prev, n.next = at.prev, at
	at.prev.next, at.prev = n, n
}

func unlink(n *node) {
	n.prev.next, n.next.prev = n.next, n.prev
	n.prev, n.next = nil, nil
}

func pageHash(tokens []uint32) uint64 {
	h := uint64(len(tokens))
	for _, t := range tokens {
		h = (h ^ uint64(t)) * 0x9FB21C651E98DF25
		h ^= h >> 32
	}
	return h
}

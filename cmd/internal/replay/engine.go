package replay

// The simulated replica. A step prefills up to stepBudget tokens in order of
// arrival and decodes one token of each running request; its time is the sum of
// both. Nothing here is known to the router.

import "slices"

const (
	stepBudget = 8192
	maxRunning = 256
)

// prefillMs is the time of a step's prefill: a fit to a real engine, quadratic
// in the tokens (and so not the router's rate).
func prefillMs(tokens int) float64 {
	n := float64(tokens)
	return 4.209989e-07*n*n + 1.518344e-02*n + 16.50142
}

// decodeMs is the time of a step's decode by the share of the KV cache in use.
func decodeMs(use float64) float64 {
	use = min(1, use)
	return max(1, -25.74*use*use+54.01*use+5.74)
}

// engine is one replica. Times are ms, blocks are a trace's.
type engine struct {
	capacity int // blocks
	block    int // tokens
	slowness float64

	cache      lru
	pins       []int32 // running requests that need a block
	pinned     int     // blocks with pins
	waiting    []*request
	prefilling []*request
	finishing  []finish // heap
	batch      []chunk
	running    int
	step       int
	kv         int // tokens in use
	served     int
	computed   int
	busy       bool
	firsts     []*request
	dones      []*request
}

type chunk struct {
	r      *request
	tokens int
}

type finish struct {
	step int
	r    *request
}

func newEngine(blocks, kvBlocks, blockTokens int, slowness float64) *engine {
	return &engine{capacity: kvBlocks, block: blockTokens, slowness: slowness, cache: newLRU(blocks), pins: make([]int32, blocks)}
}

// admit starts waiting requests while the running limit and the KV cache allow.
func (e *engine) admit() {
	n := 0
	for ; n < len(e.waiting) && e.running+len(e.prefilling) < maxRunning; n++ {
		r := e.waiting[n]
		if e.running+len(e.prefilling) > 0 && !e.fits(r) {
			break
		}
		k := 0
		for k < len(r.row.Blocks) && e.cache.has(r.row.Blocks[k]) {
			k++
		}
		r.hit = min(k*e.block, r.row.Input-1)
		r.left = r.row.Input - r.hit
		e.computed += r.left
		for _, b := range r.row.Blocks {
			if e.pins[b]++; e.pins[b] == 1 {
				e.pinned++
			}
		}
		for i := k - 1; i >= 0; i-- {
			e.cache.touch(r.row.Blocks[i])
		}
		e.kv += r.row.Input
		e.prefilling = append(e.prefilling, r)
	}
	e.waiting = e.waiting[n:]
}

func (e *engine) fits(r *request) bool {
	room := e.capacity - e.pinned
	if len(r.row.Blocks) <= room {
		return true
	}
	for _, b := range r.row.Blocks {
		if e.pins[b] == 0 {
			room--
		}
	}
	return room >= 0
}

// begin starts a step: the time of its end, false when there is nothing to do.
func (e *engine) begin(now float64) (float64, bool) {
	e.admit()
	if e.busy = len(e.prefilling)+e.running > 0; !e.busy {
		return 0, false
	}
	e.batch = e.batch[:0]
	budget, tokens := max(256, stepBudget-e.running), 0
	for _, r := range e.prefilling {
		if budget <= 0 {
			break
		}
		c := min(budget, r.left)
		budget -= c
		tokens += c
		e.batch = append(e.batch, chunk{r, c})
	}
	ms := 0.0
	if tokens > 0 {
		ms += prefillMs(tokens)
	}
	if e.running > 0 {
		ms += decodeMs(float64(e.kv) / float64(e.capacity*e.block))
	}
	return now + ms*e.slowness, true
}

// end finishes the step: the requests with their first token and those done.
// Both slices are valid until the next step.
func (e *engine) end() (firsts, dones []*request) {
	e.step++
	e.kv += e.running
	e.firsts, e.dones = e.firsts[:0], e.dones[:0]
	for len(e.finishing) > 0 && e.finishing[0].step <= e.step {
		r := e.popFinish()
		e.running--
		e.release(r)
		e.dones = append(e.dones, r)
	}
	for _, c := range e.batch {
		r := c.r
		if r.left -= c.tokens; r.left > 0 {
			continue
		}
		e.firsts = append(e.firsts, r)
		for _, v := range slices.Backward(r.row.Blocks) {
			e.cache.touch(v)
		}
		e.evict()
		if r.row.Output <= 1 {
			e.release(r)
			e.dones = append(e.dones, r)
		} else {
			e.pushFinish(finish{e.step + r.row.Output - 1, r})
			e.running++
		}
	}
	// Prefill is in order of arrival: those done are the first.
	e.prefilling = e.prefilling[len(e.firsts):]
	return e.firsts, e.dones
}

func (e *engine) release(r *request) {
	e.kv = max(0, e.kv-(r.row.Input+r.row.Output-1))
	for _, b := range r.row.Blocks {
		if e.pins[b]--; e.pins[b] == 0 {
			e.pinned--
		}
	}
}

// evict drops what is over the capacity, least recent first; pinned blocks stay.
func (e *engine) evict() {
	for spared := 0; e.cache.size > e.capacity && spared < e.cache.size; {
		b := e.cache.oldest()
		if e.pins[b] > 0 {
			e.cache.touch(b)
			spared++
		} else {
			e.cache.drop(b)
		}
	}
}

func (e *engine) pushFinish(f finish) {
	h := append(e.finishing, f)
	for i := len(h) - 1; i > 0; {
		up := (i - 1) / 2
		if h[up].step <= h[i].step {
			break
		}
		h[up], h[i] = h[i], h[up]
		i = up
	}
	e.finishing = h
}

func (e *engine) popFinish() *request {
	h := e.finishing
	top, last := h[0].r, len(h)-1
	h[0], h[last] = h[last], finish{}
	h = h[:last]
	for i := 0; ; {
		c := 2*i + 1
		if c >= last {
			break
		}
		if c+1 < last && h[c+1].step < h[c].step {
			c++
		}
		if h[i].step <= h[c].step {
			break
		}
		h[i], h[c] = h[c], h[i]
		i = c
	}
	e.finishing = h
	return top
}

// lru is a set of block numbers in order of use, as a list through arrays.
type lru struct {
	next, prev []int32 // of block b at b+1, 0 is the ring's head; 0 in next[b+1] and prev[b+1] of a block not held: see held
	held       []bool
	size       int
}

func newLRU(blocks int) lru {
	return lru{next: make([]int32, blocks+1), prev: make([]int32, blocks+1), held: make([]bool, blocks)}
}

func (l *lru) has(b int32) bool { return l.held[b] }

// touch makes b the most recent, adding it if it is not there.
func (l *lru) touch(b int32) {
	if l.held[b] {
		l.unlink(b)
	} else {
		l.held[b] = true
		l.size++
	}
	i, last := b+1, l.prev[0]
	l.next[last], l.prev[i], l.next[i], l.prev[0] = i, last, 0, i
}

func (l *lru) oldest() int32 { return l.next[0] - 1 }

func (l *lru) drop(b int32) {
	l.unlink(b)
	l.held[b] = false
	l.size--
}

func (l *lru) unlink(b int32) {
	p, n := l.prev[b+1], l.next[b+1]
	l.next[p], l.prev[n] = n, p
}

package replay

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"penstock/router"
)

// Fleet is what the replicas are and how the trace is run.
type Fleet struct {
	Replicas   int
	KVTokens   int             // of each replica
	Speed      float64         // the trace's times are divided by it
	Slow       map[int]float64 // how many times slower a replica is
	Unstreamed float64         // share of answers that are not streamed
	NoCached   bool            // engines do not report cached tokens
	NoWait     bool            // bind at once whenever some replica has room
	// Credit is the gateway's waiting credit, a share of the prefill rate. Default 0.085.
	Credit float64
	// Latency between an event on an engine and the gateway's knowledge of it, in ms. Default 1.
	Latency float64
	// Router is passed on to the pool.
	Router router.Options
}

// request is one row on its way.
type request struct {
	row   *Row
	query router.Request
	lease *router.Lease
	at    float64 // ms of arrival
	first float64
	hit   int // tokens, by the engine
	left  int // tokens to prefill

	streamed bool
}

// note is what the gateway will learn of an engine's event, after the latency.
type note struct {
	at   float64
	r    *request
	done bool
}

// sim is one run of one policy.
type sim struct {
	fleet   Fleet
	trace   *Trace
	pool    *router.Pool
	engines []*engine
	numbers map[*router.Replica]int
	steps   []pending // heap: ends of steps
	notes   []note    // in order of time
	queue   queue
	binding *Row // offered to the router now
	out     samples
	regret  int
}

// pending is an engine's step that ends at a time.
type pending struct {
	at float64
	i  int
}

// Simulate runs the trace under a policy and measures it.
func Simulate(t *Trace, f Fleet, policy string, seed uint64) (Result, error) {
	s, err := newSim(t, f, policy, seed)
	if err != nil {
		return Result{}, err
	}
	s.run(seed)
	return s.result(policy), nil
}

func newSim(t *Trace, f Fleet, policy string, seed uint64) (*sim, error) {
	f.Speed, f.Credit, f.Latency = cmp.Or(f.Speed, 1), cmp.Or(f.Credit, 0.085), cmp.Or(f.Latency, 1)
	o := f.Router
	o.Seed, o.BlockTokens = seed, t.BlockTokens
	s := &sim{fleet: f, trace: t, numbers: map[*router.Replica]int{}}
	if err := setPolicy(&o, policy, t, f, func() *Row { return s.binding }); err != nil {
		return nil, err
	}
	s.pool = router.NewPool(o)
	for i := range f.Replicas {
		r := s.pool.Add(fmt.Sprintf("replica-%d", i), router.Capacity{KVTokens: f.KVTokens, MaxRunning: maxRunning}, nil)
		s.numbers[r] = i
		s.engines = append(s.engines, newEngine(t.Blocks, f.KVTokens/t.BlockTokens, t.BlockTokens, cmp.Or(f.Slow[i], 1)))
	}
	s.queue = newQueue(f.Credit)
	return s, nil
}

// run goes from event to event: arrivals, news that reach the gateway, ends of steps.
func (s *sim) run(seed uint64) {
	requests := s.requests(seed)
	for next := 0; ; {
		arrival, news, step := math.Inf(1), math.Inf(1), math.Inf(1)
		if next < len(requests) {
			arrival = requests[next].at
		}
		if len(s.notes) > 0 {
			news = s.notes[0].at
		}
		if len(s.steps) > 0 {
			step = s.steps[0].at
		}
		switch {
		case arrival <= news && arrival <= step && next < len(requests):
			s.arrive(requests[next])
			next++
		case news <= step && len(s.notes) > 0:
			s.learn()
		case len(s.steps) > 0:
			s.endStep()
		default:
			return
		}
	}
}

// requests prepares the rows. Whether one is streamed does not depend on the policy or its seed.
func (s *sim) requests(uint64) []*request {
	coin := rand.New(rand.NewPCG(99, 99))
	hashes := make([]uint64, 0, 1<<16)
	list, all := make([]*request, len(s.trace.Rows)), make([]request, len(s.trace.Rows))
	for i := range s.trace.Rows {
		row := &s.trace.Rows[i]
		if cap(hashes)-len(hashes) < len(row.Blocks) {
			hashes = make([]uint64, 0, max(1<<16, len(row.Blocks)))
		}
		from := len(hashes)
		for _, b := range row.Blocks {
			hashes = append(hashes, mix(0, uint64(b)))
		}
		r := &all[i]
		*r = request{row: row, at: row.At / s.fleet.Speed, streamed: coin.Float64() >= s.fleet.Unstreamed}
		r.query = router.Request{
			Key:    router.Key{Hashes: hashes[from:len(hashes):len(hashes)], Bytes: 4 * row.Input},
			Tokens: row.Input, Streamed: r.streamed, Session: sessionOf(row), MayWait: !s.fleet.NoWait,
		}
		list[i] = r
	}
	return list
}

// sessionOf stands in for a session's name: the first blocks of its prompt.
func sessionOf(row *Row) string {
	n := min(len(row.Blocks), firstBlocks)
	if n == 0 {
		return ""
	}
	return fmt.Sprint(row.Blocks[n-1])
}

func (s *sim) arrive(r *request) {
	if s.queue.order.Len() == 0 && s.bind(r, r.at) {
		return
	}
	s.queue.add(clock(r.at), r, func() int { return s.pool.Work(&r.query) })
	s.dispatch(r.at)
}

// dispatch binds what fits.
func (s *sim) dispatch(now float64) {
	held := s.queue.order.Len()
	if held == 0 {
		return
	}
	s.queue.order.SetRate(s.pool.PrefillRate())
	s.queue.dispatch(clock(now), func(r *request) bool {
		s.pool.SetHeld(held - 1)
		if !s.bind(r, now) {
			return false
		}
		held--
		return true
	})
	s.pool.SetHeld(held)
}

func (s *sim) bind(r *request, now float64) bool {
	s.binding = r.row
	l, err := s.pool.Choose(clock(now), &r.query)
	if err != nil {
		return false
	}
	r.lease = l
	d := l.Decision()
	s.regret += d.Best - d.Matched
	i := s.numbers[l.Replica()]
	e := s.engines[i]
	e.served++
	e.waiting = append(e.waiting, r)
	if !e.busy {
		s.beginStep(i, now)
	}
	return true
}

func (s *sim) beginStep(i int, now float64) {
	if at, ok := s.engines[i].begin(now); ok {
		s.pushStep(pending{at, i})
	}
}

func (s *sim) endStep() {
	p := s.popStep()
	firsts, dones := s.engines[p.i].end()
	for _, r := range firsts {
		r.first = p.at
		s.out.first(r)
		if r.streamed {
			s.notes = append(s.notes, note{at: p.at + s.fleet.Latency, r: r})
		}
	}
	for _, r := range dones {
		s.out.done(r, p.at)
		s.notes = append(s.notes, note{at: p.at + s.fleet.Latency, r: r, done: true})
	}
	s.beginStep(p.i, p.at)
}

// learn tells the gateway the oldest news.
func (s *sim) learn() {
	n := s.notes[0]
	s.notes = s.notes[1:]
	if !n.done {
		n.r.lease.First(clock(n.at))
		s.dispatch(n.at)
		return
	}
	u := router.Usage{PromptTokens: n.r.row.Input, CachedTokens: n.r.hit, OutputTokens: n.r.row.Output, OK: true}
	if s.fleet.NoCached {
		u.CachedTokens = -1
	}
	n.r.lease.Done(clock(n.at), u)
	n.r.lease = nil
	s.dispatch(n.at)
}

// clock is a simulated time as the router takes it.
func clock(ms float64) time.Time {
	return time.Unix(1_700_000_000, 0).Add(time.Duration(ms * float64(time.Millisecond)))
}

func (s *sim) pushStep(p pending) {
	h := append(s.steps, p)
	for i := len(h) - 1; i > 0; {
		up := (i - 1) / 2
		if h[up].at <= h[i].at {
			break
		}
		h[up], h[i] = h[i], h[up]
		i = up
	}
	s.steps = h
}

func (s *sim) popStep() pending {
	h := s.steps
	top, last := h[0], len(h)-1
	h[0] = h[last]
	h = h[:last]
	for i := 0; ; {
		c := 2*i + 1
		if c >= last {
			break
		}
		if c+1 < last && h[c+1].at < h[c].at {
			c++
		}
		if h[i].at <= h[c].at {
			break
		}
		h[i], h[c] = h[c], h[i]
		i = c
	}
	s.steps = h
	return top
}

package replay

import (
	"cmp"
	"context"
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
	// Credit is the gateway's waiting credit, a share of the prefill rate. 0: none.
	Credit float64
	// Gateways share the replicas; each request comes to the next one. Default 1.
	Gateways int
	// ShareEvery is the time between two exchanges of placements among them, in ms. Default 100; below 0: none.
	ShareEvery float64
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
	gate  *gate
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
	gates   []*gate
	engines []*engine
	steps   []pending // heap: ends of steps
	notes   []note    // in order of time
	shareAt float64   // next exchange of placements
	binding *Row      // offered to the router now
	out     samples
	regret  int
}

// gate is one gateway: its router and its queue.
type gate struct {
	pool    *router.Pool
	numbers map[*router.Replica]int
	queue   queue
}

// pending is an engine's step that ends at a time.
type pending struct {
	at float64
	i  int
}

// Simulate runs the trace under a policy and measures it.
func Simulate(ctx context.Context, t *Trace, f Fleet, policy string, seed uint64) (Result, error) {
	s, err := newSim(t, f, policy, seed)
	if err != nil {
		return Result{}, err
	}
	if err := s.run(ctx); err != nil {
		return Result{}, err
	}
	if n := len(t.Rows) - s.out.answered; n > 0 {
		return Result{}, fmt.Errorf("policy %s: %d requests were never answered", policy, n)
	}
	return s.result(policy), nil
}

func newSim(t *Trace, f Fleet, policy string, seed uint64) (*sim, error) {
	f.Speed, f.Latency = cmp.Or(f.Speed, 1), cmp.Or(f.Latency, 1)
	f.Gateways, f.ShareEvery = max(1, f.Gateways), cmp.Or(f.ShareEvery, 100)
	s := &sim{fleet: f, trace: t}
	for i := range f.Replicas {
		s.engines = append(s.engines, newEngine(t.Blocks, f.KVTokens/t.BlockTokens, t.BlockTokens, cmp.Or(f.Slow[i], 1)))
	}
	for i := range f.Gateways {
		g, err := s.newGate(policy, seed+1000*uint64(i))
		if err != nil {
			return nil, err
		}
		if f.Gateways > 1 && f.ShareEvery > 0 {
			g.pool.Share(uint64(i + 1))
		}
		s.gates = append(s.gates, g)
	}
	s.shareAt = math.Inf(1)
	if f.Gateways > 1 && f.ShareEvery > 0 {
		s.shareAt = f.ShareEvery
	}
	return s, nil
}

func (s *sim) newGate(policy string, seed uint64) (*gate, error) {
	o := s.fleet.Router
	o.Seed, o.BlockTokens = seed, s.trace.BlockTokens
	if err := setPolicy(&o, policy, s.trace, s.fleet, func() *Row { return s.binding }); err != nil {
		return nil, err
	}
	g := &gate{pool: router.NewPool(o), numbers: map[*router.Replica]int{}, queue: newQueue(s.fleet.Credit)}
	for i := range s.engines {
		r := g.pool.Add(fmt.Sprintf("replica-%d", i), router.Capacity{KVTokens: s.fleet.KVTokens, MaxRunning: maxRunning}, nil)
		g.numbers[r] = i
	}
	return g, nil
}

// run goes from event to event: arrivals, news that reach the gateway, ends of steps.
func (s *sim) run(ctx context.Context) error {
	requests := s.requests()
	for next := 0; ctx.Err() == nil; {
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
		if t := min(arrival, news, step); t >= s.shareAt && !math.IsInf(t, 1) {
			s.share(s.shareAt)
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
			return nil
		}
	}
	return ctx.Err()
}

// requests prepares the rows. Whether one is streamed does not depend on the policy or its seed.
func (s *sim) requests() []*request {
	streamed := coins(s.fleet.Unstreamed)
	hashes := make([]uint64, 0, 1<<16)
	list, all := make([]*request, len(s.trace.Rows)), make([]request, len(s.trace.Rows))
	for i := range s.trace.Rows {
		row := &s.trace.Rows[i]
		if cap(hashes)-len(hashes) < len(row.Blocks) {
			hashes = make([]uint64, 0, max(1<<16, len(row.Blocks)))
		}
		from := len(hashes)
		for i, b := range row.Blocks {
			if router.BlockEnds(i + 1) {
				hashes = append(hashes, mix(0, uint64(b)))
			}
		}
		r := &all[i]
		*r = request{row: row, gate: s.gates[i%len(s.gates)], at: row.At / s.fleet.Speed, streamed: streamed()}
		r.query = router.Request{
			Key:    router.Key{Hashes: hashes[from:len(hashes):len(hashes)], Bytes: 4 * row.Input},
			Tokens: row.Input, Streamed: r.streamed, Session: sessionOf(row), MayWait: !s.fleet.NoWait,
		}
		list[i] = r
	}
	return list
}

// coins says of one request after the other whether it is streamed.
func coins(unstreamed float64) func() bool {
	rnd := rand.New(rand.NewPCG(99, 99))
	return func() bool { return rnd.Float64() >= unstreamed }
}

// sessionOf stands in for a session's name: the first blocks of its prompt.
func sessionOf(row *Row) string {
	n := min(len(row.Blocks), firstBlocks)
	if n == 0 {
		return ""
	}
	return fmt.Sprint(row.Blocks[n-1])
}

// Work is the request's least uncached tokens anywhere.
func (r *request) Work() int { return r.gate.pool.Work(&r.query) }

func (s *sim) arrive(r *request) {
	g := r.gate
	if g.queue.order.Len() == 0 && s.bind(r, r.at) {
		return
	}
	g.queue.add(clock(r.at), r)
	s.dispatch(g, r.at)
}

// share carries the placements of each gateway to the others.
func (s *sim) share(now float64) {
	s.shareAt = now + s.fleet.ShareEvery
	for _, from := range s.gates {
		batch := from.pool.Export(clock(now))
		if batch == nil {
			continue
		}
		for _, to := range s.gates {
			if to != from {
				_ = to.pool.Import(clock(now), batch) // its own format: it cannot fail
			}
		}
	}
	for _, g := range s.gates {
		s.dispatch(g, now)
	}
}

// dispatch binds what fits.
func (s *sim) dispatch(g *gate, now float64) {
	held := g.queue.order.Len()
	if held == 0 {
		return
	}
	g.queue.order.SetRate(g.pool.PrefillRate())
	g.queue.dispatch(clock(now), func(r *request) bool {
		g.pool.SetHeld(held - 1)
		if !s.bind(r, now) {
			return false
		}
		held--
		return true
	})
	g.pool.SetHeld(held)
}

func (s *sim) bind(r *request, now float64) bool {
	s.binding = r.row
	l, err := r.gate.pool.Choose(clock(now), &r.query)
	if err != nil {
		return false
	}
	r.lease = l
	d := l.Decision()
	s.regret += d.Best - d.Matched
	i := r.gate.numbers[l.Replica()]
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
		s.dispatch(n.r.gate, n.at)
		return
	}
	u := router.Usage{PromptTokens: n.r.row.Input, CachedTokens: n.r.hit, OutputTokens: n.r.row.Output, OK: true}
	if s.fleet.NoCached {
		u.CachedTokens = -1
	}
	n.r.lease.Done(clock(n.at), u)
	n.r.lease = nil
	s.dispatch(n.r.gate, n.at)
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

package local

import (
	"cmp"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"penstock/engine/local/sched"
)

// exchange is one request being answered: its choices, and where they stand.
// It belongs to the request's goroutine but for leave and abort.
type exchange struct {
	srv   *Server
	call  *call
	id    string // in the answer
	rid   string // by which /abort_request knows it
	born  time.Time
	fault *Fault // what will go wrong with it, if anything

	gens    []*gen // bestOf for each prompt
	jobs    []job  // what has been submitted
	leaders []*leader
	wake    chan struct{} // capacity 1

	left    chan struct{} // closed when the client has gone
	leaving sync.Once
	ended   atomic.Bool
	fd      uintptr // of the client's socket, while watched
	watched bool    // guarded by live.mu
}

// job is a submitted task, and where.
type job struct {
	task *sched.Task
	rank *sched.Rank
}

// leader reads a prompt into the cache before its several choices follow.
type leader struct {
	x      *exchange
	prompt int // index
	rank   *sched.Rank
	done   atomic.Bool
	cached int // valid once done
	fanned bool
}

func (l *leader) Prefilled(cached int)         { l.cached = cached; l.done.Store(true) }
func (l *leader) Next() (token uint32, _ bool) { return 0, true }
func (l *leader) Signal()                      { l.x.signal() }

func (s *Server) newExchange(c *call, id, rid string) *exchange {
	x := &exchange{srv: s, call: c, id: id, rid: rid, born: time.Now(), wake: make(chan struct{}, 1), left: make(chan struct{})}
	if !c.seeded {
		c.seed = s.ids.Add(1) ^ s.seed
	}
	for _, p := range c.prompts {
		for i := range c.bestOf {
			x.gens = append(x.gens, newGen(s.model, c, p.tokens, s.room(c, p.tokens), i, x.wake))
		}
	}
	return x
}

// room is how many tokens an answer to p may have.
func (s *Server) room(c *call, p []uint32) int {
	most := max(0, s.maxInput()-len(p))
	if c.maxTokens < 0 {
		return most
	}
	return min(c.maxTokens, most)
}

// begin submits all that can be submitted.
func (x *exchange) begin() error {
	for i := range x.call.prompts {
		rank := x.srv.pick(x.call.rank)
		if x.call.bestOf > 1 {
			l := &leader{x: x, prompt: i, rank: rank}
			x.leaders = append(x.leaders, l)
			t := &sched.Task{Prompt: x.call.prompts[i].tokens, Fresh: x.call.wantsPrompt(), Seq: l}
			if err := x.submit(t, rank); err != nil {
				return err
			}
			continue
		}
		if err := x.submitGen(x.gens[i], rank, x.call.wantsPrompt()); err != nil {
			return err
		}
	}
	return nil
}

// pump submits the choices of those prompts that have been read.
func (x *exchange) pump() error {
	for _, l := range x.leaders {
		if l.fanned || !l.done.Load() {
			continue
		}
		l.fanned = true
		for i := range x.call.bestOf {
			g := x.gens[l.prompt*x.call.bestOf+i]
			g.led, g.cached = true, l.cached
			if err := x.submitGen(g, l.rank, false); err != nil {
				return err
			}
		}
	}
	return nil
}

func (x *exchange) submitGen(g *gen, rank *sched.Rank, fresh bool) error {
	return x.submit(&sched.Task{Prompt: g.prompt, Max: g.most, Fresh: fresh, Seq: g}, rank)
}

func (x *exchange) submit(t *sched.Task, rank *sched.Rank) error {
	if err := rank.Submit(t); err != nil {
		return x.srv.submitError(err)
	}
	x.jobs = append(x.jobs, job{t, rank})
	return nil
}

func (s *Server) submitError(err error) error {
	e := &apiError{status: 503, kind: "503", message: "The request queue is full."}
	switch {
	case errors.Is(err, sched.ErrTooLong):
		return badRequest("", "%v", err)
	case errors.Is(err, sched.ErrClosed):
		e.message = "The engine is shutting down."
	case s.opts.Kind == VLLM:
		e.message = "The request was rejected: too many requests are queued."
	}
	if s.opts.Kind == VLLM {
		e.kind = "ServiceUnavailableError"
	}
	return e
}

// errLeft: the client has gone, or the engine is closed; nobody reads an answer.
var errLeft = errors.New("local engine: the client has gone")

// wait returns when there may be something new to read.
func (x *exchange) wait() error {
	if err := x.pump(); err != nil {
		return err
	}
	select {
	case <-x.wake:
		return x.pump()
	case <-x.left:
	case <-x.srv.closing:
	}
	return errLeft
}

// finish waits until all choices have ended.
func (x *exchange) finish() error {
	for !x.over() {
		if err := x.wait(); err != nil {
			return err
		}
	}
	return nil
}

func (x *exchange) over() bool {
	for _, g := range x.gens {
		g.mu.Lock()
		running := g.reason == ""
		g.mu.Unlock()
		if running {
			return false
		}
	}
	return true
}

func (x *exchange) signal() {
	select {
	case x.wake <- struct{}{}:
	default:
	}
}

// leave notes that the client has gone.
func (x *exchange) leave() { x.leaving.Do(func() { close(x.left) }) }

// abort ends all choices that still run, as /abort_request does.
func (x *exchange) abort() {
	for _, g := range x.gens {
		g.mu.Lock()
		if g.reason == "" {
			g.reason = reasonAbort
			g.text = g.detok.Flush(g.text)
		}
		g.mu.Unlock()
	}
	x.signal()
}

// end gives back all that the exchange holds: slots, cache, watch. It may be
// called more than once.
func (x *exchange) end() {
	if x.ended.Swap(true) {
		return
	}
	x.srv.live.remove(x)
	for _, j := range x.jobs {
		j.rank.Abort(j.task)
	}
	for _, g := range x.gens { // nothing calls them any more
		g.draw.Release()
	}
}

// chosen are the choices to answer with: the n best of each prompt, the same
// order kept when none is left out.
func (x *exchange) chosen() []*gen {
	c := x.call
	if c.bestOf == c.n {
		return x.gens
	}
	var out []*gen
	for group := range slices.Chunk(x.gens, c.bestOf) {
		best := slices.Clone(group)
		slices.SortStableFunc(best, func(a, b *gen) int { return cmp.Compare(b.mean(), a.mean()) })
		out = append(out, best[:c.n]...)
	}
	return out
}

// mean is the log-probability per token, by which best_of ranks.
func (g *gen) mean() float64 { return g.sum / float64(max(1, len(g.tokens))) }

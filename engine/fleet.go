package engine

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"penstock/configs"
)

// Resolver looks up the addresses of a name; net.DefaultResolver does.
type Resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// Options are what a Fleet is made with. All may be left out.
type Options struct {
	// Logger takes changes of state, one line each. Default: none.
	Logger *slog.Logger
	// Notify is told of every change, one event at a time and in order, from
	// the fleet's own goroutines. It must return soon, and may ask the fleet
	// and its replicas anything, but not change the fleet.
	Notify func(Event)
	// Resolver looks up names with resolve: dns. Default: the system's.
	Resolver Resolver
	// Dial makes the control connections. Default: TCP within 2s.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// Output takes the lines that launched engines print, each with the child's
	// name before it. Default: none; the last 50 are kept anyway.
	Output io.Writer
}

// Fleet is all replicas of all models.
type Fleet struct {
	opts   Options
	log    *slog.Logger
	events eventQueue
	plain  *http.Client // for engines without TLS

	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	applying sync.Mutex // one change of the set of replicas at a time

	mu       sync.Mutex // what follows, and the parts of servers that say so
	cfg      *configs.Config
	upstream map[string]string // model → the name sent to its engines
	entries  []*entry
	groups   map[string]*group
	closed   bool
}

// group is the URLs of one model.
type group struct {
	name    string
	servers []*server
}

// NewFleet makes an empty fleet; Apply fills it. Close ends it.
func NewFleet(o Options) *Fleet {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Resolver == nil {
		o.Resolver = net.DefaultResolver
	}
	f := &Fleet{
		opts: o, log: o.Logger, events: eventQueue{notify: o.Notify},
		plain:  &http.Client{Transport: newTransport(o.Dial, nil), CheckRedirect: noRedirect},
		groups: make(map[string]*group),
	}
	f.ctx, f.cancel = context.WithCancel(context.Background())
	return f
}

// Apply makes the fleet what a configuration says: all of it or, when anything
// is wrong (a file, a certificate, a launched command's flags), none of it.
// Replicas that stay keep their state. The context bounds the checks.
func (f *Fleet) Apply(ctx context.Context, cfg *configs.Config) error {
	f.applying.Lock()
	defer f.applying.Unlock()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(f.ctx, cancel)() // Close does not wait for a preflight
	p, err := f.plan(ctx, cfg)
	if err != nil {
		return err
	}
	f.mu.Lock()
	if f.closed {
		f.mu.Unlock()
		p.discard()
		return ErrClosed
	}
	err = f.commit(p)
	f.mu.Unlock()
	f.events.flush()
	return err
}

// Close stops everything: probes, polls, launched engines (TERM, then KILL)
// and local ones. Requests should have ended before.
func (f *Fleet) Close() {
	f.mu.Lock()
	was := f.closed
	f.closed = true
	f.mu.Unlock()
	f.cancel()
	f.applying.Lock() // a change that has begun ends, without effect
	defer f.applying.Unlock()
	if was {
		return
	}
	f.mu.Lock()
	entries := f.entries
	f.mu.Unlock()
	var stopping sync.WaitGroup
	for _, e := range entries {
		stopping.Go(e.halt)
	}
	stopping.Wait()
	f.wg.Wait()
	f.plain.CloseIdleConnections()
}

// Replicas are all of them, in the order of the file, those that have not
// answered yet and those that drain included.
func (f *Fleet) Replicas() []*Replica {
	f.mu.Lock()
	defer f.mu.Unlock()
	var all []*Replica
	for _, e := range f.entries {
		for _, s := range e.servers {
			all = append(all, s.replicas...)
		}
	}
	return all
}

// Replica finds one by its id.
func (f *Fleet) Replica(id string) (*Replica, bool) {
	for _, r := range f.Replicas() {
		if r.id == id {
			return r, true
		}
	}
	return nil, false
}

// WaitKnown returns once every URL has told what it is, or the context ends;
// then the error names those that have not.
func (f *Fleet) WaitKnown(ctx context.Context) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		silent := f.unknown()
		if len(silent) == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("no answer yet from %s: %w", strings.Join(silent, ", "), ctx.Err())
		case <-tick.C:
		}
	}
}

func (f *Fleet) unknown() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var ids []string
	for _, e := range f.entries {
		for _, s := range e.servers {
			if s.facts.Load() == nil {
				ids = append(ids, s.id)
			}
		}
	}
	return ids
}

// Coming says whether an engine of the model was named so lately that its
// silence means nothing yet: for as long as it takes to find one unhealthy.
// A reload may replace all engines of a model at once.
func (f *Fleet) Coming(model string, now time.Time) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, named := f.upstream[model]
	for _, e := range f.entries {
		for _, s := range e.servers {
			h := s.settings.Load().health
			patience := time.Duration(h.Unhealthy) * max(h.Interval, h.Timeout)
			mayServe := s.model == model || s.model == "" && !named
			if mayServe && phase(s.phase.Load()) == starting && now.Sub(s.since) < patience {
				return true
			}
		}
	}
	return false
}

// Unknown says whether some engine has not told yet which models it serves.
func (f *Fleet) Unknown() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, e := range f.entries {
		for _, s := range e.servers {
			if s.model == "" && s.facts.Load() == nil {
				return true
			}
		}
	}
	return false
}

// count is how many URLs there are. The lock is held.
func (f *Fleet) count() int {
	n := 0
	for _, e := range f.entries {
		n += len(e.servers)
	}
	return n
}

// join puts a server into the group of its model. The lock is held.
func (f *Fleet) join(s *server, model string) {
	if s.group != nil && s.group.name == model {
		f.judge(s.group)
		return
	}
	f.leave(s)
	g := f.groups[model]
	if g == nil {
		g = &group{name: model}
		f.groups[model] = g
	}
	g.servers = append(g.servers, s)
	s.group = g
	f.judge(g)
}

// leave takes a server out of its group. The lock is held.
func (f *Fleet) leave(s *server) {
	g := s.group
	if g == nil {
		return
	}
	s.group = nil
	g.servers = slices.DeleteFunc(g.servers, func(o *server) bool { return o == s })
	if len(g.servers) == 0 {
		delete(f.groups, g.name)
		return
	}
	f.judge(g)
}

// judge decides which URLs of a model may serve: those that answer and that
// their breakers let through. If the breakers leave none, those in half-open,
// and else all that answer, serve past them: refusing everything helps nobody.
// The lock is held.
func (f *Fleet) judge(g *group) {
	var candidates, pass, half int
	for _, s := range g.servers {
		if !s.candidate() {
			continue
		}
		candidates++
		b := s.breaker.Load()
		if b.passes() {
			pass++
		} else if b.state() == StateHalfOpen {
			half++
		}
	}
	for _, s := range g.servers {
		b := s.breaker.Load()
		ok := s.candidate()
		passes := ok && b.passes()
		others := pass
		if passes {
			others--
		}
		b.others.Store(others > 0)
		last := ok && pass == 0 && (half == 0 || b.state() == StateHalfOpen)
		s.lastResort.Store(last)
		s.usable.Store(passes || last)
	}
}

// candidate says whether it could serve but for its breaker. The lock is held.
func (s *server) candidate() bool {
	return phase(s.phase.Load()) == healthy && !s.draining.Load() && s.facts.Load() != nil &&
		slices.ContainsFunc(s.replicas, func(r *Replica) bool { return !r.draining.Load() })
}

// breakerMoved has the fleet look at a breaker after a call that may have
// moved it. Without a move it costs one atomic load.
func (s *server) breakerMoved(b *breaker) {
	if !b.moved.Load() || !b.moved.CompareAndSwap(true, false) {
		return
	}
	f := s.fleet
	now := time.Now()
	f.mu.Lock()
	if s.group != nil {
		f.judge(s.group)
	}
	st := b.state()
	if s.removed || f.closed {
		st = b.shown
	}
	if st != b.shown {
		b.shown = st
		f.log.Info("breaker is "+st.String(), "replica", s.id)
		s.tell(StateChanged, st.String(), now)
		if st == StateOpen {
			s.trialAfter(b)
		}
	}
	f.mu.Unlock()
	f.events.flush()
}

// trialAfter wakes the breaker when its open time is over, since it moves to
// half-open only when somebody asks it.
func (s *server) trialAfter(b *breaker) {
	time.AfterFunc(s.settings.Load().breaker.Open+time.Millisecond, func() {
		b.cb.State()
		s.breakerMoved(b)
	})
}

// tell sends an event for each of a server's replicas. The lock is held.
func (s *server) tell(t EventType, reason string, now time.Time) {
	if !s.announced {
		return
	}
	for _, r := range s.replicas {
		s.fleet.events.add(Event{Type: t, Replica: r, State: r.State(), Reason: reason, At: now})
	}
}

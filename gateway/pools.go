package gateway

import (
	"cmp"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"penstock/configs"
	"penstock/engine"
	"penstock/gateway/relay"
	"penstock/limits"
	"penstock/metrics"
	"penstock/router"
)

// pool is one model: its replicas as the router sees them, its queue, and what
// has been learned of it. It lives as long as its name is configured or served.
type pool struct {
	name      string
	created   time.Time
	config    atomic.Pointer[configs.Model]  // in force: with what limits.mode: auto derived
	derived   atomic.Pointer[limits.Derived] // nil: limits.mode is explicit
	router    *router.Pool
	queue     *limits.Queue
	estimator *limits.Estimator
	metrics   *metrics.Model
	members   atomic.Pointer[map[*router.Replica]*member] // copied on write, under pools.mu
	roles     atomic.Bool                                 // some replica is not for everything

	wakeMu  sync.Mutex
	wake    *time.Timer
	wakeDue time.Time
}

// wakeAt looks again at what waits when a prefill whose end nobody sees, of an
// answer that is not streamed, must be over. The zero time: there is none.
func (pl *pool) wakeAt(due time.Time) {
	if due.IsZero() {
		return
	}
	pl.wakeMu.Lock()
	defer pl.wakeMu.Unlock()
	if pl.wake != nil && !due.Before(pl.wakeDue) && time.Now().Before(pl.wakeDue) {
		return
	}
	if pl.wake != nil {
		pl.wake.Stop()
	}
	pl.wakeDue = due
	pl.wake = time.AfterFunc(time.Until(due), func() {
		pl.router.Tick(time.Now())
		pl.queue.Kick()
	})
}

// member is one replica of a pool: the engine's side and the router's.
type member struct {
	pool      *pool
	engine    *engine.Replica
	route     *router.Replica
	metrics   *metrics.Replica
	tally     tally
	answering func(now time.Time) // the engine's Answering
	breaker   string              // as last counted; of the fleet's events alone
	listed    atomic.Bool         // it is among its pool's members; before, the router must not choose it
}

// breakerMoved counts a change of the breaker's state.
func (m *member) breakerMoved(s engine.State) {
	if now := breakerOf(s); now != m.breaker {
		if m.breaker != "" || now != breakerOf(engine.StateHealthy) {
			m.metrics.BreakerChanged(now)
		}
		m.breaker = now
	}
}

// pools is all models and how their replicas are reached. Its methods may be
// called at once; what a request needs of it is read without its lock.
type pools struct {
	relay   *relay.Relay
	metrics *metrics.Metrics
	log     *slog.Logger

	mu        sync.Mutex
	byName    map[string]*pool
	members   map[*engine.Replica]*member
	upstreams map[*engine.Conn]*relay.Upstream
	cfg       *configs.Config
	share     uint64 // this gateway's name to others, where placements are shared; else 0

	current atomic.Pointer[table]
	live    sync.Map // *engine.Conn → *relay.Upstream; read by requests
}

func newPools(r *relay.Relay, m *metrics.Metrics, log *slog.Logger) *pools {
	p := &pools{
		relay: r, metrics: m, log: log,
		byName:    map[string]*pool{},
		members:   map[*engine.Replica]*member{},
		upstreams: map[*engine.Conn]*relay.Upstream{},
	}
	p.current.Store(&table{names: map[string]target{}})
	return p
}

// apply takes over a configuration: pools of models that stay keep everything
// but their settings, those of models that are gone are dropped.
func (p *pools) apply(cfg *configs.Config) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cfg = cfg
	for _, pl := range p.byName {
		pl.configure(cfg, p.modelConfig(pl.name))
	}
	for i := range cfg.Models {
		if name := cfg.Models[i].Name; name != "" {
			p.pool(name)
		}
	}
	for name, pl := range p.byName {
		if len(*pl.members.Load()) == 0 && p.namedNowhere(name) {
			delete(p.byName, name)
		}
	}
	p.nameMetrics()
	p.rebuild()
}

// modelConfig is the configuration of the model of that name: its own entry, or
// the first one that names no model.
func (p *pools) modelConfig(name string) *configs.Model {
	var unnamed *configs.Model
	for i := range p.cfg.Models {
		m := &p.cfg.Models[i]
		if m.Name == name {
			return m
		}
		if m.Name == "" && unnamed == nil {
			unnamed = m
		}
	}
	return unnamed
}

// pool finds or makes the pool of that name. The lock is held.
func (p *pools) pool(name string) *pool {
	if pl, ok := p.byName[name]; ok {
		return pl
	}
	m := named(p.modelConfig(name), name)
	pl := &pool{
		name: name, created: time.Now(),
		router:    router.NewPool(routerOptions(p.cfg, m)),
		estimator: limits.NewEstimator(p.cfg.Limits.TokensPerImage),
	}
	if p.share != 0 {
		pl.router.Share(p.share)
	}
	pl.queue = limits.NewQueue(name, queueBounds(m), pl.prefillRate)
	pl.members.Store(&map[*router.Replica]*member{})
	pl.config.Store(m)
	p.byName[name] = pl
	p.nameMetrics()
	pl.metrics = p.metrics.Model(name)
	return pl
}

// queueBounds are the model's: a max_length of 0 says that none may wait, which
// the queue, whose zero is its default, is told by a negative one.
func queueBounds(m *configs.Model) configs.Queue {
	q := m.Queue
	if q.MaxLength == 0 {
		q.MaxLength = -1
	}
	return q
}

// named is a model's configuration under the name that it is known by; one
// that no entry configures any more keeps nothing but its name.
func named(m *configs.Model, name string) *configs.Model {
	var c configs.Model
	if m != nil {
		c = *m
	}
	c.Name = name
	return &c
}

// nameMetrics tells the metrics which models and keys there are. The lock is held.
func (p *pools) nameMetrics() {
	keys := []string{anonymous}
	for i := range p.cfg.Keys {
		keys = append(keys, p.cfg.Keys[i].Name)
	}
	p.metrics.SetNames(slices.Sorted(maps.Keys(p.byName)), keys)
}

// configure takes over changed settings.
func (pl *pool) configure(cfg *configs.Config, m *configs.Model) {
	m = named(m, pl.name)
	pl.router.SetOptions(routerOptions(cfg, m))
	pl.derive(cfg, m)
}

// derive puts the settings in force; with limits.mode: auto the queue's length
// follows from what the replicas can run, and changes with them.
func (pl *pool) derive(cfg *configs.Config, m *configs.Model) {
	pl.derived.Store(nil)
	if cfg.Limits.Mode == "auto" {
		var caps []limits.Capacity
		for _, mb := range *pl.members.Load() {
			c := mb.engine.Capacity()
			caps = append(caps, limits.Capacity{KVTokens: c.KVTokens, MaxRunning: c.MaxRunning})
		}
		d := limits.Auto(caps)
		m.Queue.MaxLength = d.MaxLength
		pl.derived.Store(&d)
	}
	pl.config.Store(m)
	pl.queue.Configure(queueBounds(m))
}

func routerOptions(cfg *configs.Config, m *configs.Model) router.Options {
	c := &cfg.Routing
	return router.Options{
		Policy: m.Policy, BlockTokens: c.BlockTokens, IndexFactor: c.IndexFactor, RunningAllowance: c.RunningAllowance,
		// None of them is nothing; the router's own zero is its default.
		StreamWeight: cmp.Or(c.StreamWeight, -1), BalanceWeight: cmp.Or(c.BalanceWeight, -1),
		StepTime: cmp.Or(c.StepTime, -1), WaitMost: cmp.Or(c.MaxHold, -1),
		ScoreTokens: cfg.Scoring.MaxInFlightTokens, ScoreBeside: cfg.Scoring.BesideChatTokens, Seed: uint64(time.Now().UnixNano()),
	}
}

// prefillRate is what one of the replicas prefills, in tokens per second.
func (pl *pool) prefillRate() float64 {
	var sum float64
	rs := pl.router.Replicas()
	for _, r := range rs {
		sum += r.Stats().PrefillRate
	}
	return sum / float64(max(1, len(rs)))
}

// add takes a replica in; its engine has told what it is.
func (p *pools) add(r *engine.Replica, c engine.Capacity) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, ok := p.members[r]; ok {
		return
	}
	pl := p.pool(r.Model())
	p.dropEmpty(pl)
	m := &member{pool: pl, engine: r, answering: r.Answering, metrics: p.metrics.Replica(pl.name, r.ID())}
	m.route = pl.router.Add(r.ID(), capacity(c), func() bool { return m.listed.Load() && r.Usable() })
	p.members[r] = m
	next := maps.Clone(*pl.members.Load())
	next[m.route] = m
	pl.setMembers(next)
	m.listed.Store(true)
	pl.derive(p.cfg, named(p.modelConfig(pl.name), pl.name))
	p.rebuild()
	pl.queue.Kick()
}

// remove takes a replica out. Its requests go on to their end.
func (p *pools) remove(r *engine.Replica) {
	p.mu.Lock()
	defer p.mu.Unlock()
	m, ok := p.members[r]
	if !ok {
		return
	}
	delete(p.members, r)
	m.pool.router.Remove(m.route)
	next := maps.Clone(*m.pool.members.Load())
	delete(next, m.route)
	m.pool.setMembers(next)
	m.pool.derive(p.cfg, named(p.modelConfig(m.pool.name), m.pool.name))
	p.metrics.RemoveReplica(m.pool.name, r.ID())
	// Its engines may be on their way back, or others that serve the same model.
	if len(next) == 0 && p.namedNowhere(m.pool.name) && p.modelConfig("") == nil {
		delete(p.byName, m.pool.name)
		p.nameMetrics()
	}
	p.rebuild()
	p.closeUnused()
}

// dropEmpty drops served models that no engine has any more, now that another
// model's engine has come instead. The lock is held.
func (p *pools) dropEmpty(come *pool) {
	for name, pl := range p.byName {
		if pl != come && len(*pl.members.Load()) == 0 && pl.queue.Len() == 0 && p.namedNowhere(name) {
			delete(p.byName, name)
			p.nameMetrics()
		}
	}
}

func (pl *pool) setMembers(next map[*router.Replica]*member) {
	roles := false
	for _, m := range next {
		roles = roles || !m.engine.HasRole(roleChat) || !m.engine.HasRole(roleScoring)
	}
	pl.roles.Store(roles)
	pl.members.Store(&next)
}

// rederive follows a change of a pool's replicas or of their capacity.
func (p *pools) rederive(pl *pool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	pl.derive(p.cfg, named(p.modelConfig(pl.name), pl.name))
}

// namedNowhere says that no configuration entry names the model: it was served.
func (p *pools) namedNowhere(name string) bool {
	return !slices.ContainsFunc(p.cfg.Models, func(m configs.Model) bool { return m.Name == name })
}

// closeUnused drops the connections to URLs, or with settings, that are gone. The lock is held.
func (p *pools) closeUnused() {
	used := make(map[*engine.Conn]bool, len(p.members))
	for r := range p.members {
		used[r.Conn()] = true
	}
	for c, up := range p.upstreams {
		if !used[c] {
			delete(p.upstreams, c)
			p.live.Delete(c)
			up.Close()
		}
	}
}

// upstream is the connections to an engine, made on first use.
func (p *pools) upstream(c *engine.Conn) (*relay.Upstream, error) {
	if up, ok := p.live.Load(c); ok {
		return up.(*relay.Upstream), nil //nolint:forcetypeassert // the map holds nothing else
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if up, ok := p.upstreams[c]; ok {
		return up, nil
	}
	up, err := p.relay.NewUpstream(relay.UpstreamOptions{URL: c.URL, TLS: c.TLS, Key: c.Key})
	if err != nil {
		return nil, err
	}
	p.upstreams[c] = up
	p.live.Store(c, up)
	return up, nil
}

func capacity(c engine.Capacity) router.Capacity {
	return router.Capacity{KVTokens: c.KVTokens, MaxRunning: c.MaxRunning, PageSize: c.PageSize}
}

// Roles of replicas.
const (
	roleChat    = "chat"
	roleScoring = "scoring"
)

// on takes the fleet's events, one at a time.
func (s *Server) onEngine(ev engine.Event) {
	p := s.pools
	if ev.Type == engine.Added {
		p.add(ev.Replica, ev.Capacity)
		return
	}
	m := p.member(ev.Replica)
	if m == nil {
		return
	}
	s.noteHealth(m, ev)
	switch ev.Type {
	case engine.Removed:
		p.remove(ev.Replica)
	case engine.Restarted:
		m.route.Flush()
	case engine.CapacityChanged:
		m.route.SetCapacity(capacity(ev.Capacity))
		p.rederive(m.pool)
		m.pool.queue.Kick()
	case engine.Unhealthy:
		s.attempts.cancelOn(m, relay.ErrUnhealthy)
	case engine.Healthy, engine.StateChanged:
		m.breakerMoved(ev.Replica.State())
		m.pool.queue.Kick()
	case engine.LoadReported:
		m.route.Observe(ev.At, router.Load{
			Running: ev.Load.Running, Waiting: ev.Load.Waiting, WaitingTokens: ev.Load.WaitingUncached,
			PrefillRate: ev.Load.PrefillRate, Age: max(0, ev.At.Sub(ev.Load.At)),
		})
	case engine.ProbeFailed:
		m.metrics.ProbeFailed()
	case engine.PollFailed:
		m.metrics.LoadPollFailed()
	case engine.ModelsChanged:
		p.refresh()
	case engine.RanksIgnored:
		m.metrics.Misrouted(ev.Count)
	}
}

// config is the configuration in force; nil before the first.
func (p *pools) config() *configs.Config {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cfg
}

// member is the replica's place in its pool; nil: it has none yet.
func (p *pools) member(r *engine.Replica) *member {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.members[r]
}

// all is every pool, in the order of names.
func (p *pools) all() []*pool {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := make([]*pool, 0, len(p.byName))
	for _, name := range slices.Sorted(maps.Keys(p.byName)) {
		out = append(out, p.byName[name])
	}
	return out
}

// placements are the models' routers, as they share what they have placed.
func (p *pools) placements() map[string]placements {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := make(map[string]placements, len(p.byName))
	for name, pl := range p.byName {
		out[name] = pl.router
	}
	return out
}

// kickAll looks whether what waits fits now.
func (p *pools) kickAll() {
	var few [8]*pool // this is asked after every request
	list := few[:0]
	p.mu.Lock()
	for _, pl := range p.byName {
		list = append(list, pl)
	}
	p.mu.Unlock()
	for _, pl := range list {
		pl.queue.Kick()
	}
}

// slotFree is told of a concurrency slot: the key's requests may wait for any model.
func (p *pools) slotFree(string, string) { p.kickAll() }

// waiting is how many requests wait, over all models.
func (p *pools) waiting() int {
	n := 0
	for _, pl := range p.all() {
		n += pl.queue.Len()
	}
	return n
}

// close closes the connections to all engines.
func (p *pools) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c, up := range p.upstreams {
		up.Close()
		p.live.Delete(c)
	}
	clear(p.upstreams)
}

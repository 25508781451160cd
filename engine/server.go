package engine

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"penstock/configs"
)

// phase is what probes say of a URL.
type phase int32

const (
	starting phase = iota // has not answered yet
	healthy
	unhealthy
)

// settings are what a reload may change of a URL without making it another.
type settings struct {
	source   string
	engine   configs.Engine
	health   configs.Health
	breaker  configs.Breaker
	timeouts configs.Timeouts
}

// server is one URL: what is probed, discovered and broken as a whole. Its
// ranks are its replicas.
type server struct {
	fleet  *Fleet
	id     string
	model  string // as configured; "": what the engine serves
	target target
	since  time.Time // when it was named

	settings atomic.Pointer[settings]
	conn     atomic.Pointer[Conn]
	client   atomic.Pointer[client]
	adapter  atomic.Pointer[adapter]
	facts    atomic.Pointer[Facts] // nil until first contact
	breaker  atomic.Pointer[breaker]

	phase        atomic.Int32 // phase
	draining     atomic.Bool
	usable       atomic.Bool // healthy, let through by its breaker, not draining
	lastResort   atomic.Bool // no other URL of the model can serve: its breaker is passed by
	ranksIgnored atomic.Bool
	lastAnswer   atomic.Int64 // when bytes of an answer last came, in Unix nanoseconds
	inFlight     atomic.Int64
	ranks        rankCheck

	kick chan struct{} // probe now
	look chan struct{} // read facts and load now
	idle chan struct{} // nothing is in flight
	stop context.CancelFunc

	// Guarded by the fleet's lock.
	replicas  []*Replica
	dropped   []int // ranks that the admin API has taken out
	announced bool  // Added has been sent for the replicas
	removed   bool
	group     *group
	fails     int // probes in a row
	oks       int
	refresh   bool      // read the facts again at the next sign of life
	refused   bool      // connections were refused since the last sign of life
	readAt    time.Time // when the facts were last read
	notBefore time.Time // when they may be read again
	prev      map[int]rankLoad
	learning  map[int]*runningLimit
}

// newServer makes a server; start begins its life.
func (f *Fleet) newServer(e *entry, t target, set *settings) (*server, error) {
	s := &server{
		fleet: f, id: t.id, model: e.model, target: t, since: time.Now(),
		kick: make(chan struct{}, 1), look: make(chan struct{}, 1), idle: make(chan struct{}, 1),
		learning: make(map[int]*runningLimit),
	}
	if err := s.configure(e, set); err != nil {
		return nil, err
	}
	s.replicas = []*Replica{{server: s, id: t.id, model: e.model, rank: -1, label: -1}}
	return s, nil
}

// configure takes new settings: those of a reload, or the first.
func (s *server) configure(e *entry, set *settings) error {
	conn, err := newConn(s.target, set, e)
	if err != nil {
		return err
	}
	old := s.settings.Swap(set)
	if was := s.conn.Load(); was == nil || !sameConn(was, conn) {
		s.conn.Store(conn)
		s.client.Store(&client{base: conn.URL, key: conn.Key, hc: s.fleet.httpClient(conn)})
	}
	if old == nil || old.breaker != set.breaker {
		s.breaker.Store(newBreaker(set.breaker))
	}
	if old != nil && old.engine.Kind != set.engine.Kind {
		s.adapter.Store(nil)
	}
	s.refresh = s.refresh || old != nil && !reflect.DeepEqual(old.engine, set.engine)
	return nil
}

func newConn(t target, set *settings, e *entry) (*Conn, error) {
	u, err := parseURL(t.url)
	if err != nil {
		return nil, err
	}
	c := &Conn{
		URL: t.url, Addr: hostPort(u), IsTLS: u.Scheme == "https", Prefix: u.Path, Host: u.Host,
		Key:            string(set.engine.Key),
		ConnectTimeout: set.timeouts.Connect, IdleTimeout: set.timeouts.EngineIdle,
	}
	if t.host != "" {
		c.Host = t.host
	}
	if c.IsTLS {
		c.TLS = clientTLS(e.tls, set.engine.TLS.ServerName, c.Host)
	}
	return c, nil
}

// sameConn says whether connections made for one may serve the other.
func sameConn(a, b *Conn) bool {
	x, y := *a, *b
	sameTLS := x.TLS == nil && y.TLS == nil ||
		x.TLS != nil && y.TLS != nil && x.TLS.ServerName == y.TLS.ServerName &&
			x.TLS.RootCAs.Equal(y.TLS.RootCAs) && sameCerts(x.TLS, y.TLS)
	x.TLS, y.TLS = nil, nil
	return x == y && sameTLS
}

// parseURL takes an engine's URL apart; a trailing slash, or /v1 as it stands
// in many clients' settings, is cut off by cleanURL before.
func parseURL(raw string) (*url.URL, error) {
	u, err := url.Parse(raw)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, fmt.Errorf("url %q: expected http://host:port or https://host:port", raw)
	}
	return u, nil
}

func hostPort(u *url.URL) string {
	if u.Port() != "" {
		return u.Host
	}
	if u.Scheme == "https" {
		return net.JoinHostPort(u.Hostname(), "443")
	}
	return net.JoinHostPort(u.Hostname(), "80")
}

// kind is the engine's: as configured, or as found out.
func (s *server) kind() Kind {
	if f := s.facts.Load(); f != nil {
		return f.Kind
	}
	return Kind(s.settings.Load().engine.Kind)
}

// start begins its life: first contact, probes and load polls.
func (s *server) start() {
	ctx, cancel := context.WithCancel(s.fleet.ctx)
	s.stop = cancel
	s.fleet.wg.Go(func() { s.probeLoop(ctx) })
	s.fleet.wg.Go(func() { s.pollLoop(ctx) })
}

// wake has it probed now.
func (s *server) wake() {
	select {
	case s.kick <- struct{}{}:
	default:
	}
}

// ask has its facts and load read now.
func (s *server) ask() {
	select {
	case s.look <- struct{}{}:
	default:
	}
}

// signalIdle tells whoever waits to stop the engine that nothing is in flight.
func (s *server) signalIdle() {
	select {
	case s.idle <- struct{}{}:
	default:
	}
}

// waitIdle returns when nothing is in flight, or the context ends.
func (s *server) waitIdle(ctx context.Context) {
	for s.inFlight.Load() > 0 {
		select {
		case <-ctx.Done():
			return
		case <-s.idle:
		}
	}
}

// saw notes what an attempt says about the engine.
func (s *server) saw(o Outcome) {
	switch o {
	case Success:
		s.lastAnswer.Store(time.Now().UnixNano())
	case Unreachable:
		s.wake()
	}
}

// refusedRank has its facts read again: it has other ranks than was thought.
func (s *server) refusedRank() {
	s.fleet.mu.Lock()
	s.refresh = true
	s.fleet.mu.Unlock()
	s.ask()
}

// discover asks the engine what it is. fresh: it may have been started just
// now, and must be ready too.
func (s *server) discover(ctx context.Context, fresh bool) (*Facts, error) {
	ctx, cancel := context.WithTimeout(ctx, discoverTimeout)
	defer cancel()
	c := s.client.Load()
	a, facts, err := s.read(ctx, c)
	if err != nil {
		return nil, err
	}
	if len(facts.Ranks) == 0 {
		return nil, fmt.Errorf("it tells of no data-parallel rank")
	}
	if r, ok := (*a).(readier); ok && fresh {
		if err := r.ready(ctx, c); err != nil {
			return nil, err
		}
	}
	facts.sortRanks()
	s.adapter.Store(a)
	return facts, nil
}

// read has the engine's facts read by the adapter of before. Where there is none
// yet, or another kind of engine answers now, it makes one.
func (s *server) read(ctx context.Context, c *client) (*adapter, *Facts, error) {
	k := Kind(s.settings.Load().engine.Kind)
	if a := s.adapter.Load(); a != nil {
		facts, err := (*a).discover(ctx, c)
		if !anotherKind(k, s.facts.Load(), facts, err) {
			return a, facts, err
		}
	}
	if k == "" {
		var err error
		if k, err = probeKind(ctx, c); err != nil {
			return nil, nil, err
		}
	}
	a, err := newAdapter(k)
	if err != nil {
		return nil, nil, err
	}
	facts, err := a.discover(ctx, c)
	return &a, facts, err
}

// discoverTimeout bounds one reading of an engine's facts. SGLang asks all its
// schedulers for them, between two forward passes.
const discoverTimeout = 10 * time.Second

// adopt takes what the engine told: the first time, or again. The fleet's lock
// is held.
func (s *server) adopt(facts *Facts, now time.Time) {
	old := s.facts.Load()
	restarted := old != nil && (old.Boot != "" && facts.Boot != "" && old.Boot != facts.Boot ||
		facts.Boot == "" && s.refused || old.Kind != facts.Kind)
	s.facts.Store(facts)
	s.refresh, s.refused = false, false
	if old != nil && !slices.Equal(old.Models, facts.Models) {
		s.tell(ModelsChanged, "", now)
	}
	if restarted {
		if old.Kind != facts.Kind {
			s.fleet.log.Warn("another kind of engine answers there now", "replica", s.id, "was", old.Kind, "is", facts.Kind)
		}
		s.restarted(now)
	}
	if old == nil {
		s.fleet.log.Info("engine found", "replica", s.id, "url", s.target.url, "kind", facts.Kind,
			"version", facts.Version, "models", modelIDs(facts.Models), "ranks", len(facts.Ranks))
		s.warnUnserved(facts)
	}
	s.layOut(facts, now)
}

// restarted forgets what held for the process before.
func (s *server) restarted(now time.Time) {
	s.ranksIgnored.Store(false)
	s.ranks.reset()
	s.prev = nil
	clear(s.learning)
	if !s.announced {
		return
	}
	s.fleet.log.Info("engine restarted: its cache is empty", "replica", s.id)
	for _, r := range s.replicas {
		s.fleet.events.add(Event{Type: Restarted, Replica: r, At: now})
	}
}

func modelIDs(models []ModelInfo) []string {
	ids := make([]string, 0, len(models))
	for _, m := range models {
		ids = append(ids, m.ID)
	}
	return ids
}

// slot is one replica as the facts would have it.
type slot struct {
	id       string
	rank     int // as told to the engine; -1: no ranks
	label    int // as the engine's metrics call it
	capacity Capacity
}

// slots are the replicas of a URL: its ranks, or itself.
func (s *server) slots(facts *Facts) []slot {
	set := s.settings.Load().engine
	if len(facts.Ranks) == 1 || set.DPRanks == "off" || s.ranksIgnored.Load() {
		return []slot{{id: s.id, rank: -1, label: -1, capacity: withConfig(facts.total(), set, len(facts.Ranks))}}
	}
	slots := make([]slot, 0, len(facts.Ranks))
	for i, r := range facts.Ranks {
		rank := r.Rank
		if set.FirstRank > 0 {
			rank = set.FirstRank + i
		}
		if slices.Contains(s.dropped, rank) {
			continue
		}
		slots = append(slots, slot{
			id: s.id + "/" + strconv.Itoa(rank), rank: rank, label: r.Rank,
			capacity: withConfig(r.Capacity, set, 1),
		})
	}
	return slots
}

// withConfig fills in from the file what the engine does not tell. The file's
// values are per rank.
func withConfig(c Capacity, set configs.Engine, ranks int) Capacity {
	if c.KVTokens == 0 {
		c.KVTokens = set.KVTokens * ranks
	}
	if c.RunningBy != "engine" && set.MaxRunning > 0 {
		c.MaxRunning, c.RunningBy = set.MaxRunning*ranks, "config"
	}
	return c
}

// layOut makes the replicas what the facts say, keeping those that are the
// same. The fleet's lock is held.
func (s *server) layOut(facts *Facts, now time.Time) {
	model := s.model
	if model == "" {
		model = facts.base()
	}
	before := s.replicas
	s.replicas = nil
	for _, sl := range s.slots(facts) {
		r := takeReplica(&before, sl, model)
		known := r != nil && s.announced
		if r == nil {
			r = &Replica{server: s, id: sl.id, model: model, rank: sl.rank, label: sl.label}
		}
		s.replicas = append(s.replicas, r)
		s.size(r, sl.capacity, known, now)
	}
	if s.announced {
		for _, r := range before {
			r.removed.Store(true)
			s.fleet.events.add(Event{Type: Removed, Replica: r, At: now})
		}
	}
	s.announced = true
	s.fleet.join(s, model)
}

// takeReplica takes the replica that fits a slot out of the list.
func takeReplica(from *[]*Replica, sl slot, model string) *Replica {
	for i, r := range *from {
		if r.id == sl.id && r.rank == sl.rank && r.label == sl.label && r.model == model {
			*from = append((*from)[:i:i], (*from)[i+1:]...)
			return r
		}
	}
	return nil
}

// size sets a replica's capacity and tells of it.
func (s *server) size(r *Replica, c Capacity, known bool, now time.Time) {
	if was := r.capacity.Load(); was != nil && was.RunningBy == "learned" && c.RunningBy == "learned" {
		c.MaxRunning = was.MaxRunning
	}
	was := r.capacity.Swap(&c)
	switch {
	case !known:
		s.fleet.events.add(Event{Type: Added, Replica: r, Capacity: c, At: now})
	case *was != c:
		s.fleet.log.Info("replica changed its size", "replica", r.id, "kv_tokens", c.KVTokens,
			"max_running", c.MaxRunning, "max_running_by", c.RunningBy, "page_size", c.PageSize)
		s.fleet.events.add(Event{Type: CapacityChanged, Replica: r, Capacity: c, At: now})
	}
}

// warnUnserved says at once what every request would otherwise find out.
func (s *server) warnUnserved(facts *Facts) {
	want := s.model
	if up := s.fleet.upstream[s.model]; up != "" {
		want = up
	}
	if want == "" || len(facts.Models) == 0 {
		return
	}
	for _, m := range facts.Models {
		if m.ID == want {
			return
		}
	}
	s.fleet.log.Warn("the engine serves the model under another name; set models[].upstream if it refuses",
		"replica", s.id, "model", want, "served", modelIDs(facts.Models))
}

// remove takes it out of service. Requests in flight go on; done is called
// when the last of them has ended or the time for that is up. The fleet's lock
// is held.
func (s *server) remove(now time.Time) {
	s.removed = true
	s.draining.Store(true)
	s.usable.Store(false)
	if s.stop != nil {
		s.stop()
	}
	for _, r := range s.replicas {
		r.removed.Store(true)
		if s.announced {
			s.fleet.events.add(Event{Type: Removed, Replica: r, At: now})
		}
	}
	s.fleet.leave(s)
}

// httpClient is the client for the control calls of one connection setting.
// Without TLS they all share one.
func (f *Fleet) httpClient(c *Conn) *http.Client {
	if c.TLS == nil {
		return f.plain
	}
	return &http.Client{Transport: newTransport(f.opts.Dial, c.TLS), CheckRedirect: noRedirect}
}

func noRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

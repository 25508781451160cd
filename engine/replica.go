package engine

import (
	"crypto/tls"
	"slices"
	"sync/atomic"
	"time"
)

// State is what a replica is, as /replicas shows it.
type State uint8

// The states; when several apply the later one in this list is shown, but
// Starting and Unhealthy come before the breaker's.
const (
	Starting State = iota
	StateHealthy
	StateUnhealthy
	StateOpen
	StateHalfOpen
	StateDraining
)

// String is the state's name on /replicas and in metrics.
func (s State) String() string {
	names := [...]string{"starting", "healthy", "unhealthy", "open", "half_open", "draining"}
	if int(s) < len(names) {
		return names[s]
	}
	return "unknown"
}

// Conn is how requests reach one URL. The ranks of a URL share one Conn; a
// changed setting makes a new one, so its address can be the key of a
// connection pool.
type Conn struct {
	URL            string // scheme://host:port, with a path prefix where there is one
	Addr           string // host:port
	IsTLS          bool
	Prefix         string      // of the path; "" mostly
	Host           string      // for the Host header: the name that the URL was given with
	TLS            *tls.Config // nil for http
	Key            string      // sent as a bearer token; "": none
	ConnectTimeout time.Duration
	IdleTimeout    time.Duration // idle connections are closed after it, before the engine does
}

// Replica is what requests are sent to: one URL, or one data-parallel rank of
// it. Its identity never changes; an engine that comes back with other ranks
// or another model gets new ones. All methods may be called at once.
type Replica struct {
	server *server
	id     string
	model  string
	rank   int // as told to the engine; -1: no ranks
	label  int // as its metrics call it; -1: all of them

	draining atomic.Bool // this rank alone; see server.draining
	removed  atomic.Bool
	capacity atomic.Pointer[Capacity]
	load     atomic.Pointer[Load]
	inFlight atomic.Int64
	total    atomic.Int64
}

// ID names the replica in logs, metrics and the admin API.
func (r *Replica) ID() string { return r.id }

// Model is the name of the model that it serves here: the configured one, or
// without a configured one what its engine serves. "" while that is unknown.
func (r *Replica) Model() string { return r.model }

// Served are all models of its engine, LoRA adapters too.
func (r *Replica) Served() []ModelInfo {
	if f := r.server.facts.Load(); f != nil {
		return f.Models
	}
	return nil
}

// Serves says whether the engine knows a model by this name.
func (r *Replica) Serves(name string) bool {
	return slices.ContainsFunc(r.Served(), func(m ModelInfo) bool { return m.ID == name })
}

// MaxModelLen is the context length of the model that it serves; 0: not told.
func (r *Replica) MaxModelLen() int {
	n := 0
	for _, m := range r.Served() {
		if m.ID == r.model {
			return m.MaxModelLen
		}
		n = max(n, m.MaxModelLen)
	}
	return n
}

// URL is its engine's.
func (r *Replica) URL() string { return r.server.conn.Load().URL }

// Conn is how requests reach it.
func (r *Replica) Conn() *Conn { return r.server.conn.Load() }

// Kind is its engine's, as configured or found out; "" while unknown.
func (r *Replica) Kind() Kind { return r.server.kind() }

// Tongue is whose API its engine speaks: Kind, but for the embedded engine,
// which answers as SGLang or as vLLM does.
func (r *Replica) Tongue() Kind {
	if f := r.server.facts.Load(); f != nil {
		return f.Tongue
	}
	return ""
}

// Rank is its global data-parallel rank; -1 without ranks.
func (r *Replica) Rank() int { return r.rank }

// Source tells where it comes from: static, dns, file, admin, launch or local.
func (r *Replica) Source() string { return r.server.settings.Load().source }

// Roles are what it may be used for: chat, scoring.
func (r *Replica) Roles() []string { return r.server.settings.Load().engine.Roles }

// HasRole says whether it may be used for a role. Without roles: for all.
func (r *Replica) HasRole(role string) bool {
	roles := r.Roles()
	return len(roles) == 0 || slices.Contains(roles, role)
}

// Version is its engine's; "" where it does not tell.
func (r *Replica) Version() string {
	if f := r.server.facts.Load(); f != nil {
		return f.Version
	}
	return ""
}

// Capacity is its size as far as known.
func (r *Replica) Capacity() Capacity {
	if c := r.capacity.Load(); c != nil {
		return *c
	}
	return Capacity{}
}

// Load is what its engine last said; ok is false before the first answer, and
// for engines that do not tell. Load.At gives its age.
func (r *Replica) Load() (load Load, ok bool) {
	if l := r.load.Load(); l != nil {
		return *l, true
	}
	return Load{}, false
}

// RanksIgnored says that this URL has data-parallel ranks which it does not
// let be chosen, and is therefore one replica.
func (r *Replica) RanksIgnored() bool { return r.server.ranksIgnored.Load() }

// State is what is shown of it.
func (r *Replica) State() State {
	s := r.server
	switch {
	case r.draining.Load() || s.draining.Load() || r.removed.Load():
		return StateDraining
	case phase(s.phase.Load()) == starting:
		return Starting
	case phase(s.phase.Load()) == unhealthy:
		return StateUnhealthy
	}
	return s.breaker.Load().state()
}

// Usable says whether new requests may be sent to it: its engine answers, its
// breaker lets them through, and it is not leaving. The last URL of a model is
// never taken out by its breaker.
func (r *Replica) Usable() bool {
	return r.server.usable.Load() && !r.draining.Load() && !r.removed.Load()
}

// Answering is to be called when bytes of an answer come. A replica that
// answers is not taken out because its probes are slow.
func (r *Replica) Answering(now time.Time) { r.server.lastAnswer.Store(now.UnixNano()) }

// Begin counts a request that is sent to it now. ranked: its rank was told
// (Addressing.Ok, on a replica with ranks). End the attempt exactly once.
func (r *Replica) Begin(ranked bool) Attempt {
	r.inFlight.Add(1)
	r.total.Add(1)
	r.server.inFlight.Add(1)
	a := Attempt{r: r}
	if ranked && r.rank >= 0 {
		a.window = r.server.ranks.begin()
	}
	return a
}

// Attempt is one request on its way.
type Attempt struct {
	r      *Replica
	window uint64 // of the rank check; 0: not counted
}

// End ends the attempt. ok: the engine answered it in full with a 200.
func (a Attempt) End(ok bool) {
	if ok && a.window != 0 {
		a.r.server.ranks.end(a.window, a.r.label, time.Now())
	}
	a.r.inFlight.Add(-1)
	if a.r.server.inFlight.Add(-1) == 0 {
		a.r.server.signalIdle()
	}
}

// InFlight is how many attempts have begun and not ended.
func (r *Replica) InFlight() int { return int(r.inFlight.Load()) }

// Total is how many attempts have begun.
func (r *Replica) Total() int64 { return r.total.Load() }

// Address is how this replica's rank is told to its engine on an endpoint
// (the path without the engine's own prefix, as "/v1/completions").
func (r *Replica) Address(path string) Addressing {
	if r.rank < 0 {
		return Addressing{Ok: true}
	}
	f := r.server.facts.Load()
	return address(f.Tongue, f.Version, path, r.rank)
}

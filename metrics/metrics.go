package metrics

import (
	"encoding/hex"
	"runtime"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// Options are what New needs to know. The zero value is useful in tests.
type Options struct {
	// Version and Revision go into penstock_build_info.
	Version, Revision string
	// Gauges reads what is pulled at each scrape; nil: nothing is. It may also
	// be set later by SetGauges.
	Gauges func() Gauges
	// Runtime adds the Go runtime's and the process' own metrics.
	Runtime bool
}

// Metrics is everything that Penstock counts.
type Metrics struct {
	vec    *vectors
	gauges *gaugeCollector

	refused  map[string]struct{} // reasons
	failures []string
	codes    map[string]struct{}

	mu       sync.RWMutex
	models   map[string]struct{}
	keys     map[string]struct{}
	clients  map[clientID]*Client
	byModel  map[string]*Model
	replicas map[replicaID]*Replica
}

type (
	clientID  struct{ model, key string }
	replicaID struct{ model, replica string }
)

// New registers everything with reg.
func New(reg prometheus.Registerer, o Options) *Metrics {
	m := &Metrics{
		vec:      newVectors(reg),
		gauges:   newGaugeCollector(o.Gauges),
		refused:  set(knownReasons()),
		failures: knownFailures(),
		codes:    set(knownCodes()),
		models:   map[string]struct{}{},
		keys:     map[string]struct{}{},
		clients:  map[clientID]*Client{},
		byModel:  map[string]*Model{},
		replicas: map[replicaID]*Replica{},
	}
	reg.MustRegister(m.gauges)
	if o.Runtime {
		reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	}
	m.vec.buildInfo.WithLabelValues(o.Version, o.Revision, runtime.Version()).Set(1)
	m.LimitsMode(ModeMemory)
	return m
}

// SetGauges sets what is read at each scrape.
func (m *Metrics) SetGauges(read func() Gauges) { m.gauges.set(read) }

// SetNames says which models and keys are configured; any other is counted as
// Other. Series of names that are gone are removed: handles of theirs still
// held by requests in flight count into nothing.
func (m *Metrics) SetNames(models, keys []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	newModels, newKeys := set(models), set(keys)
	for name := range m.models {
		if _, stays := newModels[name]; !stays {
			m.dropModel(name)
		}
	}
	for name := range m.keys {
		if _, stays := newKeys[name]; !stays {
			m.dropKey(name)
		}
	}
	m.models, m.keys = newModels, newKeys
}

// dropModel removes a model's series. The lock is held.
func (m *Metrics) dropModel(model string) {
	match := prometheus.Labels{labelModel: model}
	for _, vec := range m.vec.byModel() {
		vec.DeletePartialMatch(match)
	}
	delete(m.byModel, model)
	for id := range m.clients {
		if id.model == model {
			delete(m.clients, id)
		}
	}
	for id := range m.replicas {
		if id.model == model {
			delete(m.replicas, id)
		}
	}
}

// dropKey removes a key's series. The lock is held.
func (m *Metrics) dropKey(key string) {
	match := prometheus.Labels{labelKey: key}
	for _, vec := range m.vec.byKey() {
		vec.DeletePartialMatch(match)
	}
	for id := range m.clients {
		if id.key == key {
			delete(m.clients, id)
		}
	}
}

// deleter is what all vectors have in common.
type deleter interface {
	DeletePartialMatch(prometheus.Labels) int
}

func (v *vectors) byModel() []deleter {
	return append([]deleter{
		v.requests, v.inputTokens, v.cachedTokens, v.outputTokens,
		v.perToken, v.interToken, v.queueWait, v.total, v.estimateRatio, v.retries, v.budgetSpent,
	}, v.byReplica()...)
}

func (v *vectors) byKey() []deleter {
	return []deleter{v.requests, v.inputTokens, v.cachedTokens, v.outputTokens, v.refusals}
}

func (v *vectors) byReplica() []deleter {
	return []deleter{
		v.firstToken, v.replicaRequests, v.replicaFailures, v.promptTokens, v.predictedHit, v.reportedTokens,
		v.actualHit, v.misroutes, v.probeFailures, v.pollFailures, v.breakerChanges,
	}
}

// Refused counts a refusal by a limit or the queue.
func (m *Metrics) Refused(key, reason string) {
	m.mu.RLock()
	key = bound(m.keys, key, NoKey)
	m.mu.RUnlock()
	m.vec.refusals.WithLabelValues(key, bound(m.refused, reason, Other)).Inc()
}

// Panic counts a panic that was contained.
func (m *Metrics) Panic() { m.vec.panics.Inc() }

// Reloaded records a reload: whether it was taken over, when, and the hash
// (in hexadecimal) of the configuration in force after it. The start counts as one.
func (m *Metrics) Reloaded(ok bool, at time.Time, hash string) {
	if !ok {
		m.vec.reloads.WithLabelValues("failure").Inc()
		m.vec.reloadSuccess.Set(0)
		return
	}
	m.vec.reloads.WithLabelValues("success").Inc()
	m.vec.reloadSuccess.Set(1)
	m.vec.reloadTime.Set(float64(at.UnixMilli()) / 1e3)
	m.vec.configHash.Set(hashNumber(hash))
}

// hashNumber is the first 48 bits of a hexadecimal hash: exact in a float64.
func hashNumber(hash string) float64 {
	raw, err := hex.DecodeString(hash[:min(12, len(hash)&^1)])
	if err != nil {
		return 0
	}
	var n uint64
	for _, b := range raw {
		n = n<<8 | uint64(b)
	}
	return float64(n)
}

// RedisCall records one round trip.
func (m *Metrics) RedisCall(d time.Duration) { m.vec.redisSeconds.Observe(d.Seconds()) }

// RedisError counts a failed call; reason is timeout, connect, breaker or reply.
func (m *Metrics) RedisError(reason string) {
	m.vec.redisErrors.WithLabelValues(known([]string{"timeout", "connect", "breaker", "reply"}, reason)).Inc()
}

// LimitsMode says how limits are counted from now on: one of the Mode constants.
func (m *Metrics) LimitsMode(mode string) {
	for _, other := range knownModes() {
		value := 0.0
		if other == mode {
			value = 1
		}
		m.vec.redisMode.WithLabelValues(other).Set(value)
	}
}

// Placements counts batches of prefix placements sent to, received from, or dropped on
// the way to other gateways.
func (m *Metrics) Placements(sent, received, dropped int) {
	for typ, n := range map[string]int{"sent": sent, "received": received, "dropped": dropped} {
		if n > 0 {
			m.vec.placements.WithLabelValues(typ).Add(float64(n))
		}
	}
}

func set(names []string) map[string]struct{} {
	s := make(map[string]struct{}, len(names))
	for _, name := range names {
		s[name] = struct{}{}
	}
	return s
}

// bound returns name if it is in names, empty if there is none, and Other for the rest.
func bound(names map[string]struct{}, name, empty string) string {
	if name == "" || name == empty {
		return empty
	}
	if _, ok := names[name]; ok {
		return name
	}
	return Other
}

package metrics

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Client counts what one key asks of one model.
type Client struct {
	m  *Metrics
	id clientID

	input, cached, output prometheus.Counter

	mu   sync.Mutex // for adding to done
	done atomic.Pointer[map[outcome]prometheus.Counter]
}

type outcome struct {
	status int
	code   string
}

// Client returns the handle for a model and a key, made on first use. Unknown
// names share the handle of Other; "" is NoModel or NoKey.
func (m *Metrics) Client(model, key string) *Client {
	m.mu.RLock()
	id := clientID{bound(m.models, model, NoModel), bound(m.keys, key, NoKey)}
	c := m.clients[id]
	m.mu.RUnlock()
	if c != nil {
		return c
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	id = clientID{bound(m.models, model, NoModel), bound(m.keys, key, NoKey)} // a reload may have come between
	if c = m.clients[id]; c == nil {
		c = &Client{
			m: m, id: id,
			input:  m.vec.inputTokens.WithLabelValues(id.model, id.key),
			cached: m.vec.cachedTokens.WithLabelValues(id.model, id.key),
			output: m.vec.outputTokens.WithLabelValues(id.model, id.key),
		}
		c.done.Store(&map[outcome]prometheus.Counter{})
		m.clients[id] = c
	}
	return c
}

// Done counts an answered request: its status (499: the client went away) and
// its error code (OK or "": none; "upstream": an engine's own error passed through).
func (c *Client) Done(status int, code string) {
	if counter, ok := (*c.done.Load())[outcome{status, code}]; ok {
		counter.Inc()
		return
	}
	c.m.mu.RLock()
	defer c.m.mu.RUnlock()
	if c.m.clients[c.id] != c {
		return // a reload took the key away while the request ran
	}
	counter := c.m.vec.requests.WithLabelValues(
		c.id.model, c.id.key, statusLabel(status), bound(c.m.codes, code, OK))
	counter.Inc()
	c.remember(outcome{status, code}, counter)
}

// remember caches a child by copying the map: there are a few dozen outcomes.
// Ones outside the known set are not remembered, so that it stays bounded.
func (c *Client) remember(o outcome, counter prometheus.Counter) {
	if _, ok := c.m.codes[o.code]; !ok && o.code != "" || statusLabel(o.status) == Other {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	next := maps.Clone(*c.done.Load())
	next[o] = counter
	c.done.Store(&next)
}

// Tokens counts what an engine reported. cached is part of input.
func (c *Client) Tokens(input, cached, output int) {
	add(c.input, input)
	add(c.cached, cached)
	add(c.output, output)
}

// Model counts what concerns one model over all keys and replicas.
type Model struct {
	perToken, interToken, queueWait, total prometheus.Observer
	estimateIn, estimateOut                prometheus.Observer
	budgetSpent                            prometheus.Counter
	retries                                map[string]prometheus.Counter
}

// Model returns the handle for a model, made on first use.
func (m *Metrics) Model(model string) *Model {
	m.mu.RLock()
	h := m.byModel[bound(m.models, model, NoModel)]
	m.mu.RUnlock()
	if h != nil {
		return h
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	model = bound(m.models, model, NoModel)
	if h = m.byModel[model]; h == nil {
		h = &Model{
			perToken:    m.vec.perToken.WithLabelValues(model),
			interToken:  m.vec.interToken.WithLabelValues(model),
			queueWait:   m.vec.queueWait.WithLabelValues(model),
			total:       m.vec.total.WithLabelValues(model),
			estimateIn:  m.vec.estimateRatio.WithLabelValues(model, "input"),
			estimateOut: m.vec.estimateRatio.WithLabelValues(model, "output"),
			budgetSpent: m.vec.budgetSpent.WithLabelValues(model),
			retries:     children(m.vec.retries, m.failures, model),
		}
		m.byModel[model] = h
	}
	return h
}

// Total records a whole request. trace is its trace id, or "".
func (h *Model) Total(d time.Duration, trace string) { observe(h.total, d, trace) }

// QueueWait records how long a request waited for room; 0 when it did not.
func (h *Model) QueueWait(d time.Duration) { h.queueWait.Observe(d.Seconds()) }

// PerToken records a stream's mean time per output token after the first.
func (h *Model) PerToken(d time.Duration) { h.perToken.Observe(d.Seconds()) }

// InterToken records the time between two events of a stream.
func (h *Model) InterToken(d time.Duration) { h.interToken.Observe(d.Seconds()) }

// Estimated records what was reserved against what the engine reported. A pair
// with nothing reported says nothing and is left out.
func (h *Model) Estimated(reservedIn, actualIn, reservedOut, actualOut int) {
	if actualIn > 0 {
		h.estimateIn.Observe(float64(reservedIn) / float64(actualIn))
	}
	if actualOut > 0 {
		h.estimateOut.Observe(float64(reservedOut) / float64(actualOut))
	}
}

// Retried counts an attempt repeated for one of the Fail reasons.
func (h *Model) Retried(reason string) { h.retries[reasonOf(h.retries, reason)].Inc() }

// RetryBudgetSpent counts a retry that was not made.
func (h *Model) RetryBudgetSpent() { h.budgetSpent.Inc() }

// Replica counts what concerns one replica of one model.
type Replica struct {
	m  *Metrics
	id replicaID

	firstToken                                    prometheus.Observer
	requests, prompt, predicted, reported, actual prometheus.Counter
	misroutes, probeFailures, pollFailures        prometheus.Counter
}

// Replica returns the handle of a replica, made on first use. Unlike models and
// keys, ids come from the operator alone; RemoveReplica takes its series away.
func (m *Metrics) Replica(model, replica string) *Replica {
	m.mu.RLock()
	h := m.replicas[replicaID{bound(m.models, model, NoModel), replica}]
	m.mu.RUnlock()
	if h != nil {
		return h
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	id := replicaID{bound(m.models, model, NoModel), replica}
	if h = m.replicas[id]; h == nil {
		h = m.newReplica(id)
		m.replicas[id] = h
	}
	return h
}

func (m *Metrics) newReplica(id replicaID) *Replica {
	v := m.vec
	return &Replica{
		m: m, id: id,
		firstToken:    v.firstToken.WithLabelValues(id.model, id.replica),
		requests:      v.replicaRequests.WithLabelValues(id.model, id.replica),
		prompt:        v.promptTokens.WithLabelValues(id.model, id.replica),
		predicted:     v.predictedHit.WithLabelValues(id.model, id.replica),
		reported:      v.reportedTokens.WithLabelValues(id.model, id.replica),
		actual:        v.actualHit.WithLabelValues(id.model, id.replica),
		misroutes:     v.misroutes.WithLabelValues(id.model, id.replica),
		probeFailures: v.probeFailures.WithLabelValues(id.model, id.replica),
		pollFailures:  v.pollFailures.WithLabelValues(id.model, id.replica),
	}
}

// RemoveReplica takes a replica's series off the page. A request that is still
// in flight there counts into nothing.
func (m *Metrics) RemoveReplica(model, replica string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	id := replicaID{bound(m.models, model, NoModel), replica}
	delete(m.replicas, id)
	match := prometheus.Labels{labelModel: id.model, labelReplica: id.replica}
	for _, vec := range m.vec.byReplica() {
		vec.DeletePartialMatch(match)
	}
}

// Request counts an attempt sent there.
func (h *Replica) Request() { h.requests.Inc() }

// FirstToken records the time from a request's arrival to its first event.
func (h *Replica) FirstToken(d time.Duration, trace string) { observe(h.firstToken, d, trace) }

// Failed counts an attempt that failed for one of the Fail reasons.
func (h *Replica) Failed(reason string) {
	h.rare(h.m.vec.replicaFailures, known(h.m.failures, reason))
}

// rare counts what is looked up when it happens, which spares a dozen series
// for each replica; one that was removed meanwhile does not come back by it.
func (h *Replica) rare(vec *prometheus.CounterVec, value string) {
	h.m.mu.RLock()
	defer h.m.mu.RUnlock()
	if h.m.replicas[h.id] == h {
		vec.WithLabelValues(h.id.model, h.id.replica, value).Inc()
	}
}

// Predicted counts a routed prompt and the part of it expected in the cache, in tokens.
func (h *Replica) Predicted(prompt, matched int) {
	add(h.prompt, prompt)
	add(h.predicted, matched)
}

// Reported counts an answer's prompt tokens and the cached ones among them;
// answers that do not say (-1) are left out.
func (h *Replica) Reported(prompt, cached int) {
	if cached >= 0 {
		add(h.reported, prompt)
		add(h.actual, cached)
	}
}

// Misrouted counts requests found on another rank than the one sent.
func (h *Replica) Misrouted(n int) { add(h.misroutes, n) }

// ProbeFailed counts a failed health probe.
func (h *Replica) ProbeFailed() { h.probeFailures.Inc() }

// LoadPollFailed counts a failed load poll.
func (h *Replica) LoadPollFailed() { h.pollFailures.Inc() }

// BreakerChanged counts a change to closed, half_open or open.
func (h *Replica) BreakerChanged(to string) {
	h.rare(h.m.vec.breakerChanges, known(breakerStates(), to))
}

// children makes one child for each reason, and one for Other.
func children(vec *prometheus.CounterVec, reasons []string, labels ...string) map[string]prometheus.Counter {
	all := make(map[string]prometheus.Counter, len(reasons)+1)
	for _, reason := range append(slices.Clip(reasons), Other) {
		all[reason] = vec.WithLabelValues(append(slices.Clip(labels), reason)...)
	}
	return all
}

func reasonOf(all map[string]prometheus.Counter, reason string) string {
	if _, ok := all[reason]; ok {
		return reason
	}
	return Other
}

// observe adds an exemplar when the request is traced.
func observe(o prometheus.Observer, d time.Duration, trace string) {
	if trace != "" {
		if e, ok := o.(prometheus.ExemplarObserver); ok {
			e.ObserveWithExemplar(d.Seconds(), prometheus.Labels{"trace_id": trace})
			return
		}
	}
	o.Observe(d.Seconds())
}

// add ignores what is not positive: counters never fall, and -1 is "unknown".
func add(c prometheus.Counter, n int) {
	if n > 0 {
		c.Add(float64(n))
	}
}

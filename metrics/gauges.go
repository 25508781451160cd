package metrics

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// Gauges is what is true at the moment of a scrape, read from its owners.
type Gauges struct {
	Models   []ModelGauges
	Replicas []ReplicaGauges
	Keys     []KeyGauges
	Limits   []LimitGauge

	Connections int
	Draining    bool
	IndexBytes  int
}

// ModelGauges are one model's.
type ModelGauges struct {
	Model      string
	InFlight   int
	QueueDepth int
	QueueMax   int
}

// ReplicaGauges are one replica's. State and Breaker are as on /replicas;
// engine figures are left off the page when LoadAge is negative (never reported).
type ReplicaGauges struct {
	Model, Replica string
	Up             bool
	State          string
	Breaker        string // closed, half_open, open
	InFlight       int
	QueuedTokens   int
	IndexBlocks    int
	KVTokens       int
	MaxRunning     int
	ScoringTokens  int
	PrefillRate    float64 // tokens per second

	LoadAge       float64 // seconds
	EngineRunning int
	EngineWaiting int
	KVUsage       float64 // 0 to 1; negative: not reported
}

// KeyGauges are one key's. Key must be a configured name.
type KeyGauges struct {
	Key      string
	InFlight int
	Waiting  int
}

// LimitGauge is one limit of a key (Model "": over all models) or of a model
// (Key "": over all keys). Limit is one of requests, tokens, input_tokens,
// output_tokens, concurrency.
type LimitGauge struct {
	Key, Model, Limit string
	Value, Remaining  float64
}

// gaugeCollector turns one Gauges into metrics at each scrape.
type gaugeCollector struct {
	descs *descs
	read  atomic.Pointer[func() Gauges]
}

func newGaugeCollector(read func() Gauges) *gaugeCollector {
	c := &gaugeCollector{descs: newDescs()}
	c.set(read)
	return c
}

func (c *gaugeCollector) set(read func() Gauges) {
	if read != nil {
		c.read.Store(&read)
	}
}

// Describe sends nothing: an unchecked collector, since what it has depends on
// the replicas there are. The golden test checks its page instead.
func (c *gaugeCollector) Describe(chan<- *prometheus.Desc) {}

// Collect reads the gauges once and sends them.
func (c *gaugeCollector) Collect(ch chan<- prometheus.Metric) {
	read := c.read.Load()
	if read == nil {
		return
	}
	g := (*read)()
	e := emitter{ch}
	for i := range g.Replicas {
		c.replica(e, &g.Replicas[i])
	}
	c.models(e, g)
	for _, k := range g.Keys {
		e.gauge(c.descs.keyInFlight, float64(k.InFlight), k.Key)
		e.gauge(c.descs.keyWaiting, float64(k.Waiting), k.Key)
	}
	for _, l := range g.Limits {
		e.gauge(c.descs.limitValue, l.Value, l.Key, l.Model, l.Limit)
		e.gauge(c.descs.limitRemaining, l.Remaining, l.Key, l.Model, l.Limit)
	}
	e.gauge(c.descs.connections, float64(g.Connections))
	e.gauge(c.descs.draining, truth(g.Draining))
	e.gauge(c.descs.indexBytes, float64(g.IndexBytes))
}

func (c *gaugeCollector) replica(e emitter, r *ReplicaGauges) {
	d, labels := c.descs, []string{r.Model, r.Replica}
	e.gauge(d.up, truth(r.Up), labels...)
	for _, state := range states() {
		e.gauge(d.state, truth(state == r.State), r.Model, r.Replica, state)
	}
	e.gauge(d.breaker, breakerNumber(r.Breaker), labels...)
	e.gauge(d.inFlight, float64(r.InFlight), labels...)
	e.gauge(d.queuedTokens, float64(r.QueuedTokens), labels...)
	e.gauge(d.indexBlocks, float64(r.IndexBlocks), labels...)
	e.gauge(d.kvTokens, float64(r.KVTokens), labels...)
	e.gauge(d.maxRunning, float64(r.MaxRunning), labels...)
	e.gauge(d.scoringTokens, float64(r.ScoringTokens), labels...)
	e.gauge(d.prefillRate, r.PrefillRate, labels...)
	if r.LoadAge < 0 {
		return
	}
	e.gauge(d.loadAge, r.LoadAge, labels...)
	e.gauge(d.engineRunning, float64(r.EngineRunning), labels...)
	e.gauge(d.engineWaiting, float64(r.EngineWaiting), labels...)
	if r.KVUsage >= 0 {
		e.gauge(d.kvUsage, r.KVUsage, labels...)
	}
}

// models sends each model's figures and how many of its replicas are in each
// state, so that "none is healthy" is a 0 and not a missing series.
func (c *gaugeCollector) models(e emitter, g Gauges) {
	count := map[[2]string]int{}
	for i := range g.Replicas {
		count[[2]string{g.Replicas[i].Model, g.Replicas[i].State}]++
	}
	for _, m := range g.Models {
		e.gauge(c.descs.modelInFlight, float64(m.InFlight), m.Model)
		e.gauge(c.descs.queueDepth, float64(m.QueueDepth), m.Model)
		e.gauge(c.descs.queueMax, float64(m.QueueMax), m.Model)
		for _, state := range states() {
			e.gauge(c.descs.replicas, float64(count[[2]string{m.Model, state}]), m.Model, state)
		}
	}
}

type emitter struct{ ch chan<- prometheus.Metric }

func (e emitter) gauge(d *prometheus.Desc, value float64, labels ...string) {
	e.ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func breakerNumber(state string) float64 {
	switch state {
	case "half_open":
		return 1
	case "open":
		return 2
	}
	return 0
}

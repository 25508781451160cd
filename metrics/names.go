package metrics

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// prefix begins every name of ours.
const prefix = "penstock_"

// Labels. "model" is the configured name (never an alias), "key" a configured
// key's name, "replica" its id.
const (
	labelModel   = "model"
	labelKey     = "key"
	labelReplica = "replica"
	labelStatus  = "status"
	labelCode    = "code"
	labelReason  = "reason"
	labelType    = "type"
	labelState   = "state"
	labelMode    = "mode"
	labelLimit   = "limit"
	labelResult  = "result"
	labelVersion = "version"
)

// Buckets, all in seconds but for the ratio.

// firstTokenBuckets: from an instant local engine to a prefill of a million tokens.
func firstTokenBuckets() []float64 {
	return []float64{.005, .01, .025, .05, .1, .2, .35, .5, .75, 1, 2, 5, 10, 20, 60, 120, 300, 600}
}

// perTokenBuckets: from speculative decoding to a stream that is stalled by somebody's prefill.
func perTokenBuckets() []float64 {
	return []float64{.001, .0025, .005, .0075, .01, .015, .02, .03, .05, .075, .1, .15, .25, .5, 1, 2.5, 10}
}

// waitBuckets: the queue; 0.001 is "did not wait".
func waitBuckets() []float64 {
	return []float64{.001, .01, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 240, 600, 1800}
}

// totalBuckets: a whole request, streams of an hour included.
func totalBuckets() []float64 {
	return []float64{.005, .025, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600}
}

// redisBuckets: one round trip, whose time-out is 50 ms by default.
func redisBuckets() []float64 {
	return []float64{.0001, .00025, .0005, .001, .002, .005, .01, .025, .05, .1}
}

// ratioBuckets: estimate ÷ actual; 1 is exact.
func ratioBuckets() []float64 {
	return []float64{.25, .5, .75, .9, 1, 1.1, 1.25, 1.5, 2, 4, 16}
}

// vectors are all pushed metrics, before their labels are filled in.
type vectors struct {
	// Requests, by who asked for what.
	requests     *prometheus.CounterVec // model, key, status, code
	inputTokens  *prometheus.CounterVec // model, key
	cachedTokens *prometheus.CounterVec // model, key
	outputTokens *prometheus.CounterVec // model, key
	refusals     *prometheus.CounterVec // key, reason

	// Times, after OpenTelemetry's gen_ai.server.* histograms.
	firstToken    *prometheus.HistogramVec // model, replica
	perToken      *prometheus.HistogramVec // model
	interToken    *prometheus.HistogramVec // model
	queueWait     *prometheus.HistogramVec // model
	total         *prometheus.HistogramVec // model
	estimateRatio *prometheus.HistogramVec // model, type

	// Replicas.
	replicaRequests *prometheus.CounterVec // model, replica
	replicaFailures *prometheus.CounterVec // model, replica, reason
	promptTokens    *prometheus.CounterVec // model, replica
	predictedHit    *prometheus.CounterVec // model, replica
	reportedTokens  *prometheus.CounterVec // model, replica
	actualHit       *prometheus.CounterVec // model, replica
	misroutes       *prometheus.CounterVec // model, replica
	probeFailures   *prometheus.CounterVec // model, replica
	pollFailures    *prometheus.CounterVec // model, replica
	breakerChanges  *prometheus.CounterVec // model, replica, state
	retries         *prometheus.CounterVec // model, reason
	budgetSpent     *prometheus.CounterVec // model

	// The process.
	reloads       *prometheus.CounterVec // result
	reloadSuccess prometheus.Gauge
	reloadTime    prometheus.Gauge
	configHash    prometheus.Gauge
	redisErrors   *prometheus.CounterVec // reason
	redisSeconds  prometheus.Histogram
	redisMode     *prometheus.GaugeVec   // mode
	placements    *prometheus.CounterVec // type
	panics        prometheus.Counter
	buildInfo     *prometheus.GaugeVec // version, revision, goversion
}

// newVectors makes and registers them. It panics on a name registered twice,
// which only a second New on one registry can cause.
func newVectors(reg prometheus.Registerer) *vectors {
	v := &vectors{}
	f := factory{promauto.With(reg)}
	f.requestMetrics(v)
	f.timeMetrics(v)
	f.replicaMetrics(v)
	f.processMetrics(v)
	return v
}

// factory adds the prefix.
type factory struct{ promauto.Factory }

func (f factory) requestMetrics(v *vectors) {
	v.requests = f.counter("requests_total",
		"Requests answered, by HTTP status (499: the client went away) and by error code (ok: none).",
		labelModel, labelKey, labelStatus, labelCode)
	v.inputTokens = f.counter("input_tokens_total",
		"Prompt tokens as the engines reported them, cached ones included.", labelModel, labelKey)
	v.cachedTokens = f.counter("cached_tokens_total",
		"Prompt tokens that the engines reported as taken from their prefix cache.", labelModel, labelKey)
	v.outputTokens = f.counter("output_tokens_total",
		"Output tokens as the engines reported them, or events counted where a stream was cut off.", labelModel, labelKey)
	v.refusals = f.counter("limit_refusals_total",
		"Requests refused by a limit or by the queue.", labelKey, labelReason)
}

func (f factory) timeMetrics(v *vectors) {
	v.firstToken = f.histogram("time_to_first_token_seconds",
		"From a request's arrival to its first streamed event, queueing included.",
		firstTokenBuckets(), labelModel, labelReplica)
	v.perToken = f.histogram("time_per_output_token_seconds",
		"Mean time of each output token after the first, one observation for each stream.",
		perTokenBuckets(), labelModel)
	v.interToken = f.histogram("inter_token_seconds",
		"Time between two events of one stream.", perTokenBuckets(), labelModel)
	v.queueWait = f.histogram("queue_wait_seconds",
		"Time that a request waited for room on a replica, refused ones included.", waitBuckets(), labelModel)
	v.total = f.histogram("request_duration_seconds",
		"From a request's arrival to the last byte of its answer.", totalBuckets(), labelModel)
	v.estimateRatio = f.histogram("token_estimate_ratio",
		"Tokens reserved for a request divided by those that the engine reported.",
		ratioBuckets(), labelModel, labelType)
}

func (f factory) replicaMetrics(v *vectors) {
	v.replicaRequests = f.counter("replica_requests_total",
		"Attempts sent to a replica.", labelModel, labelReplica)
	v.replicaFailures = f.counter("replica_failures_total",
		"Attempts that failed on a replica.", labelModel, labelReplica, labelReason)
	v.promptTokens = f.counter("replica_prompt_tokens_total",
		"Prompt tokens sent to a replica, estimated.", labelModel, labelReplica)
	v.predictedHit = f.counter("replica_predicted_hit_tokens_total",
		"Prompt tokens that the router expected in the replica's prefix cache.", labelModel, labelReplica)
	v.reportedTokens = f.counter("replica_reported_prompt_tokens_total",
		"Prompt tokens of the answers that said how many of them were cached.", labelModel, labelReplica)
	v.actualHit = f.counter("replica_actual_hit_tokens_total",
		"Prompt tokens that the replica reported as cached.", labelModel, labelReplica)
	v.misroutes = f.counter("rank_misroutes_total",
		"Requests that the engine's own counters show on another data-parallel rank than the one sent.",
		labelModel, labelReplica)
	v.probeFailures = f.counter("probe_failures_total",
		"Health probes that failed or timed out.", labelModel, labelReplica)
	v.pollFailures = f.counter("load_poll_failures_total",
		"Load polls that failed; the last values stay in use, with their age.", labelModel, labelReplica)
	v.breakerChanges = f.counter("breaker_transitions_total",
		"Changes of a breaker, by the state it went to.", labelModel, labelReplica, labelState)
	v.retries = f.counter("retries_total",
		"Attempts repeated on another replica before the first byte to the client.", labelModel, labelReason)
	v.budgetSpent = f.counter("retry_budget_exhausted_total",
		"Retries that were not made since the budget was spent.", labelModel)
}

func (f factory) processMetrics(v *vectors) {
	v.reloads = f.counter("config_reloads_total", "Reloads of the configuration.", labelResult)
	v.reloadSuccess = f.gauge("config_last_reload_successful",
		"1: the last reload was taken over. 0: it was refused and the configuration before it is in force.")
	v.reloadTime = f.gauge("config_last_reload_success_timestamp_seconds",
		"When the configuration in force was taken over.")
	v.configHash = f.gauge("config_hash",
		"The first 48 bits of the hash of the configuration in force; gateways that differ have different configurations.")
	v.redisErrors = f.counter("redis_errors_total", "Calls to Redis that failed.", labelReason)
	v.redisSeconds = f.NewHistogram(prometheus.HistogramOpts{
		Name: prefix + "redis_seconds", Help: "One round trip to Redis.", Buckets: redisBuckets(),
	})
	v.redisMode = f.NewGaugeVec(prometheus.GaugeOpts{
		Name: prefix + "limits_mode",
		Help: "1 for how limits are counted now: memory, redis, or on an outage local, open or closed.",
	}, []string{labelMode})
	v.placements = f.counter("placements_total",
		"Batches of prefix placements sent to other gateways, received from them, or dropped.", labelType)
	v.panics = f.NewCounter(prometheus.CounterOpts{
		Name: prefix + "panics_total", Help: "Panics contained in a request. Each is a bug.",
	})
	v.buildInfo = f.NewGaugeVec(prometheus.GaugeOpts{
		Name: prefix + "build_info", Help: "1, with what was built as labels.",
	}, []string{labelVersion, "revision", "goversion"})
}

func (f factory) counter(name, help string, labels ...string) *prometheus.CounterVec {
	return f.NewCounterVec(prometheus.CounterOpts{Name: prefix + name, Help: help}, labels)
}

func (f factory) gauge(name, help string) prometheus.Gauge {
	return f.NewGauge(prometheus.GaugeOpts{Name: prefix + name, Help: help})
}

func (f factory) histogram(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	return f.NewHistogramVec(prometheus.HistogramOpts{Name: prefix + name, Help: help, Buckets: buckets}, labels)
}

// descs are all pulled metrics; gauges.go fills them at each scrape.
type descs struct {
	// By replica: model, replica.
	up, state, inFlight, queuedTokens, indexBlocks, kvTokens, kvUsage, maxRunning,
	engineRunning, engineWaiting, loadAge, prefillRate, breaker, scoringTokens *prometheus.Desc
	// By model.
	modelInFlight, queueDepth, queueMax, replicas *prometheus.Desc
	// By key.
	keyInFlight, keyWaiting, limitValue, limitRemaining *prometheus.Desc
	// The process.
	connections, draining, indexBytes *prometheus.Desc
}

func newDescs() *descs {
	d := &descs{}
	replica := func(name, help string, more ...string) *prometheus.Desc {
		return desc(name, help, append([]string{labelModel, labelReplica}, more...)...)
	}
	d.up = replica("replica_up", "1: requests may be sent to it.")
	d.state = replica("replica_state", "1 for the state that it is in.", labelState)
	d.inFlight = replica("replica_in_flight", "Requests that Penstock has there.")
	d.queuedTokens = replica("replica_queued_tokens", "Uncached prompt tokens reserved there whose first token has not come.")
	d.indexBlocks = replica("replica_index_blocks", "Blocks of prefixes that the router believes it holds.")
	d.kvTokens = replica("replica_kv_tokens", "KV capacity in tokens; 0: unknown.")
	d.kvUsage = replica("replica_kv_usage_ratio", "Share of the KV cache in use, as the engine reports it.")
	d.maxRunning = replica("replica_max_running", "Running limit, reported, configured or learned.")
	d.engineRunning = replica("replica_engine_running", "Running requests as the engine reports them.")
	d.engineWaiting = replica("replica_engine_waiting", "Waiting requests as the engine reports them.")
	d.loadAge = replica("replica_load_age_seconds", "Age of the engine's last load report.")
	d.prefillRate = replica("replica_prefill_tokens_per_second", "Prefill rate that the router reckons with.")
	d.breaker = replica("breaker_state", "0: closed, 1: half open, 2: open.")
	d.scoringTokens = replica("replica_scoring_tokens", "Prompt tokens of scoring requests in flight there.")

	d.modelInFlight = desc("in_flight", "Requests bound to a replica of the model.", labelModel)
	d.queueDepth = desc("queue_depth", "Requests waiting for room on a replica.", labelModel)
	d.queueMax = desc("queue_max_length", "Requests that may wait at once.", labelModel)
	d.replicas = desc("replicas", "Replicas of the model by state.", labelModel, labelState)

	d.keyInFlight = desc("key_in_flight", "Requests of the key bound to a replica.", labelKey)
	d.keyWaiting = desc("key_waiting", "Requests of the key that wait.", labelKey)
	d.limitValue = desc("limit_value", "A limit's value, per minute but for concurrency; no key or no model: over all of them.", labelKey, labelModel, labelLimit)
	d.limitRemaining = desc("limit_remaining", "What is left of a limit now; below 0 after an estimate that was too low.",
		labelKey, labelModel, labelLimit)

	d.connections = desc("connections", "Open client connections.")
	d.draining = desc("draining", "1: no new request is taken, those running may finish.")
	d.indexBytes = desc("index_bytes", "Memory of the prefix index, estimated.")
	return d
}

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(prefix+name, help, labels, nil)
}

package configs

import "time"

// Config is one whole configuration: decoded, defaulted and validated. It is
// immutable after Load; a reload makes a new one.
type Config struct {
	// Listen is the address that clients connect to. Default 127.0.0.1:8080.
	Listen string `yaml:"listen"`
	// TLS is the client listener's certificate; the files are reloaded when they change.
	TLS ListenTLS `yaml:"tls"`
	// MaxBody bounds a request body; larger is 413 before it is read. Default 64MiB.
	MaxBody Size `yaml:"max_body"`
	// MaxHeaders bounds a request's header block; larger is 431. Default 16KiB.
	MaxHeaders Size `yaml:"max_headers"`
	// MaxEvent bounds one server-sent event; larger ends the stream with an error event. Default 16MiB.
	MaxEvent Size `yaml:"max_event"`
	// MaxConnections bounds open client connections; more wait in the kernel's backlog. Default 65536.
	MaxConnections int `yaml:"max_connections"`

	// Admin is the operators' listener.
	Admin Admin `yaml:"admin"`
	// Models are what clients ask for. Left out: penstock-local on four local replicas.
	Models []Model `yaml:"models"`
	// Keys are the clients' API keys. None: anybody may send requests.
	Keys []Key `yaml:"keys"`
	// Limits is what applies to all limits.
	Limits Global `yaml:"limits"`
	// Redis shares limits and placements between gateways.
	Redis Redis `yaml:"redis"`
	// Timeouts are the deadlines of one request.
	Timeouts Timeouts `yaml:"timeouts"`
	// Health is the active probing of engines.
	Health Health `yaml:"health"`
	// Breaker takes a failing engine out while others of its model can serve.
	Breaker Breaker `yaml:"breaker"`
	// Retry bounds what is tried again before the first byte to the client.
	Retry Retry `yaml:"retry"`
	// Routing tunes the prefix policy.
	Routing Routing `yaml:"routing"`
	// Scoring is the lane of prompt log-probability requests.
	Scoring Scoring `yaml:"scoring"`
	// CORS lets browsers of other origins send requests.
	CORS CORS `yaml:"cors"`
	// Tracing sends OpenTelemetry traces.
	Tracing Tracing `yaml:"tracing"`
	// Log is the gateway's own log, on standard error.
	Log Log `yaml:"log"`

	// refs are the values that refer to the environment, by key: what Redacted shows in their stead.
	refs map[string]ref
	// origin is where the keys stand; nil without a file.
	origin *origin
}

// ListenTLS is the certificate of a listener. Both empty: plain HTTP.
type ListenTLS struct {
	// Cert is the path of the certificate chain, in PEM.
	Cert string `yaml:"cert"`
	// Key is the path of its private key, in PEM.
	Key string `yaml:"key"`
}

// Admin is the operators' listener.
type Admin struct {
	// Listen is its address. Default 127.0.0.1:9090; empty turns it off.
	Listen string `yaml:"listen"`
	// Key guards its actions, and /flush_cache on the client listener.
	Key Secret `yaml:"key"`
}

// Model is what clients ask for by name, and the engines that serve it.
type Model struct {
	// Name is what clients ask for. Left out: what the engines serve.
	Name string `yaml:"name"`
	// Aliases are other names for it; "default" serves requests that name no model.
	Aliases []string `yaml:"aliases"`
	// Upstream is the name sent to the engines, when it differs from `name`.
	Upstream string `yaml:"upstream"`
	// Policy is `prefix`, `least_load`, `round_robin`, `random_two` or `session`.
	Policy string `yaml:"policy"`
	// SessionHeader names the request header that the session policy hashes; without it the body's user field.
	SessionHeader string `yaml:"session_header"`
	// Engines are the sources of its replicas; [] when they come by the admin API alone.
	Engines []Engine `yaml:"engines"`
	// Queue bounds waiting for room on one of them.
	Queue Queue `yaml:"queue"`
	// Limits are the model's own, over all keys.
	Limits Limits `yaml:"limits"`
	// Timeouts are its own in place of the global ones where set: connect, first_token, idle and request.
	Timeouts Timeouts `yaml:"timeouts"`
}

// Engine is one source of replicas: exactly one of `url`, `file`, `launch` or `local`.
type Engine struct {
	// URL is the engine's root, without /v1.
	URL string `yaml:"url"`
	// ID names the replica in logs, metrics and the admin API. Default: host:port; a rank adds /0, /1 …
	ID string `yaml:"id"`
	// Kind is `sglang`, `vllm`, `openai` or `local`. Default: probed.
	Kind string `yaml:"kind"`
	// Resolve is `dns` to make every address of the URL's host an engine.
	Resolve string `yaml:"resolve"`
	// MaxRunning is the engine's running limit where it does not tell (vLLM); 0: learned, from 256.
	MaxRunning int `yaml:"max_running"`
	// KVTokens is the KV capacity of one rank where the engine does not tell; 0: asked, or learned.
	KVTokens int `yaml:"kv_tokens"`
	// DPRanks is `auto`, each data-parallel rank a replica, or `off`.
	DPRanks string `yaml:"dp_ranks"`
	// FirstRank is the global number of this URL's first rank, for vLLM over several nodes.
	FirstRank int `yaml:"first_rank"`
	// Roles are `chat` and `scoring`. Default: both.
	Roles []string `yaml:"roles"`
	// Key is sent to the engine as a bearer token.
	Key Secret `yaml:"key"`
	// TLS is how an https engine is verified and answered.
	TLS EngineTLS `yaml:"tls"`
	// File is a file of targets in Prometheus' file_sd form, watched.
	File string `yaml:"file"`
	// Launch starts engines as child processes.
	Launch *Launch `yaml:"launch"`
	// Local is a number of embedded engines.
	Local *LocalPool `yaml:"local"`
}

// EngineTLS is how an https engine is verified and answered.
type EngineTLS struct {
	// CA is the path of the authorities that it is verified with, in PEM. Default: the system's.
	CA string `yaml:"ca"`
	// Cert is the path of the gateway's own certificate, in PEM.
	Cert string `yaml:"cert"`
	// Key is the path of its private key, in PEM.
	Key string `yaml:"key"`
	// ServerName is the name that the certificate must bear. Default: the URL's host.
	ServerName string `yaml:"server_name"`
}

// Launch starts engines as child processes.
type Launch struct {
	// Command is the command line; {port}, {index} and {devices} are replaced.
	Command string `yaml:"command"`
	// Replicas is how many children are started. Default 1.
	Replicas int `yaml:"replicas"`
	// Port is the first child's port; 0: free ports are found.
	Port int `yaml:"port"`
	// Devices are dealt out to the children in order, as CUDA_VISIBLE_DEVICES.
	Devices []string `yaml:"devices"`
	// Env is added to the children's environment.
	Env map[string]string `yaml:"env"`
	// Preflight checks the flags against the command's own --help before anything is loaded. Default true.
	Preflight bool `yaml:"preflight"`
	// StartTimeout bounds the time until a child answers. Default 30m.
	StartTimeout time.Duration `yaml:"start_timeout"`
	// StopTimeout is the time between TERM and KILL. Default 10s.
	StopTimeout time.Duration `yaml:"stop_timeout"`
}

// LocalPool is a number of embedded engines.
type LocalPool struct {
	// Replicas is how many. Default 4.
	Replicas int `yaml:"replicas"`
	// Profile is `instant`, `qwen3-30b` or `glm52-dp4`.
	Profile string `yaml:"profile"`
	// KVTokens is the KV capacity of each. Default: the profile's.
	KVTokens int `yaml:"kv_tokens"`
	// MaxRunning is the running limit of each. Default: the profile's.
	MaxRunning int `yaml:"max_running"`
	// TimeScale divides the profile's times. Default 1.
	TimeScale float64 `yaml:"time_scale"`
}

// Queue bounds waiting for room on a replica. In a key, 0 is the model's.
type Queue struct {
	// MaxLength bounds the requests waiting; 0 in a model: none may. Default 1000.
	MaxLength int `yaml:"max_length"`
	// MaxWait bounds the time that one waits. Default 30s.
	MaxWait time.Duration `yaml:"max_wait"`
	// WaitingCredit is the part of the prefill rate by which waiting lowers a request's place. Default 0.085.
	WaitingCredit float64 `yaml:"waiting_credit"`
	// HeadHold is how long a head that fits nowhere may be passed over before room is kept for it; a model's alone. Default 5s.
	HeadHold time.Duration `yaml:"head_hold"`
}

// Limits are one scope's limits. 0: none.
type Limits struct {
	// RequestsPerMinute is the rate of requests.
	RequestsPerMinute int64 `yaml:"requests_per_minute"`
	// TokensPerMinute is the rate of tokens, input and output together.
	TokensPerMinute int64 `yaml:"tokens_per_minute"`
	// InputTokensPerMinute is the rate of prompt tokens, cached ones included.
	InputTokensPerMinute int64 `yaml:"input_tokens_per_minute"`
	// OutputTokensPerMinute is the rate of generated tokens.
	OutputTokensPerMinute int64 `yaml:"output_tokens_per_minute"`
	// Concurrency is how many requests may be in flight at once; more wait.
	Concurrency int `yaml:"concurrency"`
	// RequestsBurst is how many requests may come at once. Default: one minute's worth, as for each burst.
	RequestsBurst int64 `yaml:"requests_burst"`
	// TokensBurst is how many tokens may be taken at once; a request that costs more is too large ever.
	TokensBurst int64 `yaml:"tokens_burst"`
	// InputTokensBurst is the same for prompt tokens.
	InputTokensBurst int64 `yaml:"input_tokens_burst"`
	// OutputTokensBurst is the same for generated tokens.
	OutputTokensBurst int64 `yaml:"output_tokens_burst"`
}

// Key is one client's API key. Several with one name are one client with
// several active keys, for rotation: its settings are given with the first.
type Key struct {
	// Name is what logs, metrics and limits know the client by.
	Name string `yaml:"name"`
	// Key is `${NAME}`, a reference to the environment; or `sha256` is given.
	Key Secret `yaml:"key"`
	// SHA256 is the key's hash in hexadecimal.
	SHA256 string `yaml:"sha256"`
	// Models are those it may use. Left out: all.
	Models []string `yaml:"models"`
	// Weight is its share when the engines are full. Default 1.
	Weight float64 `yaml:"weight"`
	// Priority is `high` (weight × 4), `normal` (× 1) or `batch` (× 0.25).
	Priority string `yaml:"priority"`
	// Limits are the client's own, over all models.
	Limits Limits `yaml:"limits"`
	// ModelLimits are its limits on single models, beside `limits`: model name → limits.
	ModelLimits map[string]Limits `yaml:"model_limits"`
	// OnRateLimit is `refuse`, at once with 429, or `wait`, if the wait fits `max_wait`.
	OnRateLimit string `yaml:"on_rate_limit"`
	// Queue is its share of the models' queues and its own longest wait.
	Queue Queue `yaml:"queue"`
	// AllowEngineFields lets the client send rank, priority, bootstrap fields and cache_salt.
	AllowEngineFields bool `yaml:"allow_engine_fields"`
	// CacheSalt is added to this client's requests, so that it shares no cached prefix with others.
	CacheSalt string `yaml:"cache_salt"`
	// Expires is the first day (UTC, 2006-01-02) or time (RFC 3339) on which it is refused.
	Expires string `yaml:"expires"`
}

// Global is what applies to all limits.
type Global struct {
	// Mode is `explicit`, or `auto`: queue and concurrency derived from the engines.
	Mode string `yaml:"mode"`
	// DefaultOutputTokens is reserved when a request names no maximum. Default 512.
	DefaultOutputTokens int `yaml:"default_output_tokens"`
	// TokensPerImage is reserved for each image, audio or file part until learned. Default 1000.
	TokensPerImage int `yaml:"tokens_per_image"`
	// MaxKeys bounds the keys whose counters are held in memory. Default 100000.
	MaxKeys int `yaml:"max_keys"`
	// IETFHeaders adds RateLimit and RateLimit-Policy beside OpenAI's headers. Default false.
	IETFHeaders bool `yaml:"ietf_headers"`
}

// Redis shares limits and placements between gateways. Empty URL: none.
type Redis struct {
	// URL is `redis://`, `rediss://` or, with several addresses separated by commas, a cluster; a master's name makes it Sentinel.
	URL string `yaml:"url"`
	// MasterName is the master that the Sentinels at URL know.
	MasterName string `yaml:"master_name"`
	// Username is one of Redis' access lists.
	Username string `yaml:"username"`
	// Password is that user's, or the server's.
	Password Secret `yaml:"password"`
	// TLS is how a rediss server is verified and answered.
	TLS EngineTLS `yaml:"tls"`
	// OnError is `local` (each gateway enforces limit ÷ gateways), `open` or `closed`.
	OnError string `yaml:"on_error"`
	// Timeout bounds one round trip. Default 50ms.
	Timeout time.Duration `yaml:"timeout"`
	// Prefix begins every key. Default penstock.
	Prefix string `yaml:"prefix"`
	// Gateways is how many share it, for `on_error: local`; 0: counted by heartbeats. Default 0.
	Gateways int `yaml:"gateways"`
	// SharePlacements sends placements between gateways too. Default true.
	SharePlacements bool `yaml:"share_placements"`
}

// Timeouts are the deadlines of one request. 0 in a model: the global one.
type Timeouts struct {
	// Connect bounds dialling an engine. Default 2s.
	Connect time.Duration `yaml:"connect"`
	// FirstToken bounds the wait for a stream's first event. Default 10m.
	FirstToken time.Duration `yaml:"first_token"`
	// Idle bounds the silence between two events. Default 5m.
	Idle time.Duration `yaml:"idle"`
	// Request bounds a whole request. Default 60m.
	Request time.Duration `yaml:"request"`
	// Drain is how long streams may finish after SIGTERM. Default 25s.
	Drain time.Duration `yaml:"drain"`
	// ReadHeaders bounds the reading of a request's headers. Default 10s.
	ReadHeaders time.Duration `yaml:"read_headers"`
	// ReadBody bounds the reading of a body, with one second more for each 100 KB of it; four times as long where its length is not told. Default 30s.
	ReadBody time.Duration `yaml:"read_body"`
	// Write bounds one write to a client that does not read. Default 60s.
	Write time.Duration `yaml:"write"`
	// KeepAlive bounds an idle client connection. Default 75s.
	KeepAlive time.Duration `yaml:"keep_alive"`
	// EngineIdle closes idle engine connections before the engine does. Default 4s.
	EngineIdle time.Duration `yaml:"engine_idle"`
}

// Health is the active probing of engines.
type Health struct {
	// Interval is the time between two probes of one URL. Default 2s.
	Interval time.Duration `yaml:"interval"`
	// Timeout is a probe's. Default 2s.
	Timeout time.Duration `yaml:"timeout"`
	// Unhealthy is how many failures in a row take a silent replica out. Default 3.
	Unhealthy int `yaml:"unhealthy"`
	// Healthy is how many successes in a row take it back. Default 1.
	Healthy int `yaml:"healthy"`
	// Path is what is probed. Default: the kind's own.
	Path string `yaml:"path"`
	// LoadInterval is the time between two load polls. Default 1s; longer beyond 100 replicas.
	LoadInterval time.Duration `yaml:"load_interval"`
	// LoadTimeout is a load poll's. Default 1s.
	LoadTimeout time.Duration `yaml:"load_timeout"`
	// RefreshInterval is the time between two readings of the engine's own facts. Default 30s.
	RefreshInterval time.Duration `yaml:"refresh_interval"`
	// ResolveInterval is the time between two look-ups of a DNS name. Default 10s.
	ResolveInterval time.Duration `yaml:"resolve_interval"`
}

// Breaker takes a failing engine out while others of its model can serve.
type Breaker struct {
	// Failures is how many in a row open it. Default 5.
	Failures int `yaml:"failures"`
	// Ratio is the share of failures, over at least `min_requests` within `window`, that opens it. Default 0.5.
	Ratio float64 `yaml:"ratio"`
	// MinRequests is the least number that a ratio is taken of. Default 20.
	MinRequests int `yaml:"min_requests"`
	// Window is what the counts are taken over. Default 30s.
	Window time.Duration `yaml:"window"`
	// Open is how long it stays open before trials. Default 5s.
	Open time.Duration `yaml:"open"`
	// Trials is how many requests may try a half-open engine at once. Default 2.
	Trials int `yaml:"trials"`
}

// Retry bounds what is tried again before the first byte to the client.
type Retry struct {
	// Attempts is how many one request has in all. Default 3.
	Attempts int `yaml:"attempts"`
	// Budget is the share of requests that may be retries, over ten seconds. Default 0.2.
	Budget float64 `yaml:"budget"`
	// MinPerSecond is how many retries are always allowed. Default 10.
	MinPerSecond float64 `yaml:"min_per_second"`
}

// Routing tunes the prefix policy. docs/routing.md explains each.
type Routing struct {
	// BlockTokens is the size of the first blocks of the prefix key; deeper ones are up to a 32nd of what precedes them. Default 64.
	BlockTokens int `yaml:"block_tokens"`
	// IndexFactor is the index's capacity over the engine's KV capacity. Default 1.1.
	IndexFactor float64 `yaml:"index_factor"`
	// StreamWeight is what a running stream adds to the price of a prefill. Default 0.02.
	StreamWeight float64 `yaml:"stream_weight"`
	// BalanceWeight is what the mean number of streams adds to it; requests that ran or began of late add in proportion. 0: none of them. Default 0.5.
	BalanceWeight float64 `yaml:"balance_weight"`
	// StepTime is what a prefill takes however short it is. Default 16ms.
	StepTime time.Duration `yaml:"step_time"`
	// MaxHold bounds how long a request waits for a better replica although one has room, beyond twice the work that is ahead there. Default 5s; 0: none waits for better.
	MaxHold time.Duration `yaml:"max_hold"`
	// RunningAllowance is what may be bound beyond a replica's running limit. Default 0.
	RunningAllowance int `yaml:"running_allowance"`
}

// Scoring is the lane of prompt log-probability requests.
type Scoring struct {
	// MaxInFlightTokens is how many may be on one replica at once. Default 16384; a single larger request is sent alone.
	MaxInFlightTokens int `yaml:"max_in_flight_tokens"`
	// BesideChatTokens takes its place on a replica that has chat, or had some in the last 10 s: the next chat request waits for them. Default 2048; as large as max_in_flight_tokens: chat is given no precedence.
	BesideChatTokens int `yaml:"beside_chat_tokens"`
	// MaxWait is the time in the queue. Default 4m; below the 300 s of lm-eval.
	MaxWait time.Duration `yaml:"max_wait"`
	// SplitTokens is the least size of a part when a batch of prompts is split over replicas. Default 2048.
	SplitTokens int `yaml:"split_tokens"`
}

// CORS is off without origins.
type CORS struct {
	// Origins are those allowed, as https://app.example.com, or *.
	Origins []string `yaml:"origins"`
	// MaxAge is that of a preflight's answer. Default 1h.
	MaxAge time.Duration `yaml:"max_age"`
}

// Tracing is off without an endpoint.
type Tracing struct {
	// Endpoint is a collector that takes OTLP over HTTP; without a path, /v1/traces is added.
	Endpoint string `yaml:"endpoint"`
	// Sample is the share of requests traced where no traceparent of the client decides. Default 0.01.
	Sample float64 `yaml:"sample"`
}

// Log is the gateway's own log, on standard error.
type Log struct {
	// Format is `text` or `json`.
	Format string `yaml:"format"`
	// Level is `debug`, `info`, `warn` or `error`.
	Level string `yaml:"level"`
	// Access writes one line for each request. Default true.
	Access bool `yaml:"access"`
	// SampleSuccess is the share of successful requests that get a line. Default 1.
	SampleSuccess float64 `yaml:"sample_success"`
}

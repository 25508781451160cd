package engine

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"penstock/configs"
)

// fake is a scripted engine's control plane.
type fake struct {
	*httptest.Server
	kind Kind

	mu       sync.Mutex
	dp       int
	boot     int
	kv       int
	running  int // per rank
	waiting  int
	maxRun   int
	requests []float64 // counted per rank
	delay    time.Duration
	slow     map[string]time.Duration // likewise, by path
	lora     string
	owner    Kind // in the list of models; "": kind
	status   int  // of probes; 0: 200
	warming  bool // /health is 503
	model    string
	hits     map[string]int
}

func newFake(t testing.TB, kind Kind, dp int) *fake {
	t.Helper()
	f := &fake{kind: kind, dp: dp, kv: 1000, maxRun: 64, model: "m", requests: make([]float64, dp), hits: map[string]int{}}
	f.Server = httptest.NewServer(f)
	t.Cleanup(f.Close)
	return f
}

func (f *fake) set(change func(*fake)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(f)
}

func (f *fake) hit(path string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.hits[path]
}

func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	delay := max(f.delay, f.slow[r.URL.Path])
	f.mu.Unlock()
	if delay > 0 {
		gone := r.Context().Done()
		if f.Server == nil { // in memory the server takes every client for gone
			gone = nil
		}
		select {
		case <-time.After(delay):
		case <-gone:
			return
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hits[r.URL.Path]++
	if f.status != 0 {
		w.WriteHeader(f.status)
		return
	}
	if f.warming && r.URL.Path == "/health" {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	if body, ok := f.answer(r.URL.Path); ok {
		fmt.Fprint(w, body)
		return
	}
	http.Error(w, `{"detail":"Not Found"}`, http.StatusNotFound)
}

func (f *fake) answer(path string) (string, bool) {
	switch {
	case path == "/v1/models":
		adapter := ""
		if f.lora != "" {
			adapter = fmt.Sprintf(`,{"id":%q,"owned_by":%q,"root":"/lora","parent":%q}`, f.lora, f.kind, f.model)
		}
		return fmt.Sprintf(`{"data":[{"id":%q,"owned_by":%q,"root":"r","max_model_len":8192}%s]}`, f.model, cmp.Or(f.owner, f.kind), adapter), true
	case f.kind == KindSGLang:
		return f.sglang(path)
	case f.kind == KindVLLM:
		return f.vllm(path)
	}
	return "", false
}

func (f *fake) sglang(path string) (string, bool) {
	switch path {
	case "/server_info":
		var states []string
		for range f.dp {
			states = append(states, fmt.Sprintf(`{"effective_max_running_requests_per_dp":%d,"memory_usage":{"token_capacity":%d}}`, f.maxRun, f.kv))
		}
		return fmt.Sprintf(`{"version":"0.5.23","model_path":"r","dp_size":%d,"page_size":16,"random_seed":%d,"internal_states":[%s]}`,
			f.dp, f.boot, strings.Join(states, ",")), true
	case "/v1/loads":
		var loads []string
		for i := range f.dp {
			loads = append(loads, fmt.Sprintf(`{"dp_rank":%d,"num_running_reqs":%d,"num_waiting_reqs":%d,"max_total_num_tokens":%d}`, i, f.running, f.waiting, f.kv))
		}
		return `{"loads":[` + strings.Join(loads, ",") + `]}`, true
	case "/model_info":
		return `{}`, true
	case "/health":
		return "", true
	case "/metrics":
		return f.metrics("sglang:queue_time_seconds_count", "dp_rank"), true
	}
	return "", false
}

func (f *fake) vllm(path string) (string, bool) {
	switch path {
	case "/version":
		return `{"version":"0.32.0"}`, true
	case "/health":
		return "", true
	case "/metrics":
		var b strings.Builder
		fmt.Fprintf(&b, "process_start_time_seconds %d\n", f.boot+1)
		for i := range f.dp {
			fmt.Fprintf(&b, "vllm:num_requests_running{engine=\"%d\"} %d\n", i, f.running)
			fmt.Fprintf(&b, "vllm:num_requests_waiting{engine=\"%d\"} %d\n", i, f.waiting)
			fmt.Fprintf(&b, "vllm:cache_config_info{engine=\"%d\",block_size=\"16\",num_gpu_blocks=\"%d\"} 1\n", i, f.kv/16)
		}
		return b.String() + f.metrics("vllm:request_success_total", "engine"), true
	}
	return "", false
}

func (f *fake) metrics(name, rank string) string {
	var b strings.Builder
	for i, n := range f.requests {
		fmt.Fprintf(&b, "%s{%s=\"%d\"} %g\n", name, rank, i, n)
	}
	return b.String()
}

// quick are settings under which things happen in tens of milliseconds.
func quick(models ...configs.Model) *configs.Config {
	return &configs.Config{
		Models: models,
		Health: configs.Health{
			Interval: 20 * time.Millisecond, Timeout: 50 * time.Millisecond, Unhealthy: 3, Healthy: 1,
			LoadInterval: 20 * time.Millisecond, LoadTimeout: time.Second,
			RefreshInterval: time.Minute, ResolveInterval: 20 * time.Millisecond,
		},
		Breaker: configs.Breaker{
			Failures: 5, Ratio: 0.5, MinRequests: 20,
			Window: 30 * time.Second, Open: 50 * time.Millisecond, Trials: 2,
		},
		Timeouts: configs.Timeouts{Connect: time.Second, EngineIdle: 4 * time.Second, Request: time.Minute, Drain: time.Second},
	}
}

func served(name string, engines ...configs.Engine) configs.Model {
	return configs.Model{Name: name, Engines: engines}
}

func at(f *fake) configs.Engine { return configs.Engine{URL: f.URL} }

// recorder keeps the events.
type recorder struct {
	mu     sync.Mutex
	events []Event
}

func (r *recorder) notify(ev Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, ev)
}

func (r *recorder) count(t EventType) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for _, ev := range r.events {
		if ev.Type == t {
			n++
		}
	}
	return n
}

// startFleet makes a fleet of a configuration and waits until all is known.
func startFleet(t testing.TB, cfg *configs.Config) (*Fleet, *recorder) {
	t.Helper()
	rec := &recorder{}
	f := NewFleet(Options{Notify: rec.notify, Logger: slog.New(slog.NewTextHandler(t.Output(), nil))})
	t.Cleanup(f.Close)
	apply(t, f, cfg)
	return f, rec
}

func apply(t testing.TB, f *Fleet, cfg *configs.Config) {
	t.Helper()
	if err := f.Apply(t.Context(), cfg); err != nil {
		t.Fatalf("Apply: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if err := f.WaitKnown(ctx); err != nil {
		t.Fatalf("WaitKnown: %v", err)
	}
}

// eventually polls a condition up to five seconds.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(5 * time.Second)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-deadline:
			t.Fatalf("not within 5s: %s", what)
		case <-tick.C:
		}
	}
}

func ids(f *Fleet) string {
	var s []string
	for _, r := range f.Replicas() {
		s = append(s, r.ID())
	}
	return strings.Join(s, " ")
}

func replica(t testing.TB, f *Fleet, id string) *Replica {
	t.Helper()
	r, ok := f.Replica(id)
	if !ok {
		t.Fatalf("no replica %q among %s", id, ids(f))
	}
	return r
}

func textLogger(w io.Writer) *slog.Logger { return slog.New(slog.NewTextHandler(w, nil)) }

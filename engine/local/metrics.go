package local

import (
	"strconv"
	"sync"
	"time"

	"github.com/valyala/fasthttp"

	"penstock/engine/local/sched"
)

// rankStats are what a rank's metrics need beside the scheduler's own counts.
type rankStats struct {
	mu         sync.Mutex
	first      histogram // seconds to the first token
	total      histogram
	ended      int64
	rateAt     time.Time
	rateTokens int64
	rate       float64
}

func newRankStats() *rankStats { return &rankStats{} }

// observe is called by the scheduler for each task that ends.
func (r *rankStats) observe(e sched.Ended) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e.FirstToken > 0 {
		r.first.add(e.FirstToken.Seconds())
	}
	if !e.Aborted {
		r.total.add(e.Total.Seconds())
	}
	r.ended++
}

// throughput is the rate of generated tokens between two looks at it.
func (r *rankStats) throughput(now time.Time, tokens int64) float64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if d := now.Sub(r.rateAt).Seconds(); d >= 0.1 {
		if !r.rateAt.IsZero() {
			r.rate = float64(tokens-r.rateTokens) / d
		}
		r.rateAt, r.rateTokens = now, tokens
	}
	return r.rate
}

// buckets of all histograms, in seconds.
var buckets = [...]float64{0.001, 0.005, 0.01, 0.05, 0.1, 0.2, 0.4, 0.8, 1.5, 3, 6, 12, 30, 60, 120, 300}

type histogram struct {
	counts [len(buckets)]int64
	n      int64
	sum    float64
}

func (h *histogram) add(v float64) {
	h.n++
	h.sum += v
	for i := len(buckets) - 1; i >= 0 && v <= buckets[i]; i-- {
		h.counts[i]++
	}
}

// page is a text exposition being written.
type page struct{ b []byte }

func (p *page) family(name, kind, help string) {
	p.b = append(p.b, "# HELP "...)
	p.b = append(p.b, name+" "+help+"\n# TYPE "+name+" "+kind+"\n"...)
}

func (p *page) sample(name, labels string, v float64) {
	p.b = append(p.b, name...)
	if labels != "" {
		p.b = append(p.b, '{')
		p.b = append(p.b, labels...)
		p.b = append(p.b, '}')
	}
	p.b = append(p.b, ' ')
	p.b = strconv.AppendFloat(p.b, v, 'g', -1, 64)
	p.b = append(p.b, '\n')
}

func (p *page) histogram(name, labels string, h *histogram) {
	for i, le := range buckets {
		p.sample(name+"_bucket", labels+`,le="`+strconv.FormatFloat(le, 'g', -1, 64)+`"`, float64(h.counts[i]))
	}
	p.sample(name+"_bucket", labels+`,le="+Inf"`, float64(h.n))
	p.sample(name+"_sum", labels, h.sum)
	p.sample(name+"_count", labels, float64(h.n))
}

// metric is one family: a value for each rank.
type metric struct {
	name, kind, help string
	value            func(l *sched.Load, r *rankStats) float64
}

func (s *Server) serveMetrics(ctx *fasthttp.RequestCtx) error {
	p := &page{}
	if s.opts.Kind == VLLM {
		s.vllmMetrics(p)
	} else {
		s.sglangMetrics(p)
	}
	ctx.SetContentType("text/plain; version=0.0.4; charset=utf-8")
	ctx.SetBody(p.b)
	return nil
}

func (s *Server) families(p *page, loads []sched.Load, list []metric, labels func(rank int) string) {
	for _, m := range list {
		p.family(m.name, m.kind, m.help)
		for i := range loads {
			p.sample(m.name, labels(i), m.value(&loads[i], s.stats[i]))
		}
	}
}

func sglangGauges() []metric {
	return []metric{
		{"sglang:num_running_reqs", "gauge", "The number of running requests.", func(l *sched.Load, _ *rankStats) float64 { return float64(l.Running) }},
		{"sglang:num_queue_reqs", "gauge", "The number of requests in the waiting queue.", func(l *sched.Load, _ *rankStats) float64 { return float64(l.Waiting) }},
		{"sglang:num_used_tokens", "gauge", "The number of used tokens.", func(l *sched.Load, _ *rankStats) float64 { return float64(l.Used) }},
		{"sglang:max_total_num_tokens", "gauge", "The number of tokens of the KV cache.", func(l *sched.Load, _ *rankStats) float64 { return float64(l.Capacity) }},
		{"sglang:token_usage", "gauge", "The share of the KV cache in use.", func(l *sched.Load, _ *rankStats) float64 { return ratio(l.Used, l.Capacity) }},
		{"sglang:kv_evictable_tokens", "gauge", "The cached tokens that no request uses.", func(l *sched.Load, _ *rankStats) float64 { return float64(max(0, l.Stored-l.Used)) }},
		{"sglang:cache_hit_rate", "gauge", "The prefix cache hit rate.", func(l *sched.Load, _ *rankStats) float64 {
			return ratio(int(l.CachedTokens), int(l.PromptTokens))
		}},
		{"sglang:num_retracted_reqs", "gauge", "The number of retracted requests.", func(l *sched.Load, _ *rankStats) float64 { return float64(l.Preempted) }},
		{"sglang:queue_time_seconds_count", "untyped", "The number of requests that have entered the queue.", func(l *sched.Load, r *rankStats) float64 {
			r.mu.Lock()
			defer r.mu.Unlock()
			return float64(r.ended) + float64(l.Running+l.Waiting)
		}},
	}
}

func (s *Server) sglangMetrics(p *page) {
	loads := s.Loads()
	model := "model_name=" + strconv.Quote(s.opts.Model)
	s.families(p, loads, sglangGauges(), func(rank int) string {
		return `dp_rank="` + strconv.Itoa(rank) + `",engine_type="unified",` + model + `,moe_ep_rank="0",pp_rank="0",tp_rank="0"`
	})
	// The rest SGLang counts for the whole server.
	var sum sched.Load
	for _, l := range loads {
		sum.Requests += l.Requests
		sum.Aborted += l.Aborted
		sum.PromptTokens += l.PromptTokens
		sum.CachedTokens += l.CachedTokens
		sum.GeneratedTokens += l.GeneratedTokens
	}
	all := `engine_type="unified",` + model
	for _, c := range []struct {
		name, help, labels string
		v                  int64
	}{
		{"sglang:prompt_tokens_total", "Number of prefill tokens processed.", all, sum.PromptTokens},
		{"sglang:generation_tokens_total", "Number of generation tokens processed.", all, sum.GeneratedTokens},
		{"sglang:cached_tokens_total", "Number of cached prompt tokens.", `cache_source="device",` + all, sum.CachedTokens},
		{"sglang:num_requests_total", "Number of requests processed.", all, sum.Requests},
		{"sglang:num_aborted_requests_total", "Number of requests aborted.", all, sum.Aborted},
	} {
		p.family(c.name, "counter", c.help)
		p.sample(c.name, c.labels, float64(c.v))
	}
	first, total := s.latencies()
	p.family("sglang:time_to_first_token_seconds", "histogram", "Histogram of time to first token in seconds.")
	p.histogram("sglang:time_to_first_token_seconds", all, first)
	p.family("sglang:e2e_request_latency_seconds", "histogram", "Histogram of End-to-end request latency in seconds")
	p.histogram("sglang:e2e_request_latency_seconds", all, total)
}

// latencies adds up those of all ranks.
func (s *Server) latencies() (first, total *histogram) {
	first, total = &histogram{}, &histogram{}
	for _, r := range s.stats {
		r.mu.Lock()
		first.merge(&r.first)
		total.merge(&r.total)
		r.mu.Unlock()
	}
	return first, total
}

func (h *histogram) merge(o *histogram) {
	for i, n := range o.counts {
		h.counts[i] += n
	}
	h.n += o.n
	h.sum += o.sum
}

func vllmFamilies() []metric {
	return []metric{
		{"vllm:num_requests_running", "gauge", "Number of requests in model execution batches.", func(l *sched.Load, _ *rankStats) float64 { return float64(l.Running) }},
		{"vllm:num_requests_waiting", "gauge", "Number of requests waiting to be processed.", func(l *sched.Load, _ *rankStats) float64 { return float64(l.Waiting) }},
		{"vllm:kv_cache_usage_perc", "gauge", "KV-cache usage. 1 means 100 percent usage.", func(l *sched.Load, _ *rankStats) float64 { return ratio(l.Used, l.Capacity) }},
		{"vllm:prefix_cache_queries_total", "counter", "Prefix cache queries, in terms of number of queried tokens.", func(l *sched.Load, _ *rankStats) float64 { return float64(l.PromptTokens) }},
		{"vllm:prefix_cache_hits_total", "counter", "Prefix cache hits, in terms of number of cached tokens.", func(l *sched.Load, _ *rankStats) float64 { return float64(l.CachedTokens) }},
		{"vllm:num_preemptions_total", "counter", "Cumulative number of preemption from the engine.", func(l *sched.Load, _ *rankStats) float64 { return float64(l.Preempted) }},
		{"vllm:prompt_tokens_total", "counter", "Number of prefill tokens processed.", func(l *sched.Load, _ *rankStats) float64 { return float64(l.PromptTokens) }},
		{"vllm:prompt_tokens_cached_total", "counter", "Number of cached prompt tokens.", func(l *sched.Load, _ *rankStats) float64 { return float64(l.CachedTokens) }},
		{"vllm:generation_tokens_total", "counter", "Number of generation tokens processed.", func(l *sched.Load, _ *rankStats) float64 { return float64(l.GeneratedTokens) }},
		{"vllm:request_prefill_kv_computed_tokens_sum", "untyped", "New KV tokens computed during prefill.", func(l *sched.Load, _ *rankStats) float64 { return float64(l.PrefillTokens) }},
	}
}

func (s *Server) vllmMetrics(p *page) {
	loads := s.Loads()
	model := "model_name=" + strconv.Quote(s.opts.Model)
	labels := func(rank int) string { return `engine="` + strconv.Itoa(rank) + `",` + model }
	p.family("process_start_time_seconds", "gauge", "Start time of the process since unix epoch in seconds.")
	p.sample("process_start_time_seconds", "", float64(s.started.UnixMilli())/1e3)
	s.families(p, loads, vllmFamilies(), labels)
	p.family("vllm:request_success_total", "counter", "Count of successfully processed requests.")
	for i := range loads {
		p.sample("vllm:request_success_total", `engine="`+strconv.Itoa(i)+`",finished_reason="length",`+model, float64(loads[i].Requests-loads[i].Aborted))
	}
	p.family("vllm:cache_config_info", "gauge", "Information of the LLMEngine CacheConfig")
	for i, l := range loads {
		p.sample("vllm:cache_config_info", `block_size="`+strconv.Itoa(s.opts.PageSize)+`",enable_prefix_caching="True",engine="`+strconv.Itoa(i)+
			`",kv_cache_size_tokens="`+strconv.Itoa(l.Capacity)+`",num_gpu_blocks="`+strconv.Itoa(l.Capacity/s.opts.PageSize)+`",num_gpu_blocks_override="None"`, 1)
	}
	p.family("vllm:admission_rejections_total", "counter", "Requests rejected at admission.")
	var rejected int64
	for _, l := range loads {
		rejected += l.Rejected
	}
	p.sample("vllm:admission_rejections_total", model+`,reason="max_num_queued_reqs"`, float64(rejected))
	for _, h := range []struct {
		name, help string
		of         func(*rankStats) *histogram
	}{
		{"vllm:time_to_first_token_seconds", "Histogram of time to first token in seconds.", func(r *rankStats) *histogram { return &r.first }},
		{"vllm:e2e_request_latency_seconds", "Histogram of e2e request latency in seconds.", func(r *rankStats) *histogram { return &r.total }},
	} {
		p.family(h.name, "histogram", h.help)
		for i, r := range s.stats {
			r.mu.Lock()
			p.histogram(h.name, labels(i), h.of(r))
			r.mu.Unlock()
		}
	}
}

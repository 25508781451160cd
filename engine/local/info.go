package local

import (
	"encoding/json"
	"time"

	"github.com/valyala/fasthttp"
)

// version is what the engine says of itself, in the manner of both kinds.
const version = "penstock-local"

func (s *Server) serveModels(ctx *fasthttp.RequestCtx) error {
	b := appendString([]byte(`{"object":"list","data":[{"id":`), s.opts.Model)
	b = appendInt(append(b, `,"object":"model","created":`...), s.started.Unix())
	b = appendString(append(b, `,"owned_by":`...), string(s.opts.Kind))
	b = appendString(append(b, `,"root":`...), s.opts.Model)
	b = appendInt(append(b, `,"parent":null,"max_model_len":`...), s.opts.ContextLen)
	if s.opts.Kind == VLLM {
		b = append(b, `,"permission":[]`...)
	}
	answer(ctx, append(b, "}]}"...))
	return nil
}

func (s *Server) serveVersion(ctx *fasthttp.RequestCtx) error {
	answer(ctx, []byte(`{"version":"`+version+`"}`))
	return nil
}

func (s *Server) serveLoad(ctx *fasthttp.RequestCtx) error {
	answer(ctx, append(appendInt([]byte(`{"server_load":`), s.live.len()), '}'))
	return nil
}

// put answers with v as JSON; maps come out with sorted keys.
func put(ctx *fasthttp.RequestCtx, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	answer(ctx, b)
	return nil
}

type fields = map[string]any

func (s *Server) serveLoads(ctx *fasthttp.RequestCtx) error {
	now := time.Now()
	loads := make([]fields, 0, len(s.ranks))
	for i, l := range s.Loads() {
		loads = append(loads, fields{
			"timestamp": float64(now.UnixMicro()) / 1e6, "dp_rank": i,
			"num_running_reqs": l.Running, "num_waiting_reqs": l.Waiting, "num_waiting_uncached_tokens": l.WaitingUncached,
			"num_used_tokens": l.Used, "num_total_tokens": l.Used + l.WaitingUncached,
			"max_total_num_tokens": l.Capacity, "max_running_requests": l.MaxRunning,
			"token_usage": ratio(l.Used, l.Capacity), "gen_throughput": s.stats[i].throughput(now, l.GeneratedTokens),
			"cache_hit_rate": ratio(int(l.CachedTokens), int(l.PromptTokens)), "utilization": ratio(l.Running, l.MaxRunning),
			"total_prefill_uncached_tokens": l.PrefillTokens, "total_prefill_busy_us": l.PrefillBusy.Microseconds(),
			"memory": fields{"token_capacity": l.Capacity},
			"queues": fields{"waiting": l.Waiting, "grammar": 0, "paused": 0, "retracted": 0},
		})
	}
	return put(ctx, fields{"timestamp": now.UTC().Format("2006-01-02T15:04:05.000000-07:00"), "version": version, "loads": loads})
}

func (s *Server) serveGetLoad(ctx *fasthttp.RequestCtx) error {
	list := make([]fields, 0, len(s.ranks))
	for i, l := range s.Loads() {
		list = append(list, fields{
			"dp_rank": i, "num_reqs": l.Running + l.Waiting, "num_waiting_reqs": l.Waiting, "num_tokens": l.Used + l.WaitingUncached,
		})
	}
	return put(ctx, list)
}

func ratio(a, b int) float64 {
	if b == 0 {
		return 0
	}
	return float64(a) / float64(b)
}

// serveServerInfo answers with the keys of SGLang's server info that tools read.
func (s *Server) serveServerInfo(ctx *fasthttp.RequestCtx) error {
	o := &s.opts
	now := time.Now()
	states := make([]fields, 0, len(s.ranks))
	for i, l := range s.Loads() {
		states = append(states, fields{
			"dp_size": o.DP, "page_size": o.PageSize, "max_total_num_tokens": l.Capacity,
			"effective_max_running_requests_per_dp": l.MaxRunning,
			"last_gen_throughput":                   s.stats[i].throughput(now, l.GeneratedTokens),
			"memory_usage":                          fields{"weight": 0.0, "kvcache": 0.0, "token_capacity": l.Capacity, "graph": 0.0},
		})
	}
	queued := any(o.MaxQueued)
	if o.MaxQueued == 0 {
		queued = nil
	}
	return put(ctx, fields{
		"model_path": o.Model, "served_model_name": o.Model, "tokenizer_path": o.Model, "context_length": o.ContextLen,
		"dp_size": o.DP, "tp_size": 1, "page_size": o.PageSize, "chunked_prefill_size": s.profile.Chunk,
		"max_running_requests": o.MaxRunning * o.DP, "max_queued_requests": queued, "max_total_num_tokens": o.KVTokens,
		"max_req_input_len": s.maxInput() - 1, "schedule_policy": "fcfs", "load_balance_method": "round_robin",
		"enable_cache_report": true, "random_seed": s.seed >> 12, "startup_time": fields{"unix": float64(s.started.UnixMicro()) / 1e6},
		"status": "ready", "version": version, "internal_states": states, "kv_events": nil,
		"profile": o.Profile, "time_scale": o.TimeScale,
	})
}

func (s *Server) serveModelInfo(ctx *fasthttp.RequestCtx) error {
	return put(ctx, fields{
		"model_path": s.opts.Model, "served_model_name": s.opts.Model, "tokenizer_path": s.opts.Model, "is_generation": true,
		"preferred_sampling_params": nil, "weight_version": "default", "load_format": "auto", "reasoning_parser": nil,
		"tool_call_parser": nil, "disaggregation_mode": "null", "has_image_understanding": false, "has_audio_understanding": false,
		"model_type": "penstock-ngram", "architectures": []string{"PenstockNGram"},
	})
}

// serveAbort ends requests by rid, a prefix of it, or all.
func (s *Server) serveAbort(ctx *fasthttp.RequestCtx) error {
	var w struct {
		RID string `json:"rid"`
		All bool   `json:"abort_all"`
	}
	if err := json.Unmarshal(ctx.PostBody(), &w); err != nil {
		return jsonError(err)
	}
	if w.RID == "" && !w.All {
		return badRequest("rid", "rid: expected the id of a request, or abort_all.")
	}
	for _, x := range s.live.find(w.RID, w.All) {
		x.abort()
	}
	return nil
}

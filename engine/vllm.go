package engine

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"sync/atomic"

	dto "github.com/prometheus/client_model/go"
)

// vllm reads vLLM servers. Seen: 0.32.0 with one engine and with two ranks.
type vllm struct {
	noMetrics atomic.Bool // /metrics is not there
}

// vllmDefaultRunning is where the running limit starts, since vLLM does not
// tell --max-num-seqs.
const vllmDefaultRunning = 256

func (v *vllm) discover(ctx context.Context, c *client) (*Facts, error) {
	served, err := readModels(ctx, c)
	if err != nil {
		return nil, err
	}
	f := &Facts{Kind: KindVLLM, Tongue: KindVLLM, Models: modelInfos(served), owner: ownerKind(served)}
	if body, err := c.get(ctx, "/version"); err == nil {
		var answer struct {
			Version string `json:"version"`
		}
		if json.Unmarshal(body, &answer) == nil {
			f.Version = answer.Version
		}
	} else if !notThere(err) {
		return nil, err
	}
	body, err := c.get(ctx, "/metrics")
	v.noMetrics.Store(notThere(err))
	switch {
	case notThere(err):
		f.Ranks = []RankFacts{{Capacity: Capacity{MaxRunning: vllmDefaultRunning, RunningBy: "learned"}}}
		return f, nil
	case err != nil:
		return nil, err
	}
	f.Ranks, f.Boot, err = parseVLLMRanks(body)
	return f, err
}

// parseVLLMRanks reads the ranks and their sizes; the engine label is a rank's
// global number.
func parseVLLMRanks(body []byte) ([]RankFacts, string, error) {
	fs, err := parseMetrics(body, "vllm:cache_config_info", "vllm:num_requests_running",
		"vllm:gpu_cache_usage_perc", "vllm:kv_cache_usage_perc",
		"vllm:prompt_tokens_created", "process_start_time_seconds")
	if err != nil {
		return nil, "", err
	}
	running := fs.perRank("vllm:num_requests_running", "engine")
	for rank := range fs.perRank("vllm:cache_config_info", "engine") {
		running[rank] += 0 // before its first request a rank has this sample only
	}
	if len(running) == 0 { // nothing was ever registered, or it is another's metrics
		running = map[int]float64{0: 0}
	}
	if err := boundRanks(len(running)); err != nil {
		return nil, "", err
	}
	ranks := make([]RankFacts, 0, len(running))
	for rank := range running {
		ranks = append(ranks, RankFacts{Rank: rank})
	}
	slices.SortFunc(ranks, func(a, b RankFacts) int { return a.Rank - b.Rank })
	for i := range ranks {
		ranks[i].Capacity = vllmCapacity(fs["vllm:cache_config_info"], ranks[i].Rank, len(ranks))
	}
	return ranks, vllmBoot(fs), nil
}

// vllmCapacity reads one rank's cache_config_info, whose labels hold the configuration.
func vllmCapacity(info *dto.MetricFamily, rank, ranks int) Capacity {
	c := Capacity{MaxRunning: vllmDefaultRunning, RunningBy: "learned"}
	var m *dto.Metric
	for _, candidate := range info.GetMetric() {
		if m == nil || rankOf(candidate, "engine") == rank {
			m = candidate
		}
	}
	if m == nil {
		return c
	}
	c.PageSize = intLabel(m, "block_size")
	blocks := intLabel(m, "num_gpu_blocks")
	if override := intLabel(m, "num_gpu_blocks_override"); override > 0 && blocks == override*ranks {
		blocks = override // each rank then shows the sum over all ranks
	}
	c.KVTokens = firstPositive(intLabel(m, "kv_cache_size_tokens"), blocks*c.PageSize)
	return c
}

// vllmBoot tells one start from another. With several API servers neither
// metric is there; falling counters then show a restart.
func vllmBoot(fs families) string {
	for _, name := range [...]string{"process_start_time_seconds", "vllm:prompt_tokens_created"} {
		if ms := fs[name].GetMetric(); len(ms) > 0 {
			return strconv.FormatFloat(sample(ms[0]), 'f', -1, 64)
		}
	}
	return ""
}

func intLabel(m *dto.Metric, name string) int {
	n, err := strconv.Atoi(label(m, name))
	if err != nil {
		return 0 // "None"
	}
	return n
}

func (v *vllm) load(ctx context.Context, c *client) ([]rankLoad, error) {
	if v.noMetrics.Load() {
		return vllmServerLoad(ctx, c)
	}
	body, err := c.get(ctx, "/metrics")
	if err != nil {
		return nil, err
	}
	return parseVLLMLoad(body)
}

func parseVLLMLoad(body []byte) ([]rankLoad, error) {
	fs, err := parseMetrics(body, "vllm:num_requests_running", "vllm:num_requests_waiting",
		"vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "vllm:cache_config_info",
		"vllm:request_success_total", "vllm:request_prompt_tokens_count",
		"vllm:request_prefill_kv_computed_tokens_sum")
	if err != nil {
		return nil, err
	}
	running := fs.perRank("vllm:num_requests_running", "engine")
	if len(running) == 0 {
		return nil, errNoLoad
	}
	if err := boundRanks(len(running)); err != nil {
		return nil, err
	}
	waiting := fs.perRank("vllm:num_requests_waiting", "engine")
	usage := fs.perRank("vllm:kv_cache_usage_perc", "engine")
	if len(usage) == 0 {
		usage = fs.perRank("vllm:gpu_cache_usage_perc", "engine")
	}
	requests := fs.perRank("vllm:request_success_total", "engine")
	tokens := fs.perRank("vllm:request_prefill_kv_computed_tokens_sum", "engine")
	loads := make([]rankLoad, 0, len(running))
	for rank, n := range running {
		r := rankLoad{
			rank: rank, requests: orMissing(requests, rank),
			prefillTokens: orMissing(tokens, rank), prefillBusy: -1,
			capacity: vllmCapacity(fs["vllm:cache_config_info"], rank, len(running)),
		}
		r.Running, r.Waiting = int(n), int(waiting[rank])
		r.WaitingUncached, r.UsedTokens = -1, -1
		if u, ok := usage[rank]; ok && r.capacity.KVTokens > 0 {
			r.UsedTokens = int(u * float64(r.capacity.KVTokens))
		}
		loads = append(loads, r)
	}
	sortLoads(loads)
	return loads, nil
}

// vllmServerLoad reads /load, which is there with --enable-server-load-tracking
// and counts the requests of the whole server.
func vllmServerLoad(ctx context.Context, c *client) ([]rankLoad, error) {
	body, err := c.get(ctx, "/load")
	if err != nil {
		if notThere(err) {
			return nil, errNoLoad
		}
		return nil, err
	}
	var answer struct {
		Load *int `json:"server_load"`
	}
	if err := json.Unmarshal(body, &answer); err != nil || answer.Load == nil {
		return nil, fmt.Errorf("GET /load: no server_load in %s", firstLine(body, 100))
	}
	r := rankLoad{requests: -1, prefillTokens: -1, prefillBusy: -1}
	r.Running, r.WaitingUncached, r.UsedTokens = *answer.Load, -1, -1
	return []rankLoad{r}, nil
}

// probe asks /health, which in vLLM looks whether the engine's processes are
// alive and runs nothing.
func (v *vllm) probe(ctx context.Context, c *client) error {
	_, err := c.get(ctx, "/health")
	return err
}

func (v *vllm) rankCounters(ctx context.Context, c *client) (map[int]float64, error) {
	body, err := c.get(ctx, "/metrics")
	if err != nil {
		return nil, err
	}
	fs, err := parseMetrics(body, "vllm:request_success_total")
	if err != nil {
		return nil, err
	}
	return fs.perRank("vllm:request_success_total", "engine"), nil
}

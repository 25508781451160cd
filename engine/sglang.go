package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"net/http"
	"slices"
	"strconv"
	"sync/atomic"
)

// sglang reads SGLang servers. Seen: 0.5.6 with DP attention, 0.5.22, 0.5.23.
type sglang struct {
	loadPath  atomic.Int32 // the first of sglangLoadPaths that answered
	probePath atomic.Int32 // the first of sglangProbePaths that answered
}

// The newer endpoints come first; on 404 the next is tried.
var (
	sglangInfoPaths  = [...]string{"/server_info", "/get_server_info"}
	sglangLoadPaths  = [...]string{"/v1/loads", "/get_load", "/metrics"}
	sglangProbePaths = [...]string{"/model_info", "/get_model_info", "/v1/models"}
)

// serverInfo is the part of SGLang's server info that matters here; a real one
// has 500 keys and repeats most of them for each rank.
type serverInfo struct {
	Version       string          `json:"version"`
	ServedModel   string          `json:"served_model_name"`
	ModelPath     string          `json:"model_path"`
	ContextLength number          `json:"context_length"`
	DPSize        number          `json:"dp_size"`
	PageSize      number          `json:"page_size"`
	MaxRunning    number          `json:"max_running_requests"` // of all ranks
	MaxTokens     number          `json:"max_total_num_tokens"` // of one rank
	States        []internalState `json:"internal_states"`

	// What differs from one start to the next.
	RandomSeed    json.RawMessage `json:"random_seed"`
	StartupTime   json.RawMessage `json:"startup_time"`
	SchedulerPIDs json.RawMessage `json:"scheduler_pids"`
}

// internalState is one rank's scheduler.
type internalState struct {
	Effective number `json:"effective_max_running_requests_per_dp"`
	PageSize  number `json:"page_size"`
	MaxTokens number `json:"max_total_num_tokens"`
	Memory    struct {
		TokenCapacity number `json:"token_capacity"`
	} `json:"memory_usage"`
}

func (s *sglang) discover(ctx context.Context, c *client) (*Facts, error) {
	info, err := sglangInfo(ctx, c)
	if err != nil {
		return nil, err
	}
	if err := boundRanks(int(info.DPSize)); err != nil {
		return nil, err
	}
	served, err := readModels(ctx, c)
	if err != nil && !notThere(err) {
		return nil, err
	}
	s.loadPath.Store(0) // another version may answer there now
	s.probePath.Store(0)
	f := info.facts(modelInfos(served))
	f.owner = ownerKind(served)
	return f, nil
}

func sglangInfo(ctx context.Context, c *client) (*serverInfo, error) {
	body, _, err := firstThere(ctx, c, sglangInfoPaths[:], 0)
	if err != nil {
		return nil, err
	}
	return parseServerInfo(body)
}

func parseServerInfo(body []byte) (*serverInfo, error) {
	var info serverInfo
	if err := decode(body, &info); err != nil {
		return nil, fmt.Errorf("server info: %w", err)
	}
	if info.States == nil && info.MaxTokens == 0 && info.ModelPath == "" {
		return nil, fmt.Errorf("server info: neither internal_states nor max_total_num_tokens in it, so it is not SGLang's")
	}
	return &info, nil
}

func (info *serverInfo) facts(models []ModelInfo) *Facts {
	dp := max(int(info.DPSize), 1)
	if len(models) == 0 {
		name := info.ServedModel
		if name == "" {
			name = info.ModelPath
		}
		models = []ModelInfo{{ID: name, Root: info.ModelPath, MaxModelLen: int(info.ContextLength)}}
	}
	f := &Facts{Kind: KindSGLang, Tongue: KindSGLang, Version: info.Version, Models: models, Boot: info.boot()}
	for rank := range dp {
		f.Ranks = append(f.Ranks, RankFacts{Rank: rank, Capacity: info.capacity(rank, dp)})
	}
	return f
}

// capacity is one rank's. Older servers describe one rank only, or none: the
// others are like it.
func (info *serverInfo) capacity(rank, dp int) Capacity {
	var st internalState
	if n := len(info.States); n > 0 {
		st = info.States[min(rank, n-1)]
	}
	c := Capacity{
		KVTokens:   firstPositive(st.Memory.TokenCapacity, st.MaxTokens, info.MaxTokens),
		PageSize:   firstPositive(st.PageSize, info.PageSize, 1),
		MaxRunning: firstPositive(st.Effective, info.MaxRunning/number(dp)),
	}
	if c.MaxRunning > 0 {
		c.RunningBy = "engine"
	}
	return c
}

// boot tells one start of the process from another.
func (info *serverInfo) boot() string {
	if len(info.StartupTime) == 0 && len(info.SchedulerPIDs) == 0 && len(info.RandomSeed) == 0 {
		return ""
	}
	h := fnv.New64a()
	for _, part := range [...]json.RawMessage{info.RandomSeed, info.StartupTime, info.SchedulerPIDs} {
		_, _ = h.Write(part)
		_, _ = h.Write([]byte{0})
	}
	return strconv.FormatUint(h.Sum64(), 16)
}

func (s *sglang) load(ctx context.Context, c *client) ([]rankLoad, error) {
	body, i, err := firstThere(ctx, c, sglangLoadPaths[:], int(s.loadPath.Load()))
	if err != nil {
		if notThere(err) {
			return nil, errNoLoad
		}
		return nil, err
	}
	s.loadPath.Store(int32(i))
	switch sglangLoadPaths[i] {
	case "/v1/loads":
		return parseLoads(body)
	case "/get_load":
		return parseGetLoad(body)
	default:
		return parseSGLangMetrics(body)
	}
}

// parseLoads reads /v1/loads.
func parseLoads(body []byte) ([]rankLoad, error) {
	var answer struct {
		Loads []struct {
			Rank            number   `json:"dp_rank"`
			Running         number   `json:"num_running_reqs"`
			Waiting         number   `json:"num_waiting_reqs"`
			WaitingUncached *number  `json:"num_waiting_uncached_tokens"`
			Used            *number  `json:"num_used_tokens"`
			MaxTokens       number   `json:"max_total_num_tokens"`
			MaxRunning      number   `json:"max_running_requests"`
			PrefillTokens   *float64 `json:"total_prefill_uncached_tokens"`
			PrefillBusyUS   *float64 `json:"total_prefill_busy_us"`
		} `json:"loads"`
	}
	if err := decode(body, &answer); err != nil {
		return nil, fmt.Errorf("GET /v1/loads: %w", err)
	}
	loads := make([]rankLoad, 0, len(answer.Loads))
	for _, l := range answer.Loads {
		r := rankLoad{rank: int(l.Rank), requests: -1, prefillTokens: -1, prefillBusy: -1}
		r.Running, r.Waiting = int(l.Running), int(l.Waiting)
		r.WaitingUncached, r.UsedTokens = orUnknown(l.WaitingUncached), orUnknown(l.Used)
		if l.PrefillTokens != nil && l.PrefillBusyUS != nil {
			r.prefillTokens, r.prefillBusy = *l.PrefillTokens, *l.PrefillBusyUS/1e6
		}
		r.capacity = Capacity{KVTokens: int(l.MaxTokens), MaxRunning: int(l.MaxRunning)}
		loads = append(loads, r)
	}
	return loads, nil
}

// parseGetLoad reads the older /get_load, whose num_reqs counts the waiting too.
func parseGetLoad(body []byte) ([]rankLoad, error) {
	type entry struct {
		Rank    number  `json:"dp_rank"`
		Reqs    number  `json:"num_reqs"`
		Waiting number  `json:"num_waiting_reqs"`
		Tokens  *number `json:"num_tokens"`
	}
	var list []entry
	if err := decode(body, &list); err != nil {
		var one entry // older still: a single object
		if decode(body, &one) != nil {
			return nil, fmt.Errorf("GET /get_load: %w", err)
		}
		list = []entry{one}
	}
	loads := make([]rankLoad, 0, len(list))
	for _, e := range list {
		r := rankLoad{rank: int(e.Rank), requests: -1, prefillTokens: -1, prefillBusy: -1}
		r.Running, r.Waiting = int(max(e.Reqs-e.Waiting, 0)), int(e.Waiting)
		r.WaitingUncached, r.UsedTokens = -1, orUnknown(e.Tokens)
		loads = append(loads, r)
	}
	return loads, nil
}

// parseSGLangMetrics reads the gauges of /metrics, which SGLang has with
// --enable-metrics only.
func parseSGLangMetrics(body []byte) ([]rankLoad, error) {
	fs, err := parseMetrics(body, "sglang:num_running_reqs", "sglang:num_queue_reqs",
		"sglang:num_used_tokens", "sglang:queue_time_seconds_count")
	if err != nil {
		return nil, err
	}
	if len(fs) == 0 {
		return nil, errNoLoad
	}
	used := fs.perRankMax("sglang:num_used_tokens", "dp_rank")
	requests := fs.perRankMax("sglang:queue_time_seconds_count", "dp_rank")
	waiting := fs.perRankMax("sglang:num_queue_reqs", "dp_rank")
	var loads []rankLoad
	for rank, running := range fs.perRankMax("sglang:num_running_reqs", "dp_rank") {
		r := rankLoad{rank: rank, requests: orMissing(requests, rank), prefillTokens: -1, prefillBusy: -1}
		r.Running, r.Waiting = int(running), int(waiting[rank])
		r.WaitingUncached, r.UsedTokens = -1, int(orMissing(used, rank))
		loads = append(loads, r)
	}
	sortLoads(loads)
	return loads, nil
}

func (s *sglang) probe(ctx context.Context, c *client) error {
	_, i, err := firstThere(ctx, c, sglangProbePaths[:], int(s.probePath.Load()))
	if err == nil {
		s.probePath.Store(int32(i))
	}
	return err
}

// ready says whether a server that has just begun to listen takes requests:
// /health is 503 until its warm-up is over. It runs a generation, so it is not
// asked again, and that it is slow means nothing.
func (s *sglang) ready(ctx context.Context, c *client) error {
	_, err := c.get(ctx, "/health")
	if se, ok := errors.AsType[*statusError](err); ok && se.status == http.StatusServiceUnavailable {
		return err
	}
	return nil
}

// rankCounters reads how many requests each rank has taken in.
func (s *sglang) rankCounters(ctx context.Context, c *client) (map[int]float64, error) {
	body, err := c.get(ctx, "/metrics")
	if err != nil {
		return nil, err
	}
	fs, err := parseMetrics(body, "sglang:queue_time_seconds_count")
	if err != nil {
		return nil, err
	}
	return fs.perRankMax("sglang:queue_time_seconds_count", "dp_rank"), nil
}

// firstThere gets the first of several paths that the engine has, and its index.
func firstThere(ctx context.Context, c *client, paths []string, from int) ([]byte, int, error) {
	var err error
	for i := from; i < len(paths); i++ {
		var body []byte
		if body, err = c.get(ctx, paths[i]); err == nil {
			return body, i, nil
		}
		if !notThere(err) {
			return nil, i, err
		}
	}
	return nil, len(paths), err
}

func sortLoads(loads []rankLoad) {
	slices.SortFunc(loads, func(a, b rankLoad) int { return a.rank - b.rank })
}

func firstPositive[N int | number](ns ...N) int {
	for _, n := range ns {
		if n > 0 {
			return int(n)
		}
	}
	return 0
}

func orUnknown(p *number) int {
	if p == nil {
		return -1
	}
	return int(*p)
}

func orMissing(m map[int]float64, rank int) float64 {
	if v, ok := m[rank]; ok {
		return v
	}
	return -1
}

package bench

import (
	"encoding/json"
	"time"
)

// serving is one run in the form of SGLang's bench_serving.
type serving struct {
	Tag             *string `json:"tag"`
	Backend         string  `json:"backend"`
	Dataset         string  `json:"dataset_name"`
	RequestRate     any     `json:"request_rate"` // "inf" or requests/s
	MaxConcurrency  *int    `json:"max_concurrency"`
	ShareGPT        *int    `json:"sharegpt_output_len"`
	InputLen        int     `json:"random_input_len"`
	OutputLen       int     `json:"random_output_len"`
	RangeRatio      float64 `json:"random_range_ratio"`
	Duration        float64 `json:"duration"`
	Completed       int     `json:"completed"`
	InputTokens     int     `json:"total_input_tokens"`
	InputText       int     `json:"total_input_text_tokens"`
	InputVision     int     `json:"total_input_vision_tokens"`
	OutputTokens    int     `json:"total_output_tokens"`
	Retokenized     *int    `json:"total_output_tokens_retokenized"` // null: there is no tokenizer here
	RequestTput     float64 `json:"request_throughput"`
	InputTput       float64 `json:"input_throughput"`
	OutputTput      float64 `json:"output_throughput"`
	TotalTput       float64 `json:"total_throughput"`
	MeanE2E         float64 `json:"mean_e2e_latency_ms"`
	MedianE2E       float64 `json:"median_e2e_latency_ms"`
	StdE2E          float64 `json:"std_e2e_latency_ms"`
	P90E2E          float64 `json:"p90_e2e_latency_ms"`
	P95E2E          float64 `json:"p95_e2e_latency_ms"`
	P99E2E          float64 `json:"p99_e2e_latency_ms"`
	MeanTTFT        float64 `json:"mean_ttft_ms"`
	MedianTTFT      float64 `json:"median_ttft_ms"`
	StdTTFT         float64 `json:"std_ttft_ms"`
	P90TTFT         float64 `json:"p90_ttft_ms"`
	P95TTFT         float64 `json:"p95_ttft_ms"`
	P99TTFT         float64 `json:"p99_ttft_ms"`
	MeanTPOT        float64 `json:"mean_tpot_ms"`
	MedianTPOT      float64 `json:"median_tpot_ms"`
	StdTPOT         float64 `json:"std_tpot_ms"`
	P90TPOT         float64 `json:"p90_tpot_ms"`
	P95TPOT         float64 `json:"p95_tpot_ms"`
	P99TPOT         float64 `json:"p99_tpot_ms"`
	MeanITL         float64 `json:"mean_itl_ms"`
	MedianITL       float64 `json:"median_itl_ms"`
	StdITL          float64 `json:"std_itl_ms"`
	P90ITL          float64 `json:"p90_itl_ms"`
	P95ITL          float64 `json:"p95_itl_ms"`
	P99ITL          float64 `json:"p99_itl_ms"`
	Concurrency     float64 `json:"concurrency"`
	AcceptLength    *int    `json:"accept_length"`
	MaxOutputTokens float64 `json:"max_output_tokens_per_s"`
	MaxConcurrent   int     `json:"max_concurrent_requests"`

	Errors     int             `json:"errors"`
	Kinds      map[string]int  `json:"error_kinds,omitempty"`
	ServerInfo json.RawMessage `json:"server_info"`
}

// servingOf is one run in that form; its tag is endpoint and phase.
func servingOf(r *result) serving {
	row := rowOf(r)
	p := r.phase
	tag := r.endpoint.Name + "/" + p.Name
	v := serving{
		Tag: &tag, Backend: r.endpoint.backend, Dataset: "random", RequestRate: "inf", InputLen: p.Input, OutputLen: p.Output, RangeRatio: 1,
		Duration: r.wall.Seconds(), Completed: row.Completed, Errors: row.Errors, Kinds: row.Kinds, ServerInfo: r.endpoint.info,
	}
	if p.Rate > 0 {
		v.RequestRate = p.Rate
	}
	if p.Batch > 0 {
		v.MaxConcurrency = &p.Batch
	}
	if p.Trace != "" {
		v.Dataset = "trace"
	}
	var good []*sample
	var busy time.Duration
	for _, s := range r.samples {
		if s.kind == "" {
			good = append(good, s)
			v.InputTokens += s.in
			v.OutputTokens += s.out
			busy += s.latency
		}
	}
	v.InputText = v.InputTokens
	if v.Duration > 0 {
		v.RequestTput = float64(v.Completed) / v.Duration
		v.InputTput, v.OutputTput = float64(v.InputTokens)/v.Duration, float64(v.OutputTokens)/v.Duration
		v.TotalTput, v.Concurrency = v.InputTput+v.OutputTput, busy.Seconds()/v.Duration
	}
	v.times(good)
	v.MaxOutputTokens, v.MaxConcurrent = peaks(good, r.start)
	return v
}

func (v *serving) times(good []*sample) {
	for _, f := range []struct {
		of  func(*sample) []time.Duration
		out [6]*float64
	}{
		{latency, [6]*float64{&v.MeanE2E, &v.MedianE2E, &v.StdE2E, &v.P90E2E, &v.P95E2E, &v.P99E2E}},
		{ttft, [6]*float64{&v.MeanTTFT, &v.MedianTTFT, &v.StdTTFT, &v.P90TTFT, &v.P95TTFT, &v.P99TTFT}},
		{tpot, [6]*float64{&v.MeanTPOT, &v.MedianTPOT, &v.StdTPOT, &v.P90TPOT, &v.P95TPOT, &v.P99TPOT}},
		{gaps, [6]*float64{&v.MeanITL, &v.MedianITL, &v.StdITL, &v.P90ITL, &v.P95ITL, &v.P99ITL}},
	} {
		s := seconds(good, f.of)
		for i, x := range []float64{s.mean(), s.median(), s.deviation(), s.at(0.90), s.at(0.95), s.at(0.99)} {
			*f.out[i] = 1000 * x
		}
	}
}

// peaks are the most events that came in any whole second from the start, and
// the most requests that were under way at some time in one, as bench_serving
// counts them.
func peaks(good []*sample, start time.Time) (tokens float64, requests int) {
	second := func(t time.Time) int { return max(0, int(t.Sub(start)/time.Second)) }
	perSecond, active := map[int]int{}, map[int]int{}
	for _, s := range good {
		for i := second(s.start); i <= second(s.start.Add(s.latency)); i++ {
			active[i]++
		}
		if s.ttft == 0 {
			continue
		}
		t := s.start.Add(s.ttft)
		perSecond[second(t)]++
		for _, g := range s.gaps {
			t = t.Add(g)
			perSecond[second(t)]++
		}
	}
	most := 0
	for i, n := range active {
		requests = max(requests, n)
		most = max(most, perSecond[i])
	}
	return float64(most), requests
}

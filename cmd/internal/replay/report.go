package replay

import (
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
)

// Result is what a policy did.
type Result struct {
	Policy           string  `json:"policy"`
	Requests         int     `json:"requests"`
	HitRate          float64 `json:"hit_rate"`          // prompt tokens from cache, share
	Capture          float64 `json:"capture"`           // hit rate over that of one infinite cache
	TTFTMean         float64 `json:"ttft_mean_ms"`      // from arrival, queues included
	TTFTP50          float64 `json:"ttft_p50_ms"`       //
	TTFTP90          float64 `json:"ttft_p90_ms"`       //
	TTFTP99          float64 `json:"ttft_p99_ms"`       //
	TPOTP50          float64 `json:"tpot_p50_ms"`       // between output tokens
	TPOTP99          float64 `json:"tpot_p99_ms"`       //
	Hotspot          float64 `json:"hotspot"`           // replicas × greatest share of requests
	PrefillImbalance float64 `json:"prefill_imbalance"` // greatest over mean of computed prompt tokens
	Regret           float64 `json:"regret_tokens"`     // longest match anywhere less the chosen one's, mean
	Failed           int     `json:"failed,omitempty"`  // over HTTP only
}

// samples are the measurements of one run.
type samples struct {
	ttft, tpot []float64
	hit, total int
	answered   int
}

func (s *samples) first(r *request) {
	s.ttft = append(s.ttft, r.first-r.at)
	s.answered++
	s.hit += r.hit
	s.total += r.row.Input
}

func (s *samples) done(r *request, now float64) {
	if r.row.Output > 1 {
		s.tpot = append(s.tpot, (now-r.first)/float64(r.row.Output-1))
	}
}

// result turns them into figures; counts and computed are for each replica.
func (s *samples) result(policy string, best float64, served, computed []int) Result {
	slices.Sort(s.ttft)
	slices.Sort(s.tpot)
	hit := float64(s.hit) / float64(max(1, s.total))
	r := Result{
		Policy: policy, Requests: s.answered, HitRate: hit, TTFTMean: mean(s.ttft),
		TTFTP50: at(s.ttft, 0.5), TTFTP90: at(s.ttft, 0.9), TTFTP99: at(s.ttft, 0.99),
		TPOTP50: at(s.tpot, 0.5), TPOTP99: at(s.tpot, 0.99),
		Hotspot: skew(served), PrefillImbalance: skew(computed),
	}
	if best > 0 {
		r.Capture = hit / best
	}
	return r
}

func (s *sim) result(policy string) Result {
	var served, computed []int
	for _, e := range s.engines {
		served, computed = append(served, e.served), append(computed, e.computed)
	}
	r := s.out.result(policy, s.trace.best(), served, computed)
	r.Regret = float64(s.regret) / float64(max(1, r.Requests))
	return r
}

// at is the p-quantile of sorted values.
func at(v []float64, p float64) float64 {
	if len(v) == 0 {
		return 0
	}
	return v[min(len(v)-1, int(p*float64(len(v))))]
}

func mean(v []float64) float64 {
	sum := 0.0
	for _, x := range v {
		sum += x
	}
	return sum / float64(max(1, len(v)))
}

// skew is the greatest over the mean.
func skew(v []int) float64 {
	sum := 0
	for _, x := range v {
		sum += x
	}
	if sum == 0 {
		return 0
	}
	return float64(slices.Max(v)*len(v)) / float64(sum)
}

// median takes each figure's median over several runs of one policy.
func median(runs []Result) Result {
	m := runs[0]
	for _, f := range []func(*Result) *float64{
		func(r *Result) *float64 { return &r.HitRate }, func(r *Result) *float64 { return &r.Capture },
		func(r *Result) *float64 { return &r.TTFTMean }, func(r *Result) *float64 { return &r.TTFTP50 },
		func(r *Result) *float64 { return &r.TTFTP90 }, func(r *Result) *float64 { return &r.TTFTP99 },
		func(r *Result) *float64 { return &r.TPOTP50 }, func(r *Result) *float64 { return &r.TPOTP99 },
		func(r *Result) *float64 { return &r.Hotspot }, func(r *Result) *float64 { return &r.PrefillImbalance },
		func(r *Result) *float64 { return &r.Regret },
	} {
		var values []float64
		for i := range runs {
			values = append(values, *f(&runs[i]))
		}
		slices.Sort(values)
		*f(&m) = values[len(values)/2]
	}
	return m
}

// table writes the results for people.
func table(w io.Writer, results []Result) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "policy\trequests\thit %\tcapture\tTTFT mean\tp50\tp90\tp99 ms\tTPOT p50\tp99 ms\thotspot\timbalance\tregret\t")
	for _, r := range results {
		fmt.Fprintf(t, "%s\t%d\t%.1f\t%.2f\t%.0f\t%.0f\t%.0f\t%.0f\t%.1f\t%.1f\t%.2f\t%.2f\t%.0f\t\n",
			r.Policy, r.Requests, 100*r.HitRate, r.Capture, r.TTFTMean, r.TTFTP50, r.TTFTP90, r.TTFTP99,
			r.TPOTP50, r.TPOTP99, r.Hotspot, r.PrefillImbalance, r.Regret)
	}
	return t.Flush()
}

package bench

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"time"
)

// Row holds the figures of one phase on one endpoint, times in seconds. The
// first fields have the names of rows made by hand before this command was.
// With several runs each figure is the median of the runs'; requests, errors
// and tokens are their sums.
type Row struct {
	Phase     string         `json:"phase"`
	Batch     int            `json:"batch_size"`
	Input     int            `json:"input_len"`
	Output    int            `json:"output_len"`
	Completed int            `json:"completed"`
	Errors    int            `json:"errors"`
	Wall      float64        `json:"wall_sec"`
	LatMed    float64        `json:"lat_med,omitempty"`
	LatP99    float64        `json:"lat_p99,omitempty"`
	TTFTMed   float64        `json:"ttft_med,omitempty"`
	TTFTP99   float64        `json:"ttft_p99,omitempty"`
	TPOTMed   float64        `json:"tpot_med,omitempty"`
	InTput    float64        `json:"in_tput,omitempty"`
	OutTput   float64        `json:"out_tput,omitempty"`
	Kinds     map[string]int `json:"error_kinds,omitempty"`

	TPOTP99  float64       `json:"tpot_p99,omitempty"`
	ITLMed   float64       `json:"itl_med,omitempty"` // between two events that bear text
	ITLP99   float64       `json:"itl_p99,omitempty"`
	ReqTput  float64       `json:"req_tput,omitempty"` // completed requests a second
	Hung     int           `json:"hung"`               // given up after silence or time-out
	Rate     float64       `json:"request_rate,omitempty"`
	LateP99  float64       `json:"late_p99,omitempty"`    // how late requests of a rate were sent
	InTokens float64       `json:"in_tokens,omitempty"`   // prompt tokens of a completed request, mean
	Tokens   float64       `json:"out_tokens,omitempty"`  // answer tokens of a completed request, mean
	Cached   float64       `json:"cached_tput,omitempty"` // cached prompt tokens a second
	Counted  bool          `json:"counted,omitempty"`     // the endpoint reports no usage: tokens are events
	Refusals []refusal     `json:"error_details,omitempty"`
	Runs     int           `json:"runs"`
	Started  time.Time     `json:"started,omitzero"`
	Model    string        `json:"model,omitempty"`
	duration time.Duration // over all runs
}

// refusal is one kind of error and what came with it.
type refusal struct {
	Kind    string  `json:"kind"`
	Code    string  `json:"code,omitempty"`
	Message string  `json:"message,omitempty"` // the first one's
	Count   int     `json:"count"`
	Told    int     `json:"with_retry_after,omitempty"`
	WaitMed float64 `json:"retry_after_med,omitempty"` // s
	WaitMax float64 `json:"retry_after_max,omitempty"`
	TookMed float64 `json:"took_med,omitempty"` // until the error came, s
	TookMax float64 `json:"took_max,omitempty"`
}

// rowOf sums up one run.
func rowOf(r *result) Row {
	p := r.phase
	row := Row{
		Phase: p.Name, Batch: cmp.Or(p.Batch, p.requests(), len(r.samples)), Input: p.Input, Output: p.Output, Rate: p.Rate, Runs: 1,
		Wall: round(r.wall.Seconds(), 3), Started: r.start.UTC().Truncate(time.Second), Model: r.endpoint.Model, duration: r.wall,
	}
	var good []*sample
	var in, out, cached int
	for _, s := range r.samples {
		if s.kind != "" {
			continue
		}
		good = append(good, s)
		in, out, cached = in+s.in, out+s.out, cached+s.cached
		row.Counted = row.Counted || !s.reported
	}
	row.Completed, row.Errors = len(good), len(r.samples)-len(good)
	row.times(good)
	row.LateP99 = round(seconds(r.samples, func(s *sample) []time.Duration { return positive(s.late) }).at(0.99), 4)
	if wall := r.wall.Seconds(); wall > 0 && len(good) > 0 {
		n := float64(len(good))
		row.InTput, row.OutTput = round(float64(in)/wall, 1), round(float64(out)/wall, 1)
		row.ReqTput, row.Cached = round(n/wall, 3), round(float64(cached)/wall, 1)
		row.InTokens, row.Tokens = round(float64(in)/n, 1), round(float64(out)/n, 1)
	}
	if p.Trace != "" { // lengths of its own: their mean
		row.Input, row.Output = int(row.InTokens), int(row.Tokens)
	}
	row.blame(r.samples)
	return row
}

func (row *Row) times(good []*sample) {
	for _, f := range []struct {
		of       func(*sample) []time.Duration
		med, p99 *float64
	}{
		{latency, &row.LatMed, &row.LatP99},
		{ttft, &row.TTFTMed, &row.TTFTP99},
		{tpot, &row.TPOTMed, &row.TPOTP99},
		{gaps, &row.ITLMed, &row.ITLP99},
	} {
		v := seconds(good, f.of)
		*f.med, *f.p99 = round(v.median(), 7), round(v.at(0.99), 7) // an instant engine takes microseconds, which are no 0
	}
}

// blame counts errors by kind, and the endpoint's own code for them.
func (row *Row) blame(samples []*sample) {
	type key struct{ kind, code string }
	found := map[key]*refusal{}
	waits, took := map[key][]float64{}, map[key][]float64{}
	for _, s := range samples {
		if s.hung {
			row.Hung++
		}
		if s.kind == "" {
			continue
		}
		if row.Kinds == nil {
			row.Kinds = map[string]int{}
		}
		row.Kinds[s.kind]++
		k := key{s.kind, s.code}
		if found[k] == nil {
			found[k] = &refusal{Kind: s.kind, Code: s.code, Message: s.message}
		}
		found[k].Count++
		took[k] = append(took[k], s.latency.Seconds())
		if s.retryAfter > 0 {
			waits[k] = append(waits[k], s.retryAfter.Seconds())
		}
	}
	for k, r := range found {
		w := spreadOf(waits[k])
		r.Told, r.WaitMed, r.WaitMax = len(w), round(w.median(), 3), round(w.at(1), 3)
		t := spreadOf(took[k])
		r.TookMed, r.TookMax = round(t.median(), 3), round(t.at(1), 3)
		row.Refusals = append(row.Refusals, *r)
	}
	slices.SortFunc(row.Refusals, func(a, b refusal) int {
		return cmp.Or(b.Count-a.Count, cmp.Compare(a.Kind+a.Code, b.Kind+b.Code))
	})
}

// merge makes one row of several runs of the same phase.
func merge(runs []Row) Row {
	row := runs[0]
	if len(runs) == 1 {
		return row
	}
	row.Runs, row.Completed, row.Errors, row.Hung, row.Kinds, row.Refusals = len(runs), 0, 0, 0, nil, nil
	for _, r := range runs {
		row.Completed += r.Completed
		row.Errors += r.Errors
		row.Hung += r.Hung
		for k, n := range r.Kinds {
			if row.Kinds == nil {
				row.Kinds = map[string]int{}
			}
			row.Kinds[k] += n
		}
		row.Refusals = addRefusals(row.Refusals, r.Refusals)
	}
	for name, field := range row.figures() {
		var v []float64
		for i := range runs {
			if x := *runs[i].figures()[name]; x != 0 {
				v = append(v, x)
			}
		}
		*field = round(spreadOf(v).median(), 7)
	}
	return row
}

func addRefusals(all, more []refusal) []refusal {
	all = slices.Clone(all)
	for _, r := range more {
		i := slices.IndexFunc(all, func(o refusal) bool { return o.Kind == r.Kind && o.Code == r.Code })
		if i < 0 {
			all = append(all, r)
			continue
		}
		all[i].Count += r.Count
		all[i].Told += r.Told
		all[i].WaitMax = max(all[i].WaitMax, r.WaitMax)
		all[i].WaitMed = max(all[i].WaitMed, r.WaitMed)
		all[i].TookMed, all[i].TookMax = max(all[i].TookMed, r.TookMed), max(all[i].TookMax, r.TookMax)
	}
	return all
}

// figures are the numbers of a row that have a median over runs, by their name.
func (row *Row) figures() map[string]*float64 {
	return map[string]*float64{
		"wall_sec": &row.Wall, "lat_med": &row.LatMed, "lat_p99": &row.LatP99, "ttft_med": &row.TTFTMed, "ttft_p99": &row.TTFTP99,
		"tpot_med": &row.TPOTMed, "tpot_p99": &row.TPOTP99, "itl_med": &row.ITLMed, "itl_p99": &row.ITLP99,
		"in_tput": &row.InTput, "out_tput": &row.OutTput, "req_tput": &row.ReqTput, "cached_tput": &row.Cached,
		"late_p99": &row.LateP99, "in_tokens": &row.InTokens, "out_tokens": &row.Tokens,
	}
}

// value is a figure or a count by its name.
func (row *Row) value(name string) (float64, bool) {
	if f, ok := row.figures()[name]; ok {
		return *f, true
	}
	counts := row.counts()
	n, ok := counts[name]
	return float64(n), ok
}

// each is a value for one run: counts are sums over runs.
func (row *Row) each(name string) float64 {
	v, _ := row.value(name)
	if _, figure := row.figures()[name]; !figure {
		v /= float64(max(1, row.Runs))
	}
	return v
}

func (row *Row) counts() map[string]int {
	return map[string]int{"completed": row.Completed, "errors": row.Errors, "hung": row.Hung, "batch_size": row.Batch}
}

func valueNames() []string {
	var row Row
	return slices.Sorted(func(yield func(string) bool) {
		for k := range maps.Keys(row.figures()) {
			if !yield(k) {
				return
			}
		}
		for k := range maps.Keys(row.counts()) {
			if !yield(k) {
				return
			}
		}
	})
}

func round(v float64, digits int) float64 {
	p := math.Pow10(digits)
	return math.Round(v*p) / p
}

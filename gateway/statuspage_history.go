package gateway

import (
	"math"
	"time"
)

const (
	// historySeconds is how far back the chart goes.
	historySeconds = 300
	// smoothing is the time that one point of the chart averages over.
	smoothing = 5 // seconds
)

// point is one second of the chart: rates and shares over the last five.
type point struct {
	Time     int64    `json:"t"`
	Requests float64  `json:"requests"` // ended in a second, refused and failed ones included
	Refused  float64  `json:"refused"`
	Failed   float64  `json:"failed"`
	Input    float64  `json:"input"` // tokens in a second, counted when an answer ends
	Cached   float64  `json:"cached"`
	Output   float64  `json:"output"`
	First    *spread  `json:"first_token_ms"` // nil: no stream began
	Expected *float64 `json:"hit_predicted"`  // nil: no prompt
	Hit      *float64 `json:"hit_actual"`
}

// sums are the counters that points are differences of.
type sums struct {
	at                          time.Time
	requests, refused, failed   int64
	input, cached, output       int64
	prompts, predicted, matched int64 // of prompts whose engine told what was cached
}

// pace makes points of counters. Only the feed uses it, one call at a time.
type pace struct{ past []sums }

// sums reads the counters.
func (s *Server) sums(now time.Time) sums {
	p := &s.pulse
	x := sums{
		at: now, requests: p.requests.Load(), refused: p.refused.Load(), failed: p.failed.Load(),
		input: p.input.Load(), cached: p.cached.Load(), output: p.output.Load(),
	}
	for _, pl := range s.pools.all() {
		for route := range *pl.members.Load() {
			st := route.Stats()
			x.prompts, x.predicted, x.matched = x.prompts+int64(st.PromptTokens), x.predicted+int64(st.PredictedTokens), x.matched+int64(st.CachedTokens)
		}
	}
	return x
}

// next is the point of the time since the counters of five seconds ago. A
// replica that went took its counters along: nothing is below 0.
func (p *pace) next(x sums, first *spread) point {
	for len(p.past) > 1 && x.at.Sub(p.past[0].at) > smoothing*time.Second+time.Second/2 {
		p.past = p.past[1:]
	}
	pt := point{Time: x.at.Unix(), First: first}
	if len(p.past) > 0 {
		o := p.past[0]
		seconds := max(0.001, x.at.Sub(o.at).Seconds())
		rate := func(now, then int64) float64 { return round(float64(max(0, now-then))/seconds, 100) }
		pt.Requests, pt.Refused, pt.Failed = rate(x.requests, o.requests), rate(x.refused, o.refused), rate(x.failed, o.failed)
		pt.Input, pt.Cached, pt.Output = rate(x.input, o.input), rate(x.cached, o.cached), rate(x.output, o.output)
		pt.share(x.prompts-o.prompts, x.predicted-o.predicted, x.matched-o.matched)
	}
	p.past = append(p.past, x)
	return pt
}

func (pt *point) share(prompts, predicted, cached int64) {
	if prompts <= 0 {
		return
	}
	of := func(n int64) *float64 {
		return new(round(min(1, float64(max(0, n))/float64(prompts)), 1000))
	}
	pt.Expected, pt.Hit = of(predicted), of(cached)
}

func round(v, per float64) float64 { return math.Round(v*per) / per }

// backfill is the history as the remembered requests tell it: nobody counted
// while nobody watched. It goes back as far as they do. The pace goes on from there.
func (s *Server) backfill(now time.Time, x sums) (before []point, p pace) {
	ended := s.recent.last(keptRequests, func(e *explanation) bool { return now.Sub(e.end()) < (historySeconds+smoothing)*time.Second })
	begin := now.Add(-historySeconds * time.Second)
	if s.started.After(begin) {
		begin = s.started
	}
	if len(ended) == keptRequests {
		if e := ended[len(ended)-1].end().Add(smoothing * time.Second); e.After(begin) {
			begin = e
		}
	}
	var seconds [historySeconds + smoothing + 1][]*explanation // by age
	for i := range ended {
		if age := int(now.Sub(ended[i].end()) / time.Second); age >= 0 && age < len(seconds) {
			seconds[age] = append(seconds[age], &ended[i])
		}
	}
	for age := int(now.Sub(begin) / time.Second); age >= 1; age-- {
		w := newWindow(seconds[age : age+smoothing])
		before = append(before, w.point(now.Add(time.Duration(-age)*time.Second)))
	}
	for age := min(smoothing, int(now.Sub(begin)/time.Second)); age >= 1; age-- {
		w := newWindow(seconds[:age])
		p.past = append(p.past, x.less(&w.sums, now.Add(time.Duration(-age)*time.Second)))
	}
	return before, p
}

// less is the counters as they were at that instant.
func (x sums) less(o *sums, at time.Time) sums {
	x.at = at
	x.requests, x.refused, x.failed = x.requests-o.requests, x.refused-o.refused, x.failed-o.failed
	x.input, x.cached, x.output = x.input-o.input, x.cached-o.cached, x.output-o.output
	x.prompts, x.predicted, x.matched = x.prompts-o.prompts, x.predicted-o.predicted, x.matched-o.matched
	return x
}

// window sums remembered requests over the time that a point averages over.
type window struct {
	sums
	firsts []float64
}

func newWindow(seconds [][]*explanation) *window {
	w := &window{}
	for _, second := range seconds {
		for _, e := range second {
			w.add(e)
		}
	}
	return w
}

func (w *window) add(e *explanation) {
	w.requests++
	switch {
	case e.Status == 429:
		w.refused++
	case e.broke():
		w.failed++
	}
	w.input, w.cached, w.output = w.input+int64(e.Prompt), w.cached+int64(e.Cached), w.output+int64(e.Completion)
	if e.toldCached && e.Prompt > 0 {
		w.prompts, w.predicted, w.matched = w.prompts+int64(e.Prompt), w.predicted+int64(e.Matched), w.matched+int64(e.Cached)
	}
	if e.Streamed && e.FirstTokenMS > 0 {
		w.firsts = append(w.firsts, e.FirstTokenMS)
	}
}

func (w *window) point(at time.Time) point {
	rate := func(n int64) float64 { return round(float64(n)/smoothing, 100) }
	pt := point{
		Time: at.Unix(), Requests: rate(w.requests), Refused: rate(w.refused), Failed: rate(w.failed),
		Input: rate(w.input), Cached: rate(w.cached), Output: rate(w.output), First: newSpread(w.firsts),
	}
	pt.share(w.prompts, w.predicted, w.matched)
	return pt
}

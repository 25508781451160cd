package gateway

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"penstock/engine"
	"penstock/limits"
)

// pulse counts what all requests come to, for the status page's chart: a few
// atomic additions at a request's end. The same requests are counted as in
// penstock_requests_total and penstock_*_tokens_total.
type pulse struct {
	requests, refused, failed atomic.Int64 // ended; of these 429, and 5xx
	input, cached, output     atomic.Int64 // tokens
}

func (p *pulse) add(rec *record) {
	p.requests.Add(1)
	switch {
	case rec.status == 429:
		p.refused.Add(1)
	case rec.broke():
		p.failed.Add(1)
	}
	if rec.prompt > 0 {
		p.input.Add(int64(rec.prompt))
		p.cached.Add(int64(max(0, rec.cached)))
	}
	if rec.completion > 0 {
		p.output.Add(int64(rec.completion))
	}
}

// broke says that the gateway or an engine failed the request: a 5xx, or an
// error after a 200 had begun.
func (rec *record) broke() bool {
	return rec.status >= 500 || rec.status < 400 && rec.code != ""
}

// keptFirsts is how many first-token times of a replica are remembered.
const keptFirsts = 128

// tally is what the status page tells of one replica beside the router's and
// the engine's figures. Any goroutine may use it.
type tally struct {
	failures atomic.Int64
	failed   atomic.Pointer[mishap] // the last attempt that failed
	down     atomic.Pointer[mishap] // why the engine is unhealthy; nil while it is not

	// firsts is a ring of first-token times: when, in seconds since 1970 in the
	// upper half, and how long, in tenths of milliseconds, in the lower.
	firsts [keptFirsts]atomic.Uint64
	next   atomic.Uint32
}

// mishap is something that went wrong, as GET /replicas tells it.
type mishap struct {
	Time   time.Time `json:"time"`
	Reason string    `json:"reason"`
}

// fail counts an attempt that failed on the member's replica.
func (m *member) fail(reason string) {
	m.metrics.Failed(reason)
	m.tally.failures.Add(1)
	m.tally.failed.Store(&mishap{time.Now(), reason})
}

// firstToken records the time from a request's arrival to its first event.
func (m *member) firstToken(at time.Time, d time.Duration, trace string) {
	m.metrics.FirstToken(d, trace)
	const unit = 100 * time.Microsecond
	v := uint64(at.Unix())<<32 | uint64(min(max(0, d/unit), 1<<32-1))
	m.tally.firsts[(m.tally.next.Add(1)-1)%keptFirsts].Store(v)
}

// appendFirsts appends the first-token times, in milliseconds, of streams that
// began to answer after that instant.
func (t *tally) appendFirsts(ms []float64, after time.Time) []float64 {
	from := uint64(max(0, after.Unix()))
	for i := range t.firsts {
		if v := t.firsts[i].Load(); v != 0 && v>>32 > from {
			ms = append(ms, float64(v&(1<<32-1))/10)
		}
	}
	return ms
}

// spread is the middle and the slow end of some times, in milliseconds.
type spread struct {
	P50   float64 `json:"p50"`
	P95   float64 `json:"p95"`
	Count int     `json:"count"`
}

// newSpread sorts ms; nil when there is none.
func newSpread(ms []float64) *spread {
	if len(ms) == 0 {
		return nil
	}
	slices.Sort(ms)
	at := func(q float64) float64 { return ms[int(q*float64(len(ms)-1)+0.5)] }
	return &spread{P50: at(0.5), P95: at(0.95), Count: len(ms)}
}

// refusals counts what limits and queues refused, by key and reason. It is
// bounded by the configured keys and the known reasons.
type refusals struct {
	mu    sync.Mutex
	byKey map[string]map[string]int64
}

// refused counts a refusal in the metrics and for GET /limits.
func (s *Server) refused(key string, f *limits.Refusal) {
	reason := refusalReason(f)
	s.metrics.Refused(key, reason)
	s.refusals.mu.Lock()
	defer s.refusals.mu.Unlock()
	if s.refusals.byKey == nil {
		s.refusals.byKey = map[string]map[string]int64{}
	}
	if s.refusals.byKey[key] == nil {
		s.refusals.byKey[key] = map[string]int64{}
	}
	s.refusals.byKey[key][reason]++
}

// of is a key's refusals by reason; never nil.
func (r *refusals) of(key string) map[string]int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if m := maps.Clone(r.byKey[key]); m != nil {
		return m
	}
	return map[string]int64{}
}

// noteHealth keeps why a replica is out, and has the status page told of changes.
func (s *Server) noteHealth(m *member, ev engine.Event) {
	switch ev.Type {
	case engine.Unhealthy:
		m.tally.down.Store(&mishap{ev.At, ev.Reason})
	case engine.Healthy:
		m.tally.down.Store(nil)
	case engine.Removed, engine.StateChanged:
	default:
		return
	}
	s.feed.changed()
}

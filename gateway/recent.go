package gateway

import (
	"sync"
	"time"

	"penstock/router"
)

// keptRequests is how many of the last requests GET /requests knows.
const keptRequests = 1000

// recent is the last requests and what was decided about them.
type recent struct {
	mu   sync.Mutex
	ring [keptRequests]explanation
	next int
}

// explanation is one request as GET /requests/{id} tells it: no prompt text, no secrets.
type explanation struct {
	ID           string              `json:"id"`
	Time         time.Time           `json:"time"`
	Path         string              `json:"path"`
	Key          string              `json:"key,omitempty"`
	Model        string              `json:"model,omitempty"`
	Lane         string              `json:"lane,omitempty"`
	Status       int                 `json:"status"`
	Code         string              `json:"code,omitempty"`
	Message      string              `json:"message,omitempty"`
	Advice       string              `json:"advice,omitempty"` // for the operator; of a single request
	Replica      string              `json:"replica,omitempty"`
	Matched      int                 `json:"matched_tokens"`
	Best         int                 `json:"best_matched_tokens"`
	Uncached     int                 `json:"uncached_tokens"`
	CostMS       float64             `json:"cost_ms"`
	Candidates   []router.Considered `json:"candidates,omitempty"`
	Retries      []string            `json:"retries,omitempty"`
	Attempts     []string            `json:"attempt_ids,omitempty"`
	Outcome      string              `json:"outcome"`
	TraceID      string              `json:"trace_id,omitempty"`
	QueueMS      float64             `json:"queue_ms"`
	FirstTokenMS float64             `json:"first_token_ms,omitempty"`
	TotalMS      float64             `json:"total_ms"`
	EstimatedIn  int                 `json:"estimated_input_tokens,omitempty"`
	ReservedOut  int                 `json:"reserved_output_tokens,omitempty"`
	Prompt       int                 `json:"prompt_tokens,omitempty"`
	Cached       int                 `json:"cached_tokens,omitempty"`
	Completion   int                 `json:"completion_tokens,omitempty"`
	Streamed     bool                `json:"streamed"`

	toldCached bool // the engine said how much of the prompt was cached
}

// end is when the request ended.
func (e *explanation) end() time.Time {
	return e.Time.Add(time.Duration(e.TotalMS * float64(time.Millisecond)))
}

func newRecent() *recent { return &recent{} }

// add remembers an ended request in place of the oldest.
func (l *recent) add(r *request) {
	rec := &r.record
	e := explanation{
		ID: r.id, Time: r.start, Status: rec.status, Code: rec.code, Message: rec.message, Replica: rec.replica,
		Matched: rec.decision.Matched, Best: rec.decision.Best, Uncached: rec.decision.Uncached, CostMS: rec.decision.Cost * 1000,
		Candidates: rec.decision.Candidates, Retries: rec.retries, Attempts: rec.attempts,
		Outcome: rec.outcome(), TraceID: r.trace.traceID(),
		QueueMS: millis(rec.queued), FirstTokenMS: millis(rec.firstToken), TotalMS: millis(rec.total),
		EstimatedIn: r.input, ReservedOut: r.output, Prompt: max(0, rec.prompt), Cached: max(0, rec.cached), Completion: max(0, rec.completion),
		Streamed: rec.streamed, toldCached: rec.prompt > 0 && rec.cached >= 0,
	}
	if r.route != nil {
		e.Path = r.route.path
	}
	if r.client != nil {
		e.Key = r.client.name
	}
	if r.target.pool != nil {
		e.Model, e.Lane = r.target.pool.name, laneName(r.lane)
	}
	l.mu.Lock()
	l.ring[l.next%keptRequests] = e
	l.next++
	l.mu.Unlock()
}

// find is the newest request of that id.
func (l *recent) find(id string) (explanation, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := l.next - 1; i >= max(0, l.next-keptRequests); i-- {
		if e := l.ring[i%keptRequests]; e.ID == id {
			return e, true
		}
	}
	return explanation{}, false
}

// last is the newest n requests that want says yes to, the newest first.
func (l *recent) last(n int, want func(*explanation) bool) []explanation {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := []explanation{}
	for i := l.next - 1; i >= max(0, l.next-keptRequests) && len(out) < n; i-- {
		if e := &l.ring[i%keptRequests]; want(e) {
			out = append(out, *e)
		}
	}
	return out
}

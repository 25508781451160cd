package gateway

import (
	"context"
	"log/slog"
	"time"
)

// LineTaker is a log handler that also takes finished lines, which spares most
// of what an access line costs. It is optional; see penstock serve's.
type LineTaker interface {
	// LineFormat is text or json, as slog's own handlers write them.
	LineFormat() string
	// TakeLine writes a line, its end included. It does not keep it.
	TakeLine(line []byte)
}

// fields takes what an access line tells, one field after the other.
type fields interface {
	text(key, value string)
	int(key string, value int64)
	float(key string, value float64)
	bool(key string, value bool)
	list(key string, values []string)
}

// logLine writes the access line: ids, names, sizes, times and the decision; no
// prompt text, no secrets. Lines of requests that failed are never sampled
// away, and say what an operator should do.
func (r *request) logLine(now time.Time) {
	if !r.snap.cfg.Log.Access || r.route == nil || !r.route.counted || !r.s.sampled(r) {
		return
	}
	level := slog.LevelInfo
	if r.record.broke() {
		level = slog.LevelWarn
	}
	ctx := context.Background()
	if !r.s.access.Enabled(ctx, level) {
		return
	}
	if r.s.lines == nil {
		a := &attrFields{attrs: make([]slog.Attr, 0, 32)}
		r.tell(a)
		r.s.access.LogAttrs(ctx, level, "request", a.attrs...)
		return
	}
	l := r.s.linePool.Get().(*lineFields) //nolint:forcetypeassert // the pool holds nothing else
	l.begin(now, level, "request")
	r.tell(l)
	r.s.lines.TakeLine(l.end())
	r.s.linePool.Put(l)
}

// tell tells all fields of the line.
func (r *request) tell(f fields) {
	r.whoAndWhat(f)
	r.record.decided(f)
	r.record.cameOfIt(f)
	if id := r.trace.traceID(); id != "" {
		f.text("trace_id", id)
	}
}

// whoAndWhat is which request it was.
func (r *request) whoAndWhat(f fields) {
	rec := &r.record
	f.text("request_id", r.id)
	f.text("method", string(r.ctx.Method()))
	f.text("path", r.route.path)
	f.int("status", int64(rec.status))
	f.text("outcome", rec.outcome())
	if rec.code != "" {
		f.text("code", rec.code)
	}
	if r.client != nil {
		f.text("key", r.client.name)
	}
	if r.target.pool != nil {
		f.text("model", r.target.pool.name)
		f.text("lane", laneName(r.lane))
		f.bool("stream", rec.streamed)
		f.float("queue_ms", millis(rec.queued))
	}
}

// decided is where it was sent and why; times are in milliseconds, the rest in tokens.
func (rec *record) decided(f fields) {
	if rec.replica == "" {
		return
	}
	d := &rec.decision
	f.text("replica", rec.replica)
	f.int("matched", int64(d.Matched))
	f.int("best", int64(d.Best))
	f.int("uncached", int64(d.Uncached))
	f.float("cost_ms", round(d.Cost*1000, 1000))
	if n := len(rec.attempts); n > 0 {
		f.text("attempt_id", rec.attempts[n-1])
		if n > 1 {
			f.list("earlier_attempts", rec.attempts[:n-1])
		}
	}
	if len(rec.retries) > 0 {
		f.list("retries", rec.retries)
	}
}

// cameOfIt is how long it took, what was used, and what went wrong.
func (rec *record) cameOfIt(f fields) {
	if rec.streamed && rec.firstToken > 0 {
		f.float("ttft_ms", millis(rec.firstToken))
		f.int("events", int64(rec.events))
	}
	f.float("total_ms", millis(rec.total))
	if rec.bytes > 0 {
		f.int("bytes", rec.bytes)
	}
	if rec.prompt > 0 {
		f.int("prompt_tokens", int64(rec.prompt))
		if rec.cached >= 0 {
			f.int("cached_tokens", int64(rec.cached))
		}
	}
	if rec.completion > 0 {
		f.int("completion_tokens", int64(rec.completion))
	}
	if rec.err != "" {
		f.text("error", rec.err)
	}
	if h := hint(rec.code); h != "" {
		f.text("hint", h)
	}
}

// outcome is how a request ended, in one word: done; left (the client did);
// rejected (by the engine, as the client's mistake); refused (by the gateway);
// failed.
func (rec *record) outcome() string {
	switch {
	case rec.status == errClientGone.Status:
		return "left"
	case rec.broke():
		return "failed"
	case rec.code == "upstream":
		return "rejected"
	case rec.status >= 400:
		return "refused"
	}
	return "done"
}

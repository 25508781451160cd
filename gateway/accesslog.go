package gateway

import (
	"context"
	"log/slog"
)

// logLine writes the access line: ids, names, sizes, times and the decision; no
// prompt text, no secrets. Lines of requests that failed are never sampled
// away, and say what an operator should do.
func (r *request) logLine() {
	if !r.snap.cfg.Log.Access || r.route == nil || !r.route.counted || !r.s.sampled(r) {
		return
	}
	level := slog.LevelInfo
	if r.record.broke() {
		level = slog.LevelWarn
	}
	if !r.s.access.Enabled(context.Background(), level) {
		return
	}
	attrs := make([]slog.Attr, 0, 32)
	attrs = r.whoAndWhat(attrs)
	attrs = r.record.decided(attrs)
	attrs = r.record.cameOfIt(attrs)
	if id := r.trace.traceID(); id != "" {
		attrs = append(attrs, slog.String("trace_id", id))
	}
	r.s.access.LogAttrs(context.Background(), level, "request", attrs...)
}

// whoAndWhat is which request it was.
func (r *request) whoAndWhat(attrs []slog.Attr) []slog.Attr {
	rec := &r.record
	attrs = append(attrs,
		slog.String("request_id", r.id), slog.String("method", string(r.ctx.Method())), slog.String("path", r.route.path),
		slog.Int("status", rec.status), slog.String("outcome", rec.outcome()))
	if rec.code != "" {
		attrs = append(attrs, slog.String("code", rec.code))
	}
	if r.client != nil {
		attrs = append(attrs, slog.String("key", r.client.name))
	}
	if r.target.pool != nil {
		attrs = append(attrs, slog.String("model", r.target.pool.name), slog.String("lane", laneName(r.lane)),
			slog.Bool("stream", rec.streamed), slog.Float64("queue_ms", millis(rec.queued)))
	}
	return attrs
}

// decided is where it was sent and why; times are in milliseconds, the rest in tokens.
func (rec *record) decided(attrs []slog.Attr) []slog.Attr {
	if rec.replica == "" {
		return attrs
	}
	d := &rec.decision
	attrs = append(attrs, slog.String("replica", rec.replica), slog.Int("matched", d.Matched), slog.Int("best", d.Best),
		slog.Int("uncached", d.Uncached), slog.Float64("cost_ms", round(d.Cost*1000, 1000)))
	if n := len(rec.attempts); n > 0 {
		attrs = append(attrs, slog.String("attempt_id", rec.attempts[n-1]))
		if n > 1 {
			attrs = append(attrs, slog.Any("earlier_attempts", rec.attempts[:n-1]))
		}
	}
	if len(rec.retries) > 0 {
		attrs = append(attrs, slog.Any("retries", rec.retries))
	}
	return attrs
}

// cameOfIt is how long it took, what was used, and what went wrong.
func (rec *record) cameOfIt(attrs []slog.Attr) []slog.Attr {
	if rec.streamed && rec.firstToken > 0 {
		attrs = append(attrs, slog.Float64("ttft_ms", millis(rec.firstToken)), slog.Int("events", rec.events))
	}
	attrs = append(attrs, slog.Float64("total_ms", millis(rec.total)))
	if rec.bytes > 0 {
		attrs = append(attrs, slog.Int64("bytes", rec.bytes))
	}
	if rec.prompt > 0 {
		attrs = append(attrs, slog.Int("prompt_tokens", rec.prompt))
		if rec.cached >= 0 {
			attrs = append(attrs, slog.Int("cached_tokens", rec.cached))
		}
	}
	if rec.completion > 0 {
		attrs = append(attrs, slog.Int("completion_tokens", rec.completion))
	}
	if rec.err != "" {
		attrs = append(attrs, slog.String("error", rec.err))
	}
	if h := hint(rec.code); h != "" {
		attrs = append(attrs, slog.String("hint", h))
	}
	return attrs
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

package gateway

import (
	"context"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/valyala/fasthttp"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"penstock/gateway/body"
	"penstock/gateway/relay"
)

// traced is a request's trace: of one that is sampled, a span with children;
// of another one the ids that the engine is told. nil: tracing is off, and all
// methods do nothing.
type traced struct {
	tracer *tracer
	fresh  bool // the client sent no valid traceparent

	// Of a sampled request; the times are of its last binding.
	ctx     context.Context
	root    trace.Span // nil: not sampled
	bindAt  time.Time
	boundAt time.Time

	// Of a request that is not sampled.
	id trace.TraceID
}

// begin begins the trace of a request. Its parent decides whether it is
// sampled; without one, the configured share of requests is.
func (t *tracer) begin(r *request) *traced {
	x := &traced{tracer: t}
	p, ok := parseParent(r.ctx.Request.Header.Peek("Traceparent"))
	x.fresh = !ok
	ctx := context.Background()
	switch {
	case ok && !p.sampled:
		x.id = p.trace
		return x
	case ok:
		ctx = trace.ContextWithRemoteSpanContext(ctx, trace.NewSpanContext(trace.SpanContextConfig{
			TraceID: p.trace, SpanID: p.span, TraceFlags: trace.FlagsSampled, Remote: true,
		}))
	case !coin(t.share):
		var none trace.SpanID
		randomIDs(&x.id, &none)
		return x
	}
	x.ctx, x.root = t.spans.Start(ctx, r.route.path, trace.WithTimestamp(r.start), trace.WithSpanKind(trace.SpanKindServer))
	return x
}

// on says that the request has spans.
func (x *traced) on() bool { return x != nil && x.root != nil }

// traceID is the trace's id where it is sampled, for exemplars and the log.
func (x *traced) traceID() string {
	if !x.on() {
		return ""
	}
	return x.root.SpanContext().TraceID().String()
}

// now is the time, where anybody wants to know.
func (x *traced) now() time.Time {
	if !x.on() {
		return time.Time{}
	}
	return time.Now()
}

// part is the trace as one part of a request sees it, which runs beside others.
func (x *traced) part() *traced {
	if !x.on() {
		return x
	}
	p := *x
	return &p
}

// stage records one hop of the request's way, from began to ended.
func (x *traced) stage(name string, began, ended time.Time, err error, attributes ...attribute.KeyValue) {
	if !x.on() {
		return
	}
	_, span := x.tracer.spans.Start(x.ctx, name, trace.WithTimestamp(began), trace.WithAttributes(attributes...))
	if err != nil {
		e := asError(err)
		span.SetStatus(codes.Error, e.Code)
		span.SetAttributes(attribute.String("error.type", e.Code))
	}
	span.End(trace.WithTimestamp(ended))
}

// admitted records the reservation of the request's limits.
func (x *traced) admitted(began time.Time, r *request, err error) {
	if !x.on() {
		return
	}
	x.stage("admit", began, time.Now(), err,
		attribute.Int("penstock.estimated_input_tokens", r.input), attribute.Int("penstock.reserved_output_tokens", r.output))
}

// bound keeps when the router was asked, for chosen.
func (x *traced) bound(began time.Time) {
	if x.on() {
		x.bindAt, x.boundAt = began, time.Now()
	}
}

// chosen records the wait for room, and the choice that ended it.
func (x *traced) chosen(began time.Time, r *request, err error) {
	if !x.on() {
		return
	}
	if err != nil {
		x.stage("queue", began, time.Now(), err)
		return
	}
	d := &r.record.decision
	x.stage("queue", began, x.bindAt, nil)
	x.stage("choose", x.bindAt, x.boundAt, nil,
		attribute.String("penstock.replica", r.record.replica), attribute.Int("penstock.matched_tokens", d.Matched),
		attribute.Int("penstock.best_matched_tokens", d.Best), attribute.Int("penstock.uncached_tokens", d.Uncached),
		attribute.Float64("penstock.cost_seconds", d.Cost), attribute.Int("penstock.candidates", len(d.Candidates)))
}

// upstream begins the span of an attempt; nil where there is none.
func (x *traced) upstream(a *attempt) trace.Span {
	if !x.on() {
		return nil
	}
	e := a.member.engine
	_, span := x.tracer.spans.Start(x.ctx, "upstream", trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(
		attribute.String("gen_ai.operation.name", operation(a.r.look.view.Endpoint)),
		attribute.String("gen_ai.provider.name", string(e.Tongue())),
		attribute.String("gen_ai.request.model", a.r.target.pool.name),
		attribute.String("penstock.replica", e.ID()), attribute.String("penstock.attempt_id", a.call.ID),
	))
	if u, err := url.Parse(e.URL()); err == nil {
		span.SetAttributes(attribute.String("server.address", u.Hostname()))
		if port, err := strconv.Atoi(u.Port()); err == nil {
			span.SetAttributes(attribute.Int("server.port", port))
		}
	}
	return span
}

// tell tells the engine whose child its own spans are.
func (x *traced) tell(a *attempt, q *relay.Request) {
	if x == nil {
		return
	}
	if x.fresh { // a tracestate without its traceparent says nothing
		q.Drop = droppedWithoutParent
	}
	var h string
	if a.span != nil {
		c := a.span.SpanContext()
		h = parentHeader(c.TraceID(), c.SpanID(), true)
	} else {
		var span trace.SpanID
		randomIDs(nil, &span)
		h = parentHeader(x.id, span, false)
	}
	q.Set = append(q.Set, relay.Header{Name: "Traceparent", Value: h})
}

var droppedWithoutParent = append(slices.Clip(droppedHeaders), "tracestate")

// spanAnswered records the first byte of an attempt's answer, or why there is none.
func (a *attempt) spanAnswered(ans relay.Answer, err error) {
	if a.span == nil {
		return
	}
	if ans.Status > 0 {
		a.span.SetAttributes(attribute.Int("http.response.status_code", ans.Status))
	}
	if err != nil || ans.Status >= fasthttp.StatusInternalServerError {
		a.spanFailed(failReason(ans, err))
		return
	}
	a.span.AddEvent("first byte", trace.WithTimestamp(ans.FirstAt))
	if ans.Streamed {
		a.span.SetAttributes(attribute.Float64("gen_ai.response.time_to_first_chunk", ans.FirstAt.Sub(a.r.start).Seconds()))
	}
}

func (a *attempt) spanFailed(reason string) {
	a.span.SetStatus(codes.Error, reason)
	a.span.SetAttributes(attribute.String("error.type", reason))
}

// spanDone records the end of an attempt's answer.
func (a *attempt) spanDone(res relay.Result) {
	if a.span == nil {
		return
	}
	if res.Err != nil {
		a.spanFailed(failReason(relay.Answer{}, res.Err))
		return
	}
	if !res.LastAt.IsZero() {
		a.span.AddEvent("done", trace.WithTimestamp(res.LastAt), trace.WithAttributes(
			attribute.Int("penstock.events", res.Events), attribute.Int64("penstock.bytes", res.Bytes)))
	}
}

// end ends the request's span.
func (x *traced) end(r *request) {
	if !x.on() {
		return
	}
	rec := &r.record
	name := r.route.path
	set := append(make([]attribute.KeyValue, 0, 20),
		attribute.String("http.request.method", string(r.ctx.Method())), attribute.String("url.path", r.route.path),
		attribute.Int("http.response.status_code", rec.status), attribute.String("penstock.request_id", r.id))
	if r.client != nil {
		set = append(set, attribute.String("penstock.key", r.client.name))
	}
	if r.target.pool != nil {
		op := operation(r.route.endpoint)
		name = op + " " + r.target.pool.name
		set = append(set, attribute.String("gen_ai.operation.name", op), attribute.String("gen_ai.request.model", r.target.pool.name),
			attribute.Bool("gen_ai.request.stream", rec.streamed), attribute.String("penstock.lane", laneName(r.lane)),
			attribute.Float64("penstock.queue_seconds", rec.queued.Seconds()))
	}
	x.root.SetName(name)
	x.root.SetAttributes(append(set, usageAttributes(rec)...)...)
	if rec.broke() {
		x.root.SetStatus(codes.Error, rec.code)
	}
	x.root.End(trace.WithTimestamp(r.start.Add(rec.total)))
}

// usageAttributes are what the engine reported, and how it ended.
func usageAttributes(rec *record) []attribute.KeyValue {
	var set []attribute.KeyValue
	if rec.replica != "" {
		set = append(set, attribute.String("penstock.replica", rec.replica), attribute.Int("penstock.retries", len(rec.retries)))
	}
	if rec.firstToken > 0 {
		set = append(set, attribute.Float64("gen_ai.response.time_to_first_chunk", rec.firstToken.Seconds()))
	}
	if rec.prompt > 0 {
		set = append(set, attribute.Int("gen_ai.usage.input_tokens", rec.prompt))
		if rec.cached >= 0 {
			set = append(set, attribute.Int("gen_ai.usage.cache_read.input_tokens", rec.cached))
		}
	}
	if rec.completion > 0 {
		set = append(set, attribute.Int("gen_ai.usage.output_tokens", rec.completion))
	}
	if rec.code != "" {
		set = append(set, attribute.String("error.type", rec.code))
	}
	return set
}

// operation is an endpoint as the GenAI conventions name it.
func operation(ep body.Endpoint) string {
	switch ep {
	case body.Chat, body.Responses, body.Messages:
		return "chat"
	case body.Completions, body.Generate:
		return "text_completion"
	case body.Embeddings:
		return "embeddings"
	case body.Rerank:
		return "rerank"
	case body.Score:
		return "score"
	default:
		return "other"
	}
}

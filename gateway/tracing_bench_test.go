package gateway

import (
	"context"
	"io"
	"log/slog"
	"testing"
	"time"

	"github.com/valyala/fasthttp"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"penstock/configs"
	"penstock/gateway/body"
	"penstock/gateway/relay"
)

// benchRequest is a request as it looks at its end, without an engine.
func benchRequest(share float64) (*Server, *request) {
	cfg := configs.Default()
	cfg.Log.Access, cfg.Log.SampleSuccess = true, 1
	s := &Server{access: slog.New(slog.NewJSONHandler(io.Discard, nil))}
	if share >= 0 {
		p := sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.AlwaysSample()), sdktrace.WithBatcher(nothing{}))
		s.tracer = &tracer{provider: p, spans: p.Tracer("penstock"), share: share}
	}
	r := &request{
		s: s, ctx: &fasthttp.RequestCtx{}, snap: &snapshot{cfg: cfg}, route: &route{path: "/v1/chat/completions", endpoint: body.Chat, counted: true},
		id: "req_0123456789abcdef01234567", client: &client{name: "team"}, target: target{pool: &pool{name: "glm-5.2"}},
	}
	r.record = record{
		status: 200, replica: "10.0.0.1:30000", attempts: []string{"req_0123456789abcdef01234567"}, prompt: 1000, cached: 900, completion: 100,
		firstToken: 20 * time.Millisecond, total: time.Second, events: 100, bytes: 20000, streamed: true,
	}
	return s, r
}

// nothing is an exporter that sends nothing.
type nothing struct{}

func (nothing) ExportSpans(context.Context, []sdktrace.ReadOnlySpan) error { return nil }
func (nothing) Shutdown(context.Context) error                             { return nil }

// BenchmarkTrace is what tracing adds to a request; a whole one takes some 50 µs.
func BenchmarkTrace(b *testing.B) {
	for name, share := range map[string]float64{"off": -1, "share 0": 0, "share 0.01": 0.01, "share 1": 1} {
		b.Run(name, func(b *testing.B) {
			s, r := benchRequest(share)
			defer s.tracer.close()
			a := &attempt{r: r}
			b.ReportAllocs()
			for b.Loop() {
				r.start = time.Now()
				r.trace = nil
				if s.tracer != nil {
					r.trace = s.tracer.begin(r)
				}
				began := r.trace.now()
				r.trace.admitted(began, r, nil)
				r.trace.bound(began)
				r.trace.chosen(began, r, nil)
				if r.trace.on() {
					_, a.span = s.tracer.spans.Start(r.trace.ctx, "upstream")
				}
				if r.trace != nil {
					r.trace.tell(a, &relay.Request{})
				}
				a.spanDone(relay.Result{LastAt: r.start})
				if a.span != nil {
					a.span.End()
				}
				a.span = nil
				r.trace.end(r)
			}
		})
	}
}

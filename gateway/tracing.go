package gateway

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/url"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"penstock/configs"
)

// Bounds of the export of traces. What does not fit into the queue is dropped:
// a collector that is slow or gone never holds a request up.
const (
	maxTraceQueue = 4096 // spans
	maxTraceBatch = 512
	traceInterval = 2 * time.Second
	traceTimeout  = 10 * time.Second // of one export, with its retries
	traceFlush    = 3 * time.Second  // for what is left at the end
)

// tracer begins the requests' traces. There is one when tracing.endpoint is
// set; without it a request's way has nil checks and nothing else.
type tracer struct {
	provider *sdktrace.TracerProvider
	spans    trace.Tracer
	share    float64 // of the requests without a parent that are sampled
}

// newTracer returns nil where tracing is off.
func newTracer(ctx context.Context, cfg configs.Tracing, version string, log *slog.Logger) (*tracer, error) {
	if cfg.Endpoint == "" {
		return nil, nil
	}
	endpoint, err := tracesURL(cfg.Endpoint)
	if err != nil {
		return nil, err
	}
	// Headers, such as a collector's key, are taken from OTEL_EXPORTER_OTLP_HEADERS.
	exporter, err := otlptracehttp.New(ctx,
		otlptracehttp.WithEndpointURL(endpoint), otlptracehttp.WithCompression(otlptracehttp.GzipCompression), otlptracehttp.WithTimeout(traceTimeout),
		otlptracehttp.WithRetry(otlptracehttp.RetryConfig{Enabled: true, InitialInterval: time.Second, MaxInterval: 5 * time.Second, MaxElapsedTime: traceTimeout}))
	if err != nil {
		return nil, fmt.Errorf("tracing: %w", err)
	}
	about, err := resource.New(ctx,
		resource.WithAttributes(attribute.String("service.name", "penstock"), attribute.String("service.version", version)),
		resource.WithTelemetrySDK(), resource.WithFromEnv())
	if err != nil {
		return nil, fmt.Errorf("tracing: OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	provider := sdktrace.NewTracerProvider(
		sdktrace.WithResource(about),
		sdktrace.WithSampler(sdktrace.AlwaysSample()), // begin has decided before
		sdktrace.WithBatcher(&toldExporter{SpanExporter: exporter, log: log},
			sdktrace.WithMaxQueueSize(maxTraceQueue), sdktrace.WithMaxExportBatchSize(maxTraceBatch),
			sdktrace.WithBatchTimeout(traceInterval), sdktrace.WithExportTimeout(traceTimeout)))
	return &tracer{provider: provider, spans: provider.Tracer("penstock"), share: cfg.Sample}, nil
}

// tracesURL is where spans are posted: the standard path is added to a
// collector's address that has none.
func tracesURL(endpoint string) (string, error) {
	u, err := url.Parse(endpoint)
	if err != nil {
		return "", fmt.Errorf("tracing.endpoint: %w", err)
	}
	if strings.Trim(u.Path, "/") == "" {
		u.Path = "/v1/traces"
	}
	return u.String(), nil
}

// close sends what is left, within a bound. It may be called on nil.
func (t *tracer) close() {
	if t == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), traceFlush)
	defer cancel()
	_ = t.provider.Shutdown(ctx) // the exporter has told
}

// toldExporter says in the log when exporting begins to fail, and when it works again.
type toldExporter struct {
	sdktrace.SpanExporter
	log     *slog.Logger
	failing bool // exports come one at a time
}

func (e *toldExporter) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	err := e.SpanExporter.ExportSpans(ctx, spans)
	switch {
	case err != nil && !e.failing:
		e.log.Warn("traces cannot be sent and are dropped; requests are not affected", "error", err,
			"hint", "Look whether the collector at tracing.endpoint runs and takes OTLP over HTTP.")
	case err == nil && e.failing:
		e.log.Info("traces are sent again")
	}
	e.failing = err != nil
	return nil
}

// parent is what a traceparent header says.
type parent struct {
	trace   trace.TraceID
	span    trace.SpanID
	sampled bool
}

// parseParent reads a traceparent header as W3C Trace Context writes it; an
// invalid one is none.
func parseParent(h []byte) (p parent, ok bool) {
	const length = len("00-0123456789abcdef0123456789abcdef-0123456789abcdef-00")
	if len(h) < length || h[2] != '-' || h[35] != '-' || h[52] != '-' {
		return p, false
	}
	var version, flags [1]byte
	if !unhex(version[:], h[:2]) || !unhex(p.trace[:], h[3:35]) || !unhex(p.span[:], h[36:52]) || !unhex(flags[:], h[53:55]) {
		return p, false
	}
	switch {
	case version[0] == 0xff, version[0] == 0 && len(h) > length, len(h) > length && h[length] != '-':
		return p, false
	}
	p.sampled = flags[0]&1 != 0
	return p, p.trace.IsValid() && p.span.IsValid()
}

// unhex reads lower-case hexadecimal digits, the only ones allowed here.
func unhex(dst, src []byte) bool {
	digit := func(c byte) (byte, bool) {
		switch {
		case '0' <= c && c <= '9':
			return c - '0', true
		case 'a' <= c && c <= 'f':
			return c - 'a' + 10, true
		}
		return 0, false
	}
	for i := range dst {
		high, ok1 := digit(src[2*i])
		low, ok2 := digit(src[2*i+1])
		if !ok1 || !ok2 {
			return false
		}
		dst[i] = high<<4 | low
	}
	return true
}

// parentHeader is a traceparent header.
func parentHeader(id trace.TraceID, span trace.SpanID, sampled bool) string {
	const digits = "0123456789abcdef"
	b := make([]byte, 0, 55)
	b = append(b, "00-"...)
	for _, c := range id {
		b = append(b, digits[c>>4], digits[c&15])
	}
	b = append(b, '-')
	for _, c := range span {
		b = append(b, digits[c>>4], digits[c&15])
	}
	if sampled {
		return string(append(b, "-01"...))
	}
	return string(append(b, "-00"...))
}

// coin says yes to that share of all questions.
func coin(share float64) bool { return share >= 1 || rand.Float64() < share }

// randomIDs makes ids for a request that is not sampled.
func randomIDs(id *trace.TraceID, span *trace.SpanID) {
	fill := func(b []byte) {
		for v := rand.Uint64() | 1; len(b) > 0; b, v = b[1:], v>>8 { // never all zeros
			b[0] = byte(v)
		}
	}
	if id != nil {
		fill(id[:8])
		fill(id[8:])
	}
	fill(span[:])
}

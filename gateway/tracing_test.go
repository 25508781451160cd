package gateway

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	otlp "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"penstock/engine/local"
	"penstock/engine/local/localtest"
)

// receiver takes spans as an OpenTelemetry collector does.
type receiver struct {
	url string

	mu    sync.Mutex
	spans []*otlp.Span
	about map[string]string // the resource's attributes
}

func startReceiver(t *testing.T) *receiver {
	t.Helper()
	rc := &receiver{about: map[string]string{}}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := rc.take(r); err != nil {
			t.Error(err)
			w.WriteHeader(http.StatusBadRequest)
		}
	}))
	t.Cleanup(s.Close)
	rc.url = s.URL
	return rc
}

func (rc *receiver) take(r *http.Request) error {
	z, err := gzip.NewReader(r.Body)
	if err != nil || r.URL.Path != "/v1/traces" {
		return fmt.Errorf("%s %s: %w", r.Method, r.URL, err)
	}
	b, err := io.ReadAll(z)
	if err != nil {
		return err
	}
	var in collector.ExportTraceServiceRequest
	if err := proto.Unmarshal(b, &in); err != nil {
		return err
	}
	rc.mu.Lock()
	defer rc.mu.Unlock()
	for _, rs := range in.ResourceSpans {
		for _, a := range rs.Resource.Attributes {
			rc.about[a.Key] = a.Value.GetStringValue()
		}
		for _, ss := range rs.ScopeSpans {
			rc.spans = append(rc.spans, ss.Spans...)
		}
	}
	return nil
}

// of waits for the spans of the trace whose root is the request of that id.
func (rc *receiver) of(t *testing.T, g *harness, requestID string, n int) (root *otlp.Span, children []*otlp.Span) {
	t.Helper()
	eventually(t, "a span of request "+requestID, func() bool { // it ends after the client has its answer
		if err := g.tracer.provider.ForceFlush(t.Context()); err != nil {
			t.Fatal(err)
		}
		rc.mu.Lock()
		defer rc.mu.Unlock()
		for _, s := range rc.spans {
			if attr(s, "penstock.request_id") == requestID {
				root = s
			}
		}
		return root != nil
	})
	rc.mu.Lock()
	defer rc.mu.Unlock()
	for _, s := range rc.spans {
		if bytes.Equal(s.ParentSpanId, root.SpanId) {
			children = append(children, s)
		}
	}
	if len(children) != n {
		t.Fatalf("the request has the spans %q below it, want %d", names(children), n)
	}
	return root, children
}

func names(spans []*otlp.Span) (all []string) {
	for _, s := range spans {
		all = append(all, s.Name)
	}
	slices.Sort(all)
	return all
}

// attr is a span's attribute as text.
func attr(s *otlp.Span, key string) string {
	for _, a := range s.Attributes {
		if a.Key == key {
			return strings.Trim(strings.SplitN(strings.ReplaceAll(a.Value.String(), " ", ""), ":", 2)[1], `"`)
		}
	}
	return ""
}

func spanNamed(t *testing.T, spans []*otlp.Span, name string) *otlp.Span {
	t.Helper()
	for _, s := range spans {
		if s.Name == name {
			return s
		}
	}
	t.Fatalf("no span %s among %q", name, names(spans))
	return nil
}

// echoHeaders is an engine that keeps the headers it gets and answers with a stream.
func echoHeaders(t *testing.T) (url string, seen func() http.Header) {
	t.Helper()
	var mu sync.Mutex
	var last http.Header
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/models" {
			fmt.Fprint(w, `{"object":"list","data":[{"id":"m","object":"model"}]}`)
			return
		}
		if r.Method != http.MethodPost {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		mu.Lock()
		last = r.Header.Clone()
		mu.Unlock()
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprint(w, "data: {\"choices\":[{\"index\":0,\"text\":\"hi\"}]}\n\ndata: {\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":1,\"prompt_tokens_details\":{\"cached_tokens\":4}}}\n\ndata: [DONE]\n\n")
	}))
	t.Cleanup(s.Close)
	return s.URL, func() http.Header {
		mu.Lock()
		defer mu.Unlock()
		return last
	}
}

const (
	tracedConfig = `
models: [{name: m, engines: [{url: $1, kind: openai, id: one}]}]
tracing: {endpoint: "$2", sample: 1}
`
	streamed      = `{"model":"m","prompt":"a secret prompt","stream":true,"max_tokens":5}`
	parentTrace   = "0af7651916cd43dd8448eb211c80319c"
	parentSampled = "traceparent: 00-" + parentTrace + "-b7ad6b7169203331-01"
)

func TestARequestIsATraceOfItsHops(t *testing.T) {
	rc, engine := startReceiver(t), ""
	engine, seen := echoHeaders(t)
	g := startGateway(t, tracedConfig, engine, rc.url)
	got := ask(t, "POST", g.url+"/v1/completions", streamed, parentSampled, "tracestate: vendor=1", "x-request-id: r-1")
	if got.status != 200 {
		t.Fatalf("got %d %s", got.status, got.body)
	}
	eventually(t, "the request is settled", func() bool { _, ok := g.recent.find("r-1"); return ok })
	root, children := rc.of(t, g, "r-1", 4)
	if got, want := names(children), []string{"admit", "choose", "queue", "upstream"}; !slices.Equal(got, want) {
		t.Errorf("children: got %q, want %q", got, want)
	}
	if id := fmt.Sprintf("%x", root.TraceId); id != parentTrace || fmt.Sprintf("%x", root.ParentSpanId) != "b7ad6b7169203331" {
		t.Errorf("the root is of trace %s, below %x: want the client's", id, root.ParentSpanId)
	}
	if root.Name != "text_completion m" || root.Kind != otlp.Span_SPAN_KIND_SERVER {
		t.Errorf("the root is %s, %v", root.Name, root.Kind)
	}
	up := spanNamed(t, children, "upstream")
	for _, c := range []struct {
		span      *otlp.Span
		key, want string
	}{
		{root, "gen_ai.operation.name", "text_completion"},
		{root, "gen_ai.request.model", "m"},
		{root, "gen_ai.request.stream", "true"},
		{root, "gen_ai.usage.input_tokens", "7"},
		{root, "gen_ai.usage.cache_read.input_tokens", "4"},
		{root, "gen_ai.usage.output_tokens", "1"},
		{root, "http.response.status_code", "200"},
		{root, "penstock.key", "anonymous"},
		{spanNamed(t, children, "choose"), "penstock.replica", "one"},
		{up, "gen_ai.provider.name", "openai"},
		{up, "server.address", "127.0.0.1"},
		{up, "http.response.status_code", "200"},
	} {
		if got := attr(c.span, c.key); got != c.want {
			t.Errorf("%s of %s: got %q, want %q", c.key, c.span.Name, got, c.want)
		}
	}
	if attr(root, "gen_ai.response.time_to_first_chunk") == "" || attr(up, "penstock.attempt_id") != seen().Get("X-Request-Id") {
		t.Errorf("the times or ids are not those of the attempt: %v, %v", root, up)
	}
	if len(up.Events) != 2 || up.Events[0].Name != "first byte" || up.Events[1].Name != "done" || up.Events[0].TimeUnixNano > up.Events[1].TimeUnixNano {
		t.Errorf("events of upstream: got %v, want first byte, then done", up.Events)
	}
	for _, c := range children {
		if c.StartTimeUnixNano < root.StartTimeUnixNano || c.EndTimeUnixNano > root.EndTimeUnixNano || c.EndTimeUnixNano < c.StartTimeUnixNano {
			t.Errorf("%s is not within its request", c.Name)
		}
	}
	if got, want := seen().Get("Traceparent"), fmt.Sprintf("00-%s-%x-01", parentTrace, up.SpanId); got != want {
		t.Errorf("the engine got traceparent %q, want that of the upstream span, %q", got, want)
	}
	if seen().Get("Tracestate") != "vendor=1" {
		t.Errorf("the engine got tracestate %q, want the client's", seen().Get("Tracestate"))
	}
	if rc.about["service.name"] != "penstock" {
		t.Errorf("resource: %v, want service.name penstock", rc.about)
	}
	rc.mu.Lock()
	defer rc.mu.Unlock()
	for _, s := range rc.spans {
		if strings.Contains(s.String(), "secret") {
			t.Errorf("prompt text in a span: %v", s)
		}
	}
}

func TestTheParentAndTheShareDecideWhatIsSampled(t *testing.T) {
	rc := startReceiver(t)
	engine, seen := echoHeaders(t)
	g := startGateway(t, strings.Replace(tracedConfig, "sample: 1", "sample: 0", 1), engine, rc.url)
	send := func(headers ...string) string {
		ask(t, "POST", g.url+"/v1/completions", streamed, headers...)
		return seen().Get("Traceparent")
	}
	if p, ok := parseParent([]byte(send())); !ok || p.sampled {
		t.Errorf("no parent, share 0: the engine got %q, want new ids, not sampled", seen().Get("Traceparent"))
	}
	if got := send("traceparent: 00-" + parentTrace + "-b7ad6b7169203331-00"); !strings.HasPrefix(got, "00-"+parentTrace+"-") || !strings.HasSuffix(got, "-00") || strings.Contains(got, "b7ad6b7169203331") {
		t.Errorf("parent not sampled: the engine got %q, want its trace, another span, not sampled", got)
	}
	send("traceparent: 00-"+strings.Repeat("0", 32)+"-b7ad6b7169203331-01", "tracestate: vendor=1")
	if got := seen(); strings.Contains(got.Get("Traceparent"), strings.Repeat("0", 32)) || got.Get("Tracestate") != "" {
		t.Errorf("invalid parent: the engine got %q with tracestate %q, want new ids and none", got.Get("Traceparent"), got.Get("Tracestate"))
	}
	send(parentSampled, "x-request-id: r-2")
	eventually(t, "the request is settled", func() bool { _, ok := g.recent.find("r-2"); return ok })
	rc.of(t, g, "r-2", 4)
	rc.mu.Lock()
	defer rc.mu.Unlock()
	if len(rc.spans) != 5 {
		t.Errorf("got %d spans, want the 5 of the one request whose parent is sampled", len(rc.spans))
	}
}

func TestFailuresAndRetriesAreInTheTrace(t *testing.T) {
	rc := startReceiver(t)
	broken := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/models" {
			fmt.Fprint(w, `{"object":"list","data":[{"id":"m","object":"model"}]}`)
			return
		}
		w.WriteHeader(http.StatusInternalServerError)
	}))
	defer broken.Close()
	g := startGateway(t, tracedConfig, broken.URL, rc.url)
	if got := ask(t, "POST", g.url+"/v1/completions", streamed, "x-request-id: r-3"); got.status != 502 {
		t.Fatalf("got %d %s, want 502", got.status, got.body)
	}
	root, children := rc.of(t, g, "r-3", 4)
	if up := spanNamed(t, children, "upstream"); up.Status.GetCode() != otlp.Status_STATUS_CODE_ERROR || attr(up, "error.type") != "status" {
		t.Errorf("upstream: got %v, error.type %q, want an error, status", up.Status, attr(up, "error.type"))
	}
	if root.Status.GetCode() != otlp.Status_STATUS_CODE_ERROR || attr(root, "error.type") != "upstream_error" {
		t.Errorf("root: got %v, error.type %q", root.Status, attr(root, "error.type"))
	}
	ask(t, "POST", g.url+"/v1/completions", `{"model":"nope","prompt":"x"}`, "x-request-id: r-4")
	if root, _ := rc.of(t, g, "r-4", 0); root.Status.GetCode() == otlp.Status_STATUS_CODE_ERROR || attr(root, "error.type") != "model_not_found" || root.Name != "/v1/completions" {
		t.Errorf("a client's mistake: got %s, %v, error.type %q", root.Name, root.Status, attr(root, "error.type"))
	}
	ask(t, "GET", g.url+"/healthz", "")
	if n := g.tracer.provider.ForceFlush(t.Context()); n != nil {
		t.Fatal(n)
	}
	rc.mu.Lock()
	defer rc.mu.Unlock()
	if slices.ContainsFunc(rc.spans, func(s *otlp.Span) bool { return strings.Contains(s.Name, "healthz") }) {
		t.Errorf("a probe was traced")
	}
}

func TestEachPartOfAScoringRequestHasItsSpans(t *testing.T) {
	rc := startReceiver(t)
	g := startGateway(t, fourEngines+"tracing: {endpoint: \"$5\", sample: 1}\n", append(four(t, local.Options{}), rc.url)...)
	long := strings.Repeat("the water falls through the pipe ", 8)
	body := fmt.Sprintf(`{"model":"m","prompt":[%q,%q],"echo":true,"logprobs":1,"max_tokens":0}`, long, long)
	if got := ask(t, "POST", g.url+"/v1/completions", body, "x-request-id: r-5"); got.status != 200 {
		t.Fatalf("got %d %s", got.status, got.body)
	}
	eventually(t, "the request is settled", func() bool { _, ok := g.recent.find("r-5"); return ok })
	_, children := rc.of(t, g, "r-5", 1+3*2)
	if got := names(children); got[1] != "choose" || got[2] != "choose" || got[6] != "upstream" {
		t.Errorf("got %q, want two of each but admit", got)
	}
}

// TestACollectorThatIsGoneHoldsNothingUp sends requests while nothing takes the spans.
func TestACollectorThatIsGoneHoldsNothingUp(t *testing.T) {
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	g := startGateway(t, tracedConfig, localtest.URL(t, local.Options{Model: "m"}), gone.URL)
	for range 20 {
		if got := ask(t, "POST", g.url+"/v1/completions", streamed); got.status != 200 {
			t.Fatalf("got %d %s", got.status, got.body)
		}
	}
	began := time.Now()
	g.Shutdown()
	if took := time.Since(began); took > traceFlush+2*time.Second {
		t.Errorf("the end took %v, want the flush to be bounded by %v", took, traceFlush)
	}
}

func TestTracingOffCostsNothing(t *testing.T) {
	var x *traced
	r, a := &request{}, &attempt{}
	if n := testing.AllocsPerRun(100, func() {
		began := x.now()
		x.admitted(began, r, nil)
		x.bound(began)
		x.chosen(began, r, nil)
		x.tell(a, nil)
		x.end(r)
		if x.traceID() != "" || x.part() != nil || x.upstream(a) != nil {
			t.Error("a trace without tracing")
		}
	}); n != 0 {
		t.Errorf("tracing off: %v allocations, want none", n)
	}
}

func TestOffTraceparentPassesAsItCame(t *testing.T) {
	engine, seen := echoHeaders(t)
	g := startGateway(t, strings.Split(tracedConfig, "tracing")[0], engine)
	ask(t, "POST", g.url+"/v1/completions", streamed, parentSampled, "tracestate: vendor=1")
	if got := "traceparent: " + seen().Get("Traceparent"); got != parentSampled || seen().Get("Tracestate") != "vendor=1" {
		t.Errorf("the engine got %q, want what the client sent", got)
	}
}

func TestTraceparentIsReadAsTheStandardSays(t *testing.T) {
	const good = "00-" + parentTrace + "-b7ad6b7169203331-01"
	for h, ok := range map[string]bool{
		good:                        true,
		"cc" + good[2:] + "-future": true,
		"cc" + good[2:]:             true,
		"":                          false,
		good + "-more":              false,
		"ff" + good[2:]:             false,
		"cc" + good[2:] + "x":       false,
		strings.ToUpper(good):       false,
		strings.Replace(good, parentTrace, strings.Repeat("0", 32), 1):   false,
		strings.Replace(good, "b7ad6b7169203331", "0000000000000000", 1): false,
		strings.Replace(good, "-", "_", 1):                               false,
	} {
		if p, got := parseParent([]byte(h)); got != ok || got && !p.sampled {
			t.Errorf("%q: valid %v, want %v", h, got, ok)
		}
	}
	if p, _ := parseParent([]byte(good)); parentHeader(p.trace, p.span, true) != good {
		t.Errorf("written again it is %q", parentHeader(p.trace, p.span, true))
	}
}

func TestTracesURLAddsTheStandardPath(t *testing.T) {
	for in, want := range map[string]string{
		"http://otel:4318":           "http://otel:4318/v1/traces",
		"http://otel:4318/":          "http://otel:4318/v1/traces",
		"https://otel/custom/traces": "https://otel/custom/traces",
	} {
		if got, err := tracesURL(in); err != nil || got != want {
			t.Errorf("%s: got %s, %v, want %s", in, got, err, want)
		}
	}
}

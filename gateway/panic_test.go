package gateway

import (
	"strings"
	"testing"
	"time"

	"penstock/e2e/faulty"
)

const oneFaulty = `
models:
  - name: m
    engines: [{url: $1, kind: openai, id: a}]
timeouts: {connect: 5s, first_token: 20s, idle: 20s, request: 30s}
keys: [{name: k, key: "${K}", limits: {tokens_per_minute: 1000000, concurrency: 100}}]
`

// panics is how many the gateway has counted.
func (h *harness) panics(t *testing.T) string {
	t.Helper()
	for line := range strings.Lines(ask(t, "GET", h.admin+"/metrics", "").body) {
		if n, ok := strings.CutPrefix(line, "penstock_panics_total "); ok {
			return strings.TrimSpace(n)
		}
	}
	return "none"
}

func TestAPanicInARequestIsAnswered500AndTouchesNoOther(t *testing.T) {
	hold := make(chan struct{})
	s := faulty.Start(t, engineOf(faulty.Always(func(c *faulty.Conn) {
		c.Stream()
		c.Event(faulty.Chunk("Hello"))
		<-hold
		c.Event(faulty.Done)
		c.End()
	})))
	g := startGateway(t, oneFaulty, s.URL)
	g.routes["/v1/panic"] = &route{path: "/v1/panic", methods: []string{"POST"}, counted: true, serve: func(_ *Server, r *request) {
		if err := r.s.identify(r); err != nil { // holds what any request holds
			t.Error(err)
		}
		panic("on purpose")
	}}
	running := make(chan answer, 1)
	go func() { running <- ask(t, "POST", g.url+"/v1/chat/completions", chatBody+`,"stream":true}`, auth) }()
	eventually(t, "the stream runs", func() bool { return g.attempts.count() == 1 })
	got := ask(t, "POST", g.url+"/v1/panic", chatBody+"}", auth)
	if got.status != 500 || !strings.Contains(got.body, `"code":"internal_error"`) || strings.Contains(got.body, "on purpose") {
		t.Errorf("got %d %s, want 500 internal_error without details", got.status, got.body)
	}
	close(hold)
	if x := <-running; !strings.HasSuffix(x.body, "data: [DONE]\n\n") {
		t.Errorf("the stream beside it got %q, want it whole", x.body)
	}
	if n := g.panics(t); n != "1" {
		t.Errorf("penstock_panics_total is %s, want 1", n)
	}
	if log := g.log.String(); !strings.Contains(log, "on purpose") || !strings.Contains(log, "panic_test.go") {
		t.Error("the log has neither what the panic said nor where it was")
	}
	g.atRest(t)
}

// recent is taken away, so that every request panics when it is recorded: at
// the very end, after its answer has been made or written.
func TestAPanicAtTheEndOfARequestGivesEverythingBack(t *testing.T) {
	s := faulty.Start(t, engineOf(faulty.ByName(nil)))
	g := startGateway(t, oneFaulty, s.URL)
	g.recent = nil
	for _, c := range []struct {
		body   string
		status int
		ends   string
	}{
		{chatBody + "}", 200, "}"},
		{chatBody + `,"stream":true}`, 200, "data: [DONE]\n\n"},
		{`{"model":"nobody"}`, 500, "}"},
	} {
		got := ask(t, "POST", g.url+"/v1/chat/completions", c.body, auth)
		if got.status != c.status || !strings.HasSuffix(got.body, c.ends) {
			t.Errorf("%s: got %d %s, want %d and a whole answer", c.body, got.status, got.body, c.status)
		}
	}
	if n := g.panics(t); n != "3" {
		t.Errorf("penstock_panics_total is %s, want 3", n)
	}
	g.atRest(t)
	if k := g.limitsObject(t.Context(), time.Now()).Keys[0]; k.Running != 0 {
		t.Errorf("%d requests count as running, want 0", k.Running)
	}
}

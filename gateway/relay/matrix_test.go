package relay

import (
	"net"
	"strings"
	"testing"
	"time"

	"penstock/e2e/faulty"
)

// seen is what a client that stays must see of one fault.
type seen struct {
	status int
	code   string // in the body, or, of a 200, in the last event
	clean  bool
}

// expectation is what becomes of a fault, in a stream and in a whole answer.
type expectation struct{ stream, whole seen }

func expectations() map[string]expectation {
	lost := seen{502, "upstream_disconnected", true}
	bad := seen{502, "upstream_error", true}
	busy := seen{503, "engine_overloaded", true}
	idle := seen{504, "stream_idle_timeout", true}
	late := seen{504, "upstream_timeout", true}
	noToken := seen{504, "first_token_timeout", true}
	cut := func(code string) seen { return seen{200, code, false} }
	good := seen{200, "", true}
	return map[string]expectation{
		"refused":                 {bad, bad},
		"reset-before-headers":    {lost, lost},
		"reset-after-headers":     {lost, lost},
		"reset-mid-event":         {cut("upstream_disconnected"), lost},
		"close-without-marker":    {cut("upstream_disconnected"), lost},
		"close-without-length":    {cut("upstream_disconnected"), lost},
		"half-event-then-silence": {cut("stream_idle_timeout"), idle},
		"headers-never":           {noToken, late},
		"first-token-never":       {noToken, late},
		"silence-mid-stream":      {cut("stream_idle_timeout"), idle},
		"byte-per-second":         {cut("stream_idle_timeout"), idle},
		"500":                     {bad, bad},
		"502-html":                {bad, bad},
		"503-json":                {busy, busy},
		"503-in-stream":           {busy, busy},
		"429-retry-after":         {busy, busy},
		"400-flat":                {seen{400, "BadRequestError", true}, seen{400, "BadRequestError", true}},
		"16mb-event":              {cut("upstream_error"), good},
		"chunked-garbage":         {cut("upstream_error"), bad},
		"not-http":                {bad, bad},
		"wrong-content-type":      {bad, bad},
		"gzip":                    {bad, good},
		"trailing-data":           {good, good},
	}
}

// bigEvent is smaller than the real thing, which takes seconds under the race detector.
const bigEvent = 3 << 20

// bound is within what every case of the matrix must be over: the longest
// deadline of the gate, and some seconds for a busy machine.
func bound(o Timeouts) time.Duration { return o.Request + 8*time.Second }

// refusing is the URL of an engine that refuses connections.
func refusing(t *testing.T) string {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	return "http://" + ln.Addr().String()
}

// matrixGate is a gate before an engine with that fault.
func matrixGate(t *testing.T, name string) (*gate, *faulty.Server) {
	s := faulty.Start(t, faulty.ByName(faulty.Matrix(bigEvent)))
	url := s.URL
	if name == "refused" {
		url = refusing(t)
	}
	g := newGate(t, url, Options{MaxEvent: bigEvent / 2})
	g.timeouts = Timeouts{Connect: 10 * time.Second, First: 10 * time.Second, Idle: 10 * time.Second, Request: 20 * time.Second}
	switch name {
	case "half-event-then-silence", "headers-never", "first-token-never", "silence-mid-stream", "byte-per-second":
		g.timeouts.First, g.timeouts.Idle, g.timeouts.Request = 500*time.Millisecond, 400*time.Millisecond, 2*time.Second
	}
	return g, s
}

// atRest checks that nothing of the request is left.
func atRest(t *testing.T, g *gate) {
	t.Helper()
	eventually(t, "no connection to the engine in use", func() bool {
		open, idle := g.up.Conns()
		return open == idle
	})
	select {
	case <-g.changed:
		t.Error("the end of one request was told twice")
	default:
	}
}

func forMatrix(t *testing.T, run func(t *testing.T, g *gate, s *faulty.Server, name string, stream bool, want seen)) {
	wants := expectations()
	for _, f := range faulty.Matrix(bigEvent) {
		want, ok := wants[f.Name]
		if !ok {
			t.Errorf("fault %s has no expectation", f.Name)
		}
		for _, c := range []struct {
			name   string
			stream bool
			want   seen
		}{{"stream", true, want.stream}, {"whole", false, want.whole}} {
			t.Run(f.Name+"/"+c.name, func(t *testing.T) {
				t.Parallel()
				g, s := matrixGate(t, f.Name)
				run(t, g, s, f.Name, c.stream, c.want)
				atRest(t, g)
			})
		}
	}
}

func check(t *testing.T, r reply, want seen) {
	t.Helper()
	last := r.body[max(0, len(r.body)-200):]
	if r.status != want.status || r.clean != want.clean || !strings.Contains(last, want.code) {
		t.Errorf("got status %d, clean end %v, body ending in %q\nwant status %d, clean end %v, code %q", r.status, r.clean, last, want.status, want.clean, want.code)
	}
}

func TestMatrixClientStays(t *testing.T) {
	forMatrix(t, func(t *testing.T, g *gate, _ *faulty.Server, name string, stream bool, want seen) {
		c := dial(t, g.addr)
		begun := time.Now()
		c.send(chatBody(name, stream))
		check(t, c.read(), want)
		if took := time.Since(begun); took > bound(g.timeouts) {
			t.Errorf("took %v, want at most %v", took, bound(g.timeouts))
		}
		g.outcome()
	})
}

func TestMatrixClientReadsSlowly(t *testing.T) {
	forMatrix(t, func(t *testing.T, g *gate, _ *faulty.Server, name string, stream bool, want seen) {
		c := dial(t, g.addr)
		_ = c.Conn.(*net.TCPConn).SetReadBuffer(64 << 10)
		c.send(chatBody(name, stream))
		<-time.After(80 * time.Millisecond)
		check(t, c.read(), want)
		g.outcome()
	})
}

func TestMatrixClientLeaves(t *testing.T) {
	forMatrix(t, func(t *testing.T, g *gate, s *faulty.Server, name string, stream bool, _ seen) {
		c := dial(t, g.addr)
		c.send(chatBody(name, stream))
		if name != "refused" {
			eventually(t, "the engine has the request", func() bool { return len(s.Requests()) == 1 })
		}
		_ = c.Close()
		left := time.Now()
		o := g.outcome()
		if took := o.at.Sub(left); took > bound(g.timeouts) {
			t.Errorf("over after %v, want at most %v", took, bound(g.timeouts))
		}
	})
}

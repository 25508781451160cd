package relay

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/valyala/fasthttp"

	"penstock/e2e/faulty"
)

// gate is the least gateway: it relays every request to one upstream, once.
type gate struct {
	t     testing.TB
	relay *Relay
	up    *Upstream
	addr  string

	timeouts Timeouts
	dialect  Dialect
	drop     bool // Request.DropUsage
	once     bool
	oncall   func(*Call)
	onsink   func(Sink) Sink

	mu      sync.Mutex
	results []outcome
	changed chan struct{}
}

// outcome is what became of one request.
type outcome struct {
	err    error // of Do
	answer Answer
	result Result
	gone   bool
	at     time.Time
}

// patient are deadlines that a busy machine keeps.
func patient() Timeouts {
	return Timeouts{Connect: 10 * time.Second, First: 20 * time.Second, Idle: 20 * time.Second, Request: time.Minute}
}

func newGate(t testing.TB, upstream string, o Options) *gate {
	t.Helper()
	g := &gate{t: t, relay: New(o), timeouts: patient(), changed: make(chan struct{}, 1<<16)}
	up, err := g.relay.NewUpstream(UpstreamOptions{URL: upstream})
	if err != nil {
		t.Fatal(err)
	}
	g.up = up
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g.serve(ln)
	g.addr = ln.Addr().String()
	return g
}

// serve serves the listener until the test ends.
func (g *gate) serve(ln net.Listener) {
	srv := &fasthttp.Server{Handler: g.handle, CloseOnShutdown: true, NoDefaultServerHeader: true, Logger: noLog{}}
	var wg sync.WaitGroup
	wg.Go(func() { _ = srv.Serve(ln) })
	g.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = srv.ShutdownWithContext(ctx)
		wg.Wait()
		g.up.Close()
		g.relay.Close()
	})
}

type noLog struct{}

func (noLog) Printf(string, ...any) {}

func (g *gate) handle(ctx *fasthttp.RequestCtx) {
	call := &Call{Start: time.Now(), Timeouts: g.timeouts}
	if g.oncall != nil {
		g.oncall(call)
	}
	watch := watch(g.relay, ctx.Conn(), func() { call.Cancel(ErrClientGone) })
	body := ctx.Request.Body()
	req := &Request{
		Method: string(ctx.Method()), Path: string(ctx.RequestURI()), Header: &ctx.Request.Header, Body: [][]byte{body},
		Streamed: strings.Contains(string(body), `"stream":true`), Dialect: g.dialect, DropUsage: g.drop, Once: g.once,
	}
	s := &sink{g: g, watch: watch}
	a, err := g.up.Do(call, req, &ctx.Response)
	s.answer = a
	v := Decide(Facts{Err: err, Status: a.Status, RetryAfter: a.RetryAfter, Attempt: 1, MaxAttempts: 1})
	if v.Pass {
		if g.onsink != nil {
			a.Relay(g.onsink(s))
			return
		}
		a.Relay(s)
		return
	}
	if err == nil {
		a.Discard()
	}
	gone := watch.Stop()
	ctx.Response.Reset()
	ctx.Error(v.Code, v.Status)
	if v.RetryAfter > 0 {
		ctx.Response.Header.Set("Retry-After", fmt.Sprint(v.RetryAfter.Seconds()))
	}
	g.report(outcome{err: err, answer: a, gone: gone})
}

func (g *gate) report(o outcome) {
	o.at = time.Now()
	g.mu.Lock()
	g.results = append(g.results, o)
	g.mu.Unlock()
	g.changed <- struct{}{}
}

// outcome waits for the next request's.
func (g *gate) outcome() outcome {
	g.t.Helper()
	select {
	case <-g.changed:
	case <-time.After(30 * time.Second):
		g.t.Fatal("no outcome of a request within 30 s")
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	o := g.results[0]
	g.results = g.results[1:]
	return o
}

type sink struct {
	g      *gate
	watch  *Watch
	answer Answer
}

func (s *sink) ErrorEvent(e *Error) []byte {
	v := Decide(Facts{Err: e, Started: true})
	return fmt.Appendf(nil, "data: {\"error\":{\"code\":%q}}\n\n", v.Code)
}

func (s *sink) Done(r Result) {
	gone := s.watch.Stop()
	s.g.report(outcome{answer: s.answer, result: r, gone: gone})
}

// reply is what a client saw.
type reply struct {
	status int
	header map[string]string
	body   string
	clean  bool // the body ended as its framing says
}

// chatBody is a request for that fault.
func chatBody(fault string, stream bool) string {
	return fmt.Sprintf(`{"model":"m","stream":%t,"messages":[{"role":"user","content":%q}]}`, stream, faulty.Marker(fault))
}

// client is a raw HTTP/1.1 client, so that a test sees framing as it is.
type client struct {
	t testing.TB
	net.Conn
	br *bufio.Reader
}

func dial(t testing.TB, addr string) *client {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	return &client{t, c, bufio.NewReader(c)}
}

func (c *client) send(body string) {
	c.t.Helper()
	if _, err := fmt.Fprintf(c, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body); err != nil {
		c.t.Fatal(err)
	}
}

// read reads one reply.
func (c *client) read() reply {
	c.t.Helper()
	r, err := c.tryRead()
	if err != nil {
		c.t.Fatalf("reading the reply: %v", err)
	}
	return r
}

func (c *client) tryRead() (r reply, err error) {
	line, err := c.br.ReadString('\n')
	if err != nil {
		return r, err
	}
	if _, err := fmt.Sscanf(line, "HTTP/1.1 %d", &r.status); err != nil {
		return r, fmt.Errorf("status line %q: %w", line, err)
	}
	r.header = map[string]string{}
	for {
		line, err := c.br.ReadString('\n')
		if err != nil {
			return r, err
		}
		name, value, ok := strings.Cut(strings.TrimSpace(line), ":")
		if !ok {
			break
		}
		r.header[strings.ToLower(name)] = strings.TrimSpace(value)
	}
	var b strings.Builder
	if r.header["transfer-encoding"] == "chunked" {
		r.clean = c.readChunks(&b)
	} else {
		var n int64
		_, _ = fmt.Sscanf(r.header["content-length"], "%d", &n)
		m, _ := io.CopyN(&b, c.br, n)
		r.clean = m == n
	}
	r.body = b.String()
	return r, nil
}

func (c *client) readChunks(b *strings.Builder) (clean bool) {
	for {
		var n int64
		line, err := c.br.ReadString('\n')
		if err != nil {
			return false
		}
		if _, err := fmt.Sscanf(line, "%x\r\n", &n); err != nil {
			return false
		}
		if n == 0 {
			_, err := c.br.ReadString('\n')
			return err == nil
		}
		if _, err := io.CopyN(b, c.br, n); err != nil {
			return false
		}
		if _, err := c.br.Discard(2); err != nil {
			return false
		}
	}
}

// eventually waits until ok, and fails after 15 s.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(15 * time.Second); !ok(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("not within 15 s: %s", what)
		}
	}
}

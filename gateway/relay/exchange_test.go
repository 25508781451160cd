package relay

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/valyala/fasthttp"

	"penstock/e2e/faulty"
)

// direct is a Do without a gateway before it.
type direct struct {
	resp   fasthttp.Response
	body   bytes.Buffer
	answer Answer
	result Result
	werr   error // of writing the body
	events []*Error
}

func (d *direct) ErrorEvent(e *Error) []byte {
	d.events = append(d.events, e)
	return []byte("data: error " + e.Kind.String() + "\n\n")
}

func (d *direct) Done(r Result) { d.result = r }

// do does the request and relays the answer into a buffer.
func do(up *Upstream, call *Call, req *Request) (*direct, error) {
	d := &direct{}
	a, err := up.Do(call, req, &d.resp)
	if err != nil {
		return d, err
	}
	d.answer = a
	a.Relay(d)
	d.werr = d.resp.BodyWriteTo(&d.body)
	return d, nil
}

func newUpstream(t testing.TB, url string, o Options) *Upstream {
	t.Helper()
	r := New(o)
	up, err := r.NewUpstream(UpstreamOptions{URL: url})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { up.Close(); r.Close() })
	return up
}

func newCall() *Call { return &Call{Start: time.Now(), Timeouts: patient()} }

func post(body string) *Request {
	return &Request{Path: "/v1/chat/completions", Body: [][]byte{[]byte(body)}, Streamed: strings.Contains(body, `"stream":true`)}
}

// wantError is the *Error in err, or the test fails.
func wantError(t *testing.T, err error, kind Kind) *Error {
	t.Helper()
	e, ok := errors.AsType[*Error](err)
	if !ok || e.Kind != kind {
		t.Fatalf("got error %v, want one of kind %q", err, kind)
	}
	return e
}

func TestIdleConnectionThatTheEngineClosedIsReplacedOnce(t *testing.T) {
	hangUp := func(c *faulty.Conn) {}
	whole := faulty.Good().Whole
	for _, c := range []struct {
		name   string
		second faulty.Script
		once   bool
		ok     bool
	}{
		{"closed", hangUp, false, true},
		{"reset", (*faulty.Conn).Reset, false, true},
		{"closed, but the request must not be sent twice", hangUp, true, false},
	} {
		for _, size := range []int{10, 1 << 20} {
			t.Run(fmt.Sprintf("%s, %d bytes", c.name, size), func(t *testing.T) {
				s := faulty.Start(t, func(r *faulty.Request) faulty.Script {
					if r.Seq == 2 {
						return c.second
					}
					return whole
				})
				up := newUpstream(t, s.URL, Options{})
				if _, err := do(up, newCall(), post("{}")); err != nil {
					t.Fatal(err)
				}
				req := post(strings.Repeat("x", size))
				req.Once = c.once
				d, err := do(up, newCall(), req)
				if !c.ok {
					if e := wantError(t, err, KindDisconnected); !e.Reused || e.AfterBytes || !e.Died() {
						t.Errorf("error %+v, want one on a reused connection before any byte", e)
					}
					return
				}
				if err != nil || !d.answer.Resent || d.body.String() != faulty.JSON {
					t.Errorf("error %v, resent %v, body %q, want the good answer on a second connection", err, d.answer.Resent, d.body.String())
				}
				if n := s.Accepted(); n != 2 {
					t.Errorf("%d connections, want 2", n)
				}
			})
		}
	}
}

func TestFreshConnectionThatBreaksIsNotRetried(t *testing.T) {
	s := faulty.Start(t, faulty.Always(func(*faulty.Conn) {}))
	up := newUpstream(t, s.URL, Options{})
	_, err := do(up, newCall(), post("{}"))
	if e := wantError(t, err, KindDisconnected); e.Reused || !e.Sent || e.AfterBytes {
		t.Errorf("error %+v, want sent, not reused, before any byte", e)
	}
	if n := len(s.Requests()); n != 1 {
		t.Errorf("the engine saw %d requests, want 1", n)
	}
}

func TestIdleConnectionsAreClosedInTime(t *testing.T) {
	s := faulty.Start(t, faulty.ByName(nil))
	up := newUpstream(t, s.URL, Options{MaxIdle: 50 * time.Millisecond})
	if _, err := do(up, newCall(), post("{}")); err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	if open, idle := up.Conns(); open != 1 || idle != 1 {
		t.Fatalf("%d open, %d idle, want 1, 1", open, idle)
	}
	eventually(t, "the idle connection is closed", func() bool { open, _ := up.Conns(); return open == 0 && s.Open() == 0 })
	if took := time.Since(begun); took > time.Second {
		t.Errorf("closed after %v, want about 50ms", took)
	}
}

func TestClosedUpstreamRefuses(t *testing.T) {
	s := faulty.Start(t, faulty.ByName(nil))
	up := newUpstream(t, s.URL, Options{})
	if _, err := do(up, newCall(), post("{}")); err != nil {
		t.Fatal(err)
	}
	up.Close()
	_, err := do(up, newCall(), post("{}"))
	wantError(t, err, KindConnect)
	if open, _ := up.Conns(); open != 0 {
		t.Errorf("%d connections open after Close, want 0", open)
	}
}

// stuckDial waits for the end of its context, as a host that does not answer does.
func stuckDial(ctx context.Context, _, _ string) (net.Conn, error) {
	<-ctx.Done()
	return nil, &net.OpError{Op: "dial", Err: ctx.Err()}
}

func TestDialEndsByDeadlineOrCancel(t *testing.T) {
	r := New(Options{})
	defer r.Close()
	up, err := r.NewUpstream(UpstreamOptions{URL: "http://192.0.2.1", Dial: stuckDial})
	if err != nil {
		t.Fatal(err)
	}
	call := newCall()
	call.Timeouts.Connect = 30 * time.Millisecond
	_, err = do(up, call, post("{}"))
	if e := wantError(t, err, KindTimeout); e.Limit != LimitConnect || e.Sent {
		t.Errorf("error %+v, want the connect deadline, nothing sent", e)
	}

	call = newCall()
	call.Timeouts = Timeouts{}
	begun := time.Now()
	time.AfterFunc(20*time.Millisecond, func() { call.Cancel(ErrClientGone) })
	_, err = do(up, call, post("{}"))
	if wantError(t, err, KindCanceled); !errors.Is(err, ErrClientGone) {
		t.Errorf("error %v, want the cause", err)
	}
	if took := time.Since(begun); took > 10*time.Second {
		t.Errorf("cancelled after %v, want about 20ms", took)
	}
	if open, _ := up.Conns(); open != 0 {
		t.Errorf("%d connections counted, want 0", open)
	}

	call = newCall()
	call.Cancel(ErrUnhealthy)
	_, err = do(up, call, post("{}"))
	if e := wantError(t, err, KindCanceled); e.Died() {
		t.Error("a request that was never sent counts as one that the replica died on")
	}
}

func TestTooManyConnectionsIsAnError(t *testing.T) {
	s := faulty.Start(t, faulty.Always((*faulty.Conn).Wait))
	up := newUpstream(t, s.URL, Options{MaxConns: 1})
	call := newCall()
	var wg sync.WaitGroup
	wg.Go(func() {
		_, err := do(up, call, post("{}"))
		wantError(t, err, KindCanceled)
	})
	eventually(t, "the first request is there", func() bool { return len(s.Requests()) == 1 })
	_, err := do(up, newCall(), post("{}"))
	wantError(t, err, KindConnect)
	call.Cancel(ErrUnhealthy)
	wg.Wait()
}

func TestCancelCausesReachTheStream(t *testing.T) {
	for _, cause := range []error{ErrUnhealthy, ErrDraining, errors.New("taken away")} {
		s := faulty.Start(t, faulty.ByName(faulty.Matrix(bigEvent)))
		call, d := newCall(), &direct{}
		a, err := newUpstream(t, s.URL, Options{}).Do(call, post(chatBody("silence-mid-stream", true)), &d.resp)
		if err != nil {
			t.Fatal(err)
		}
		a.Relay(d)
		d.werr = d.resp.BodyWriteTo(writerFunc(func(p []byte) (int, error) {
			if _, _ = d.body.Write(p); strings.Contains(d.body.String(), "there") {
				call.Cancel(cause)
			}
			return len(p), nil
		}))
		if len(d.events) != 1 || !errors.Is(d.events[0], cause) || d.result.Err != d.events[0] || d.result.Events != 2 || d.werr == nil {
			t.Errorf("%v: error events %v, result %+v, write error %v; want one event of that cause after two events", cause, d.events, d.result, d.werr)
		}
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// A cancel at any moment, the one between the end of an answer and the release
// of its connection included, must never put a dead connection into the pool.
func TestCancelledConnectionsAreNeverPooled(t *testing.T) {
	s := faulty.Start(t, faulty.ByName(nil))
	up := newUpstream(t, s.URL, Options{})
	rounds := 3000
	if testing.Short() {
		rounds = 300
	}
	var wg sync.WaitGroup
	var cancelled, resent atomic.Int64
	for w := range 8 {
		rnd := rand.New(rand.NewPCG(1, uint64(w)))
		wg.Go(func() {
			for range rounds / 8 {
				call := newCall()
				var aborter sync.WaitGroup
				abort := rnd.IntN(2) == 0
				if abort {
					spin := rnd.IntN(20000)
					aborter.Go(func() {
						for range spin {
							_ = call.Cause()
							if spin%3 == 0 {
								break
							}
						}
						call.Cancel(ErrClientGone)
					})
				}
				d, err := do(up, call, post(chatBody("none", rnd.IntN(2) == 0)))
				aborter.Wait()
				switch {
				case abort:
					cancelled.Add(1)
				case err != nil || d.werr != nil || d.result.Err != nil:
					t.Errorf("a request that nobody cancelled: %v, %v, %v", err, d.werr, d.result.Err)
				case d.answer.Resent:
					resent.Add(1)
				}
			}
		})
	}
	wg.Wait()
	if resent.Load() > 0 {
		t.Errorf("%d requests met a dead connection in the pool, want 0 (%d were cancelled)", resent.Load(), cancelled.Load())
	}
	open, idle := up.Conns()
	if open != idle {
		t.Errorf("%d connections open, %d idle: %d were not given back", open, idle, open-idle)
	}
}

func TestEarlyRefusalIsReadWhileTheBodyIsSent(t *testing.T) {
	refusal := `{"error":{"message":"too large","code":413}}`
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() { // reads nothing of the body, answers, hangs up
		c, err := ln.Accept()
		if err != nil {
			return
		}
		_, _ = c.Read(make([]byte, 100))
		fmt.Fprintf(c, "HTTP/1.1 413 Too Large\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s", len(refusal), refusal)
		_ = c.Close()
	})
	defer wg.Wait()
	defer ln.Close()
	up := newUpstream(t, "http://"+ln.Addr().String(), Options{})
	d, err := do(up, newCall(), post(strings.Repeat("x", 8<<20)))
	if err != nil || d.answer.Status != 413 || d.body.String() != refusal {
		t.Errorf("error %v, status %d, body %q, want 413 and the engine's body", err, d.answer.Status, d.body.String())
	}
}

func TestErrorsHoldNoContent(t *testing.T) {
	const secret = "the-prompt-or-a-key"
	s := faulty.Start(t, faulty.Always(func(c *faulty.Conn) { c.Raw("HTTP/1.1 2000 " + secret + "\r\n" + secret + "\r\n\r\n") }))
	up := newUpstream(t, s.URL, Options{})
	_, err := do(up, newCall(), post(secret))
	if e := wantError(t, err, KindProtocol); strings.Contains(e.Error(), secret) {
		t.Errorf("the error's text holds what the engine sent: %v", e)
	}
}

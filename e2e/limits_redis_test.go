package e2e

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"penstock/e2e/harness"
	"penstock/e2e/scripted"
)

// redisTimeout is generous, so that a machine busy with other things does not
// look like a Redis that is away.
const redisTimeout = 500 * time.Millisecond

// sharing starts n gateways that share a Redis at addr.
func sharing(t *testing.T, n int, addr, onError, up, keys string) []*harness.Process {
	t.Helper()
	var all []*harness.Process
	for range n {
		all = append(all, harness.Serve(t, fmt.Sprintf(`
models: [{name: %s, engines: [{url: %s, kind: openai}]}]
redis: {url: "redis://%s", on_error: %s, timeout: %v, gateways: %d}
log: {access: false}
keys:
%s`, scripted.Model, up, addr, onError, redisTimeout, n, keys)))
	}
	return all
}

func mode(t *testing.T, g *harness.Process, want string) {
	t.Helper()
	harness.Eventually(t, 20*time.Second, "limits mode "+want, func() error {
		if metric(t, g, "penstock_limits_mode", fmt.Sprintf("mode=%q", want)) != 1 {
			return fmt.Errorf("the metric says another; GET /limits says %s", limitsOf(t, g).Mode)
		}
		return nil
	})
}

// TestThreeGatewaysAdmitAsMuchAsOne: rates and concurrency hold over all of
// them together, to the last request.
func TestThreeGatewaysAdmitAsMuchAsOne(t *testing.T) {
	up := scripted.Start(t)
	r := startRedis(t)
	gs := sharing(t, 3, r.addr, "local", up.URL,
		keyLine("rate", "limits: {requests_per_minute: 1, requests_burst: 90}")+keyLine("slots", "limits: {concurrency: 5}"))
	var mu sync.Mutex
	var wg sync.WaitGroup
	ends := map[int]int{}
	for i := range 180 {
		wg.Go(func() {
			a := tryPost(t.Context(), gs[i%3].URL+"/v1/chat/completions", say1(scripted.Model, "hello", false, ""), as("rate")...)
			mu.Lock()
			defer mu.Unlock()
			ends[a.status]++
		})
	}
	wg.Wait()
	if ends[200] < 90 || ends[200] > 92 || ends[200]+ends[429] != 180 { // one is refilled each minute
		t.Errorf("180 requests to three gateways: %v, want 90 admitted and 90 refused", ends)
	}
	for _, g := range gs {
		mode(t, g, "redis")
	}
	var waiters []*held
	for i := range 15 {
		waiters = append(waiters, hold(t, gs[i%3].URL+"/v1/chat/completions", say1(scripted.Model, "script:slow", true, ""), as("slots")...))
	}
	atEngine(t, up, 5)
	harness.Eventually(t, soon, "ten wait", func() error {
		n := 0
		for _, g := range gs {
			n += limitsOf(t, g).Queues[0].Waiting
		}
		if n != 10 {
			return fmt.Errorf("%d do", n)
		}
		return nil
	})
	if n := up.Open(); n != 5 {
		t.Errorf("%d requests at the engine, want the 5 of the key's concurrency over all gateways", n)
	}
	for _, w := range waiters {
		w.leave()
	}
	for _, g := range gs {
		wantAtRest(t, g)
	}
}

// tryPost is post for goroutines: an error is status 0.
func tryPost(ctx context.Context, url, body string, headers ...string) answer {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		return answer{body: []byte(err.Error())}
	}
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := (&http.Client{Timeout: 30 * time.Second}).Do(req)
	if err != nil {
		return answer{body: []byte(err.Error())}
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return answer{body: []byte(err.Error())}
	}
	return answer{resp.StatusCode, resp.Header, text}
}

// trickle sends requests to gateways all the time and remembers how long they took.
type trickle struct {
	stop func()
	mu   sync.Mutex
	took []time.Duration
	bad  []string
}

func startTrickle(t *testing.T, gs []*harness.Process, key string) *trickle {
	ctx, cancel := context.WithCancel(t.Context())
	l := &trickle{}
	var wg sync.WaitGroup
	for i := range 2 * len(gs) {
		wg.Go(func() {
			for ctx.Err() == nil {
				began := time.Now()
				a := tryPost(context.WithoutCancel(ctx), gs[i%len(gs)].URL+"/v1/chat/completions", say1(scripted.Model, "hello", false, ""), as(key)...)
				l.mu.Lock()
				l.took = append(l.took, time.Since(began))
				if a.status != 200 {
					l.bad = append(l.bad, fmt.Sprintf("%d %s", a.status, a.body))
				}
				l.mu.Unlock()
				select {
				case <-ctx.Done():
				case <-time.After(10 * time.Millisecond):
				}
			}
		})
	}
	l.stop = func() { cancel(); wg.Wait() }
	t.Cleanup(l.stop)
	return l
}

// end reports what took longer than documented.
func (l *trickle) end(t *testing.T, what string) {
	t.Helper()
	l.stop()
	slices.Sort(l.took)
	longest, median := l.took[len(l.took)-1], l.took[len(l.took)/2]
	if len(l.bad) > 0 || longest > redisTimeout+2*time.Second || median > redisTimeout/2 {
		t.Errorf("%s: %d requests, median %v, longest %v, %d not answered well (%.3q); want none to wait longer than redis.timeout, and hardly any so long",
			what, len(l.took), median, longest, len(l.bad), l.bad)
	}
	t.Logf("%s: %d requests, median %v, longest %v", what, len(l.took), median.Round(10*time.Microsecond), longest.Round(time.Millisecond))
}

// TestRedisFailsInEveryWay: under load no request waits longer than
// redis.timeout or is lost, the mode shows in metric, log and header, and all
// gateways come back to counting together.
func TestRedisFailsInEveryWay(t *testing.T) {
	up := scripted.Start(t)
	r := startRedis(t)
	link := newSlowLink(t, r.addr)
	gs := sharing(t, 2, link.addr, "local", up.URL, keyLine("k", "limits: {requests_per_minute: 1000000, tokens_per_minute: 1000000000, concurrency: 500}"))
	ask := func(g *harness.Process) answer {
		return post(t, g.URL+"/v1/chat/completions", say1(scripted.Model, "hello", false, ""), as("k")...)
	}
	for _, c := range []struct {
		name        string
		begin, undo func()
		stays       bool // nothing is to be noticed
	}{
		{name: "script flush", begin: func() { r.do("SCRIPT", "FLUSH") }, undo: func() {}, stays: true},
		{name: "stopped, restarted empty", begin: r.stop, undo: r.start},
		{name: "paused", begin: func() { r.signal(syscall.SIGSTOP) }, undo: func() { r.signal(syscall.SIGCONT) }},
		{name: "slow", begin: func() { link.delay.Store(int64(2 * time.Second)) }, undo: func() { link.delay.Store(0) }},
		{
			name:  "out of memory",
			begin: func() { r.do("CONFIG", "SET", "maxmemory", "1") },
			undo:  func() { r.do("CONFIG", "SET", "maxmemory", "0") },
		},
	} {
		load := startTrickle(t, gs, "k")
		for _, g := range gs {
			mode(t, g, "redis")
		}
		c.begin()
		for _, g := range gs {
			if c.stays {
				continue
			}
			mode(t, g, "local")
			if a := ask(g); a.status != 200 || a.header.Get("x-penstock-limits-mode") != "local" || a.header.Get("x-ratelimit-limit-requests") != "500000" {
				t.Errorf("%s: status %d, x-penstock-limits-mode %q, x-ratelimit-limit-requests %q; want 200, local and half the limit",
					c.name, a.status, a.header.Get("x-penstock-limits-mode"), a.header.Get("x-ratelimit-limit-requests"))
			}
		}
		c.undo()
		for _, g := range gs {
			mode(t, g, "redis")
			harness.Eventually(t, soon, "answers without the header", func() error {
				if a := ask(g); a.status != 200 || a.header.Get("x-penstock-limits-mode") != "" || a.header.Get("x-ratelimit-limit-requests") != "1000000" {
					return fmt.Errorf("%d, x-penstock-limits-mode %q", a.status, a.header.Get("x-penstock-limits-mode"))
				}
				return nil
			})
		}
		load.end(t, c.name)
	}
	for _, g := range gs {
		away, back := strings.Count(g.Log(), "limits: Redis is away"), strings.Count(g.Log(), "limits: Redis is back")
		if away < 4 || away != back {
			t.Errorf("the log tells %d times that Redis is away and %d times that it is back, want 4 each", away, back)
		}
		if metric(t, g, "penstock_redis_errors_total") == 0 {
			t.Error("penstock_redis_errors_total is 0 after four outages")
		}
		wantAtRest(t, g)
	}
}

// TestOnErrorSaysWhatHoldsWithoutRedis: local divides the limit, open limits
// nothing, closed refuses.
func TestOnErrorSaysWhatHoldsWithoutRedis(t *testing.T) {
	up := scripted.Start(t)
	r := startRedis(t)
	keys := keyLine("k", "limits: {requests_per_minute: 1, requests_burst: 20}") + keyLine("free", "")
	local := sharing(t, 2, r.addr, "local", up.URL, keys)
	open := sharing(t, 1, r.addr, "open", up.URL, keys)[0]
	closed := sharing(t, 1, r.addr, "closed", up.URL, keys)[0]
	r.stop()
	ask := func(g *harness.Process, key string) answer {
		return post(t, g.URL+"/v1/chat/completions", say1(scripted.Model, "hello", false, ""), as(key)...)
	}
	for i, g := range local {
		n := 0
		for range 15 {
			if ask(g, "k").status == 200 {
				n++
			}
		}
		if n < 10 || n > 11 {
			t.Errorf("gateway %d of two admits %d of a burst of 20 by itself, want 10", i+1, n)
		}
		mode(t, g, "local")
	}
	for range 25 {
		if a := ask(open, "k"); a.status != 200 || a.header.Get("x-penstock-limits-mode") != "open" {
			t.Fatalf("on_error: open: %d with mode %q, want 200 and open; %s", a.status, a.header.Get("x-penstock-limits-mode"), a.body)
		}
	}
	a := ask(closed, "k")
	wantRefusal(t, "on_error: closed", a, 503, "limits_unavailable", "server_error")
	if a.header.Get("x-penstock-limits-mode") != "closed" {
		t.Errorf("on_error: closed: x-penstock-limits-mode %q, want closed", a.header.Get("x-penstock-limits-mode"))
	}
	if n := refusals(t, closed, "k", "unavailable"); n != 1 {
		t.Errorf("penstock_limit_refusals_total counts %d for unavailable, want 1", n)
	}
	if a := ask(closed, "free"); a.status != 200 {
		t.Errorf("on_error: closed, a key without limits: %d %s, want 200", a.status, a.body)
	}
}

package e2e

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"penstock/e2e/harness"
)

// steady is a load that goes on while things change.
type steady struct {
	url     string
	stop    context.CancelFunc
	wg      sync.WaitGroup
	sent    atomic.Int64
	mu      sync.Mutex
	broken  int      // streams that an engine's death cut off after their first byte, and that said so
	wrong   []string // everything else that is no whole answer
	slowest time.Duration
}

// startLoad asks perSecond times a second, every other request for a stream.
func startLoad(t *testing.T, url string, perSecond int) *steady {
	ctx, cancel := context.WithCancel(t.Context())
	l := &steady{url: url, stop: cancel}
	l.wg.Go(func() {
		tick := time.NewTicker(time.Second / time.Duration(perSecond))
		defer tick.Stop()
		for i := 0; ; i++ {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			l.sent.Add(1)
			l.wg.Go(func() { l.one(i) })
		}
	})
	t.Cleanup(func() { cancel(); l.wg.Wait() })
	return l
}

// one sends a request and judges its answer.
func (l *steady) one(i int) {
	stream := i%2 == 0
	body := fmt.Sprintf(`{"model":"m","messages":[{"role":"user","content":"%s"}],"max_tokens":12,"ignore_eos":true,"stream":%v}`, story(i%7, 40), stream)
	began := time.Now()
	resp, err := (&http.Client{Timeout: 30 * time.Second}).Post(l.url+"/v1/chat/completions", "application/json", strings.NewReader(body))
	var text []byte
	status := 0
	if err == nil {
		status = resp.StatusCode
		text, err = io.ReadAll(resp.Body)
		resp.Body.Close()
	}
	took := time.Since(began)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.slowest = max(l.slowest, took)
	whole := err == nil && status == 200 && strings.Count(string(text), `"finish_reason":"length"`) == 1 &&
		(!stream || strings.Count(string(text), "data: [DONE]") == 1)
	switch {
	case whole:
	case stream && status == 200 && err != nil && strings.Contains(string(text), `"code":"upstream_disconnected"`):
		l.broken++
	default:
		l.wrong = append(l.wrong, fmt.Sprintf("request %d (stream %v) after %v: status %d, error %v, %.300s", i, stream, took, status, err, text))
	}
}

// end stops the load and reports every request that was not answered as it must be.
func (l *steady) end(t *testing.T, mayBreak int) {
	t.Helper()
	l.stop()
	l.wg.Wait()
	t.Logf("%d requests, slowest %v, %d streams cut off by a killed engine", l.sent.Load(), l.slowest, l.broken)
	for i, w := range l.wrong {
		if i == 5 {
			t.Errorf("… and %d more", len(l.wrong)-i)
			break
		}
		t.Error(w)
	}
	if l.broken > mayBreak {
		t.Errorf("%d streams were cut off, want at most %d", l.broken, mayBreak)
	}
}

const changing = `
models:
  - name: m
    engines: [{url: %s, id: a}, {url: %s, id: b}, {url: %s, id: c}]
    queue: {max_length: %d}
health: {interval: 200ms, timeout: 300ms, unhealthy: 3, healthy: 1}
timeouts: {connect: 500ms}
`

func stateOf(t *testing.T, g *harness.Process, id string) string {
	t.Helper()
	for _, r := range replicas(t, g.Admin) {
		if r.ID == id {
			return r.State
		}
	}
	return "none"
}

func waitState(t *testing.T, g *harness.Process, id, state string, within time.Duration) {
	t.Helper()
	began := time.Now()
	harness.Eventually(t, within, id+" is "+state, func() error {
		if got := stateOf(t, g, id); got != state {
			return fmt.Errorf("it is %s", got)
		}
		return nil
	})
	t.Logf("%s was %s after %v", id, state, time.Since(began).Round(time.Millisecond))
}

func TestNoRequestIsLostWhileEverythingChanges(t *testing.T) {
	engine := func() *harness.Process { return harness.Engine(t, "--model", "m") }
	a, b, c := engine(), engine(), engine()
	spare := engine()
	config := func(n int) string { return fmt.Sprintf(changing, a.URL, b.URL, c.URL, n) }
	g := harness.Serve(t, config(1000))
	load := startLoad(t, g.URL, 50)

	for i := range 100 {
		if err := os.WriteFile(g.Config, []byte(config(1001+i)), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := post(t, g.Admin+"/reload", ""); got.status != 200 {
			t.Fatalf("reload %d: %d %s", i, got.status, got.body)
		}
	}
	for i := range 5 {
		got := post(t, g.Admin+"/replicas", fmt.Sprintf(`{"model":"m","url":%q,"id":"spare"}`, spare.URL))
		if got.status != http.StatusCreated {
			t.Fatalf("add %d: %d %s", i, got.status, got.body)
		}
		waitState(t, g, "spare", "healthy", 10*time.Second)
		if got := do(t, http.MethodDelete, g.Admin+"/replicas/spare", ""); got.status != 200 {
			t.Fatalf("remove %d: %d %s", i, got.status, got.body)
		}
	}
	if got := do(t, http.MethodDelete, g.Admin+"/replicas/a", ""); got.status != http.StatusConflict {
		t.Errorf("removing what the file names: %d %s, want 409", got.status, got.body)
	}
	if got := post(t, g.Admin+"/replicas/b/drain", ""); got.status != 200 {
		t.Errorf("drain: %d %s", got.status, got.body)
	}
	waitState(t, g, "b", "draining", time.Second)
	if got := post(t, g.Admin+"/replicas/b/undrain", ""); got.status != 200 {
		t.Errorf("undrain: %d %s", got.status, got.body)
	}

	// A crash, and the engine back on its port.
	c.Kill()
	waitState(t, g, "c", "unhealthy", 10*time.Second)
	harness.EngineAt(t, strings.TrimPrefix(c.URL, "http://"), "--model", "m")
	waitState(t, g, "c", "healthy", 10*time.Second)

	// A frozen process still accepts connections: what waits there must be answered elsewhere.
	b.Signal(syscall.SIGSTOP)
	waitState(t, g, "b", "unhealthy", 10*time.Second)
	b.Signal(syscall.SIGCONT)
	waitState(t, g, "b", "healthy", 10*time.Second)
	harness.Eventually(t, 30*time.Second, "300 requests", func() error {
		if n := load.sent.Load(); n < 300 {
			return fmt.Errorf("%d so far", n)
		}
		return nil
	})
	load.end(t, 50)
	harness.Eventually(t, 5*time.Second, "nothing in flight", func() error {
		for _, r := range replicas(t, g.Admin) {
			if r.InFlight != 0 {
				return fmt.Errorf("%s has %d", r.ID, r.InFlight)
			}
		}
		return nil
	})
}

func TestAReloadIsAllOrNothing(t *testing.T) {
	e := harness.Engine(t, "--model", "m")
	g := harness.Serve(t, fmt.Sprintf("models: [{name: m, engines: [{url: %s, id: a}]}]", e.URL))
	if err := os.WriteFile(g.Config, []byte(fmt.Sprintf("models: [{name: m, engines: [{url: %s, id: a}], polcy: prefix}]", e.URL)), 0o600); err != nil {
		t.Fatal(err)
	}
	got := post(t, g.Admin+"/reload", "")
	if got.status != http.StatusBadRequest || !strings.Contains(string(got.body), "polcy") || !strings.Contains(string(got.body), "policy") {
		t.Errorf("a bad reload: %d %s, want 400 naming polcy and policy", got.status, got.body)
	}
	if page := do(t, http.MethodGet, g.Admin+"/metrics", ""); !strings.Contains(string(page.body), "penstock_config_last_reload_successful 0") {
		t.Error("the metrics do not say that the last reload failed")
	}
	if got := post(t, g.URL+"/v1/completions", `{"model":"m","prompt":"x","max_tokens":1}`); got.status != 200 {
		t.Errorf("after a bad reload: %d %s, want the old configuration in force", got.status, got.body)
	}
	// The file watch takes a mended file without being asked.
	if err := os.WriteFile(g.Config, []byte(fmt.Sprintf("models: [{name: n, engines: [{url: %s, id: a}]}]", e.URL)), 0o600); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, 10*time.Second, "model n is served", func() error {
		if got := post(t, g.URL+"/v1/completions", `{"model":"n","prompt":"x","max_tokens":1}`); got.status != 200 {
			return fmt.Errorf("%d %s", got.status, got.body)
		}
		return nil
	})
}

package gateway

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"penstock/configs"
	"penstock/metrics"
)

// harness is a gateway under test and its addresses.
type harness struct {
	*Server
	url   string // of the client listener
	admin string
	log   *lockedBuffer
}

// startGateway starts a gateway with a configuration written as YAML; $1, $2 … are replaced by args.
func startGateway(t testing.TB, yaml string, args ...string) *harness {
	t.Helper()
	for i := len(args); i > 0; i-- {
		yaml = strings.ReplaceAll(yaml, "$"+string(rune('0'+i)), args[i-1])
	}
	cfg, err := configs.Parse("test.yaml", []byte(yaml), func(name string) (string, bool) { return "secret-" + name, true })
	if err != nil {
		t.Fatal(err)
	}
	h := &harness{log: &lockedBuffer{}}
	reg := prometheus.NewRegistry()
	h.Server, err = New(t.Context(), Options{
		Config: cfg, Logger: slog.New(slog.NewJSONHandler(h.log, &slog.HandlerOptions{Level: slog.LevelDebug})), Metrics: metrics.New(reg, metrics.Options{}),
		Page: promhttp.HandlerFor(reg, promhttp.HandlerOpts{}), Output: io.Discard,
	})
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = h.Serve(ln, nil) }()
	admin := httptest.NewServer(h.Admin())
	h.url, h.admin = "http://"+ln.Addr().String(), admin.URL
	t.Cleanup(func() {
		admin.Close()
		h.Shutdown()
		if t.Failed() {
			t.Logf("log:\n%s", h.log.String())
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if err := h.WaitKnown(ctx); err != nil {
		t.Fatal(err)
	}
	eventually(t, "all replicas take requests", func() bool { return h.usable() == len(h.fleet.Replicas()) })
	return h
}

// answer is what a client got.
type answer struct {
	status int
	header http.Header
	body   string
}

// ask sends one request; headers are given as "Name: value".
func ask(t testing.TB, method, url, body string, headers ...string) answer {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for _, h := range headers {
		k, v, _ := strings.Cut(h, ": ")
		req.Header.Set(k, v)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatalf("%s %s: %v", method, url, err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("%s %s: reading the answer: %v (so far %q)", method, url, err, b)
	}
	return answer{resp.StatusCode, resp.Header, string(b)}
}

// lockedBuffer is a log that a test can read while it is written.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"penstock/e2e/harness"
	"penstock/e2e/scripted"
)

// operationsConfig has some of everything that the dashboard shows.
const operationsConfig = `
models:
  - name: penstock-local
    engines: [{local: {replicas: 2, profile: qwen3-30b, time_scale: 20}}]
  - name: org/scripted
    engines: [{url: %q, kind: openai}, {url: %q, kind: openai}]
  - name: tight
    engines: [{local: {replicas: 1, profile: qwen3-30b, max_running: 1}}]
    queue: {max_length: 1, max_wait: 200ms}
keys:
  - {name: one, key: "${KEY_ONE}", limits: {requests_per_minute: 6000, tokens_per_minute: 6000000}}
  - {name: two, key: "${KEY_TWO}", limits: {requests_per_minute: 60, requests_burst: 5}}
admin: {key: "${ADMIN_KEY}"}
`

// TestEveryQueryReturnsData scrapes a gateway under a small load with a real
// Prometheus and runs each query of the dashboard and the alerts there.
func TestEveryQueryReturnsData(t *testing.T) {
	program := harness.Program(t, "prometheus")
	for name, key := range map[string]string{"KEY_ONE": "key-one", "KEY_TWO": "key-two", "ADMIN_KEY": "key-admin"} {
		t.Setenv(name, key)
	}
	a, b := scripted.Start(t), scripted.Start(t)
	gateway := harness.Serve(t, fmt.Sprintf(operationsConfig, a.URL, b.URL))
	prometheus := startPrometheus(t, program, gateway.Admin)

	queries := append(dashboardQueries(t), alertQueries(t)...)
	var empty []string
	deadline := time.Now().Add(time.Minute)
	for round := 0; ; round++ {
		smallLoad(t, gateway, round)
		empty = empty[:0]
		for _, q := range queries {
			if n, err := prometheus.ask(q.expr); err != nil || n == 0 {
				empty = append(empty, fmt.Sprintf("%s: %d results, %v\n\t%s", q.place, n, err, q.expr))
			}
		}
		if len(empty) == 0 || time.Now().After(deadline) {
			break
		}
	}
	if len(empty) > 0 {
		t.Errorf("%d of %d queries return nothing after a minute of load:\n%s", len(empty), len(queries), strings.Join(empty, "\n"))
	}
}

// smallLoad is a few requests of each kind: streams, tools, refusals, failures.
func smallLoad(t *testing.T, gateway *harness.Process, round int) {
	t.Helper()
	chat := func(key, model, text string, stream bool) {
		body := encode(t, map[string]any{
			"model": model, "stream": stream, "max_tokens": 8,
			"messages": []map[string]string{say("system", story(0, 100)), say("user", text)},
		})
		post(t, gateway.URL+"/v1/chat/completions", string(body), "Authorization", "Bearer "+key)
	}
	for i := range 10 {
		chat("key-one", localModel, story(round*100+i, 50), i%2 == 0)
	}
	chat("key-one", scripted.Model, "hello", true)
	for range 7 {
		chat("key-two", scripted.Model, "hello", false) // some over the limit
	}
	chat("key-one", scripted.Model, fmt.Sprintf("script:busy 1 %d", round), false) // one retry
	chat("key-one", scripted.Model, "script:status 500", false)
	chat("wrong", localModel, "hello", false)
	var together sync.WaitGroup
	for range 4 { // more than fit on the replica and into the queue
		together.Go(func() { chat("key-one", "tight", "hello", false) })
	}
	together.Wait()
}

// promServer is a running Prometheus.
type promServer struct{ url string }

func startPrometheus(t *testing.T, program, target string) promServer {
	t.Helper()
	dir, listen := t.TempDir(), harness.FreeAddr(t)
	config := fmt.Sprintf(`
global: {scrape_interval: 1s, evaluation_interval: 1s}
rule_files: [%q]
scrape_configs:
  - job_name: penstock
    static_configs: [{targets: [%q]}]
`, deployFile("prometheus", "alerts.yaml"), strings.TrimPrefix(target, "http://"))
	file := filepath.Join(dir, "prometheus.yml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	harness.Background(t, program, "--config.file="+file, "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+listen)
	p := promServer{"http://" + listen}
	harness.Eventually(t, 30*time.Second, "Prometheus scrapes the gateway", func() error {
		if n, err := p.ask(`up == 1`); err != nil || n == 0 {
			return fmt.Errorf("%d targets, %w", n, err)
		}
		return nil
	})
	return p
}

// ask runs an instant query and returns how many series have a number now.
func (p promServer) ask(expr string) (int, error) {
	resp, err := (&http.Client{Timeout: 5 * time.Second}).Get(p.url + "/api/v1/query?query=" + url.QueryEscape(expr))
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	var answer struct {
		Status, Error string
		Data          struct {
			Result []struct{ Value []any }
		}
	}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		return 0, err
	}
	if answer.Status != "success" {
		return 0, fmt.Errorf("%s", answer.Error)
	}
	n := 0
	for _, series := range answer.Data.Result {
		if len(series.Value) == 2 && !slices.Contains([]any{"NaN", "+Inf", "-Inf"}, series.Value[1]) {
			n++
		}
	}
	return n, nil
}

package e2e

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"

	"penstock/e2e/harness"
	"penstock/e2e/scripted"
)

// obedience is a gateway on whose refusals an SDK acts, with keys of its own.
type obedience struct {
	g      *harness.Process
	up     *scripted.Upstream
	prefix string
}

func startObedience(t *testing.T, prefix string) obedience {
	up := scripted.Start(t)
	g := harness.Serve(t, fmt.Sprintf(`
models:
  - {name: %[1]s, engines: [{url: %[2]s, kind: openai}]}
  - {name: narrow, upstream: %[1]s, engines: [{url: %[2]s, kind: openai, id: second, max_running: 1}]}
keys:
%[3]s%[4]s%[5]s%[6]s`, scripted.Model, up.URL,
		keyLine(prefix+"-rate", "limits: {requests_per_minute: 60, requests_burst: 1}"),
		keyLine(prefix+"-large", "limits: {tokens_per_minute: 10000}"),
		keyLine(prefix+"-room", ""), keyLine("holder", "")))
	return obedience{g, up, prefix}
}

func (o obedience) env() []string {
	return []string{"BASE_URL=" + o.g.URL + "/v1", "KEYS=" + o.prefix, "MODEL=" + scripted.Model}
}

// fill takes the only place of the narrow model, until the SDK was refused it.
func (o obedience) fill(t *testing.T) {
	first := hold(t, o.g.URL+"/v1/chat/completions", say1("narrow", "script:slow", true, ""), as("holder")...)
	atEngine(t, o.up, 1)
	refused := fmt.Sprintf("penstock_limit_refusals_total{key=%q", o.prefix+"-room")
	go func() {
		defer first.cancel()
		for end := time.Now().Add(time.Minute); time.Now().Before(end); <-time.After(20 * time.Millisecond) {
			resp, err := http.Get(o.g.Admin + "/metrics")
			if err != nil {
				return // the gateway has ended
			}
			page, _ := io.ReadAll(resp.Body)
			resp.Body.Close()
			if strings.Contains(string(page), refused) {
				return
			}
		}
	}()
}

// check wants one refusal for each request that had to come again: an SDK that
// waits for as long as it is told is never refused twice, and one that is told
// not to come again does not.
func (o obedience) check(t *testing.T) {
	t.Helper()
	for _, c := range []struct {
		key, reason string
		want        int
	}{{"rate", "requests", 2}, {"large", "too_large", 1}, {"room", "queue_timeout", 1}} {
		if n := refusals(t, o.g, o.prefix+"-"+c.key, c.reason); n != c.want {
			t.Errorf("key %s-%s was refused %d times for %s, want %d", o.prefix, c.key, n, c.reason, c.want)
		}
	}
	wantAtRest(t, o.g)
}

func TestPythonSDKActsOnRefusals(t *testing.T) {
	python := harness.Python(t, client("python", "requirements.txt"))
	o := startObedience(t, "py")
	o.fill(t)
	harness.RunCases(t, 3, o.env(), python, client("python", "limits.py"))
	o.check(t)
}

func TestNodeSDKActsOnRefusals(t *testing.T) {
	node, dir := harness.Node(t, client("node", "package.json"))
	o := startObedience(t, "node")
	o.fill(t)
	harness.RunCases(t, 3, append(o.env(), "MODULES="+dir), node, installed(t, dir, client("node", "limits.mjs"), client("node", "report.mjs")))
	o.check(t)
}

func TestGoSDKActsOnRefusals(t *testing.T) {
	o := startObedience(t, "go")
	ask := func(key, model string, tokens int64, more ...option.RequestOption) error {
		c := openai.NewClient(option.WithBaseURL(o.g.URL+"/v1"), option.WithAPIKey("go-"+key), option.WithMaxRetries(3))
		q := question(model, "hello")
		q.MaxTokens = openai.Int(tokens)
		_, err := c.Chat.Completions.New(t.Context(), q, more...)
		return err
	}
	for range 3 {
		if err := ask("rate", scripted.Model, 20); err != nil {
			t.Errorf("rate: %v", err)
		}
	}
	wantError(t, ask("large", scripted.Model, 20_000), http.StatusTooManyRequests, "rate_limit_exceeded")
	o.fill(t)
	if err := ask("room", "narrow", 20, option.WithHeader("x-penstock-no-queue", "1")); err != nil {
		t.Errorf("room: %v", err)
	}
	o.check(t)
}

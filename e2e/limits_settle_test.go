package e2e

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"penstock/e2e/harness"
	"penstock/e2e/scripted"
)

// slowRefill are limits that hold nothing back and refill so slowly that what
// was charged can be read off them.
const slowRefill = "limits: {requests_per_minute: 1, requests_burst: 1000, tokens_per_minute: 1, tokens_burst: 1000000, " +
	"input_tokens_per_minute: 1, input_tokens_burst: 1000000, output_tokens_per_minute: 1, output_tokens_burst: 1000000, concurrency: 50}"

// charged is what a case leaves charged: requests, input and output tokens,
// each at least and at most.
type charged struct{ requests, inMin, inMax, outMin, outMax int }

func exactly(input, output int) charged { return charged{1, input, input, output, output} }

// settleCase is one way for a request to end.
type settleCase struct {
	name string
	path string // default: chat
	body string
	end  func(t *testing.T, c *settleRun) // default: the answer is read
	want charged
	// reported takes input and output from the usage that the answer reports.
	reported bool
}

type settleRun struct {
	g    *harness.Process
	up   *scripted.Upstream
	url  string
	body string
	key  string
	got  answer
}

func settleCases() []settleCase {
	chat := func(script string, stream bool) string {
		return say1(scripted.Model, script, stream, `,"max_tokens":400`)
	}
	local := func(more string) string { return `{"model":"penstock-local",` + more + `}` }
	return []settleCase{
		{name: "whole", body: chat("hello", false), want: exactly(20, 5)},
		{name: "stream", body: chat("hello", true), want: exactly(20, 5)},
		{name: "responses", path: "/v1/responses", body: `{"model":"org/scripted","input":"hello","max_output_tokens":99}`, want: exactly(20, 5)},
		{name: "responses-stream", path: "/v1/responses", body: `{"model":"org/scripted","input":"hello","stream":true}`, want: exactly(20, 5)},
		{name: "messages", path: "/v1/messages", body: `{"model":"org/scripted","max_tokens":9,"messages":[{"role":"user","content":"hello"}]}`, want: exactly(20, 1)},
		{name: "messages-stream", path: "/v1/messages", body: `{"model":"org/scripted","max_tokens":9,"stream":true,"messages":[{"role":"user","content":"hello"}]}`, want: exactly(20, 5)},
		{name: "stream-without-usage", path: "/v1/completions", body: `{"model":"org/scripted","prompt":"hello you","stream":true,"max_tokens":400}`, want: charged{1, 1, 30, 4, 6}},
		{name: "upstream-500", body: chat("script:status 500", false), want: exactly(0, 0)},
		{name: "upstream-422", body: chat("script:status 422", false), want: exactly(0, 0)},
		{name: "overloaded", body: chat("script:busy 99", false), want: exactly(0, 0)},
		{name: "error-inside-the-stream", body: chat("script:inside 99", true), want: exactly(0, 0)},
		{name: "retried", body: chat("script:busy 1", false), want: exactly(20, 5)},
		{name: "retried-stream", body: chat("script:inside 1", true), want: exactly(20, 5)},
		{name: "died-whole", body: chat("script:die", false), end: readBroken, want: exactly(0, 0)},
		{name: "died-in-stream", body: chat("script:die", true), end: readBroken, want: charged{1, 1, 30, 1, 3}},
		{name: "gone-before-the-first-token", body: chat("script:slow", true), end: leaveSilent, want: charged{1, 1, 30, 0, 0}},
		{name: "gone-before-a-whole-answer", body: chat("script:slow", false), end: leaveSilent, want: charged{1, 1, 30, 0, 0}},
		{name: "gone-in-mid-stream", body: chat("script:drip", true), end: leaveAfterFive, want: charged{1, 1, 30, 5, 200}},
		{name: "two-choices", body: local(`"messages":[{"role":"user","content":"Where?"}],"n":2,"max_tokens":8,"ignore_eos":true`), want: charged{1, 1, 99, 16, 16}, reported: true},
		{name: "two-choices-stream", body: local(`"messages":[{"role":"user","content":"Where?"}],"n":2,"max_tokens":8,"ignore_eos":true,"stream":true`), want: charged{1, 1, 99, 16, 16}},
		{name: "batch", path: "/v1/completions", body: local(`"prompt":["The river","A gate","Water runs down"],"max_tokens":4,"ignore_eos":true`), want: charged{1, 3, 99, 12, 12}, reported: true},
		{name: "token-ids", path: "/v1/completions", body: local(`"prompt":[[65,66,67],[68,69]],"max_tokens":4,"ignore_eos":true`), want: charged{1, 5, 5, 8, 8}, reported: true},
		{name: "echo", path: "/v1/completions", body: local(`"prompt":"The river runs.","max_tokens":0,"echo":true,"logprobs":1`), want: charged{1, 1, 30, 0, 0}, reported: true},
		{name: "echo-batch", path: "/v1/completions", body: local(`"prompt":["The river runs.","A gate."],"max_tokens":0,"echo":true,"logprobs":1`), want: charged{1, 2, 50, 0, 0}, reported: true},
		{name: "embeddings", path: "/v1/embeddings", body: local(`"input":["water","and the mill"]`), want: charged{1, 2, 40, 0, 0}, reported: true},
		{name: "no-such-model", body: say1("nobody", "hello", false, ""), want: charged{}},
		{name: "invalid", body: `{"model":"org/scripted","messages":5`, want: charged{}},
	}
}

// TestEachEndIsSettled: on every path what is charged in the end is what
// docs/limits.md says, and nothing stays held.
func TestEachEndIsSettled(t *testing.T) {
	cases := settleCases()
	keys := ""
	for _, c := range cases {
		keys += keyLine(c.name, slowRefill)
	}
	up := scripted.Start(t)
	second := httptest.NewServer(up) // the same scripts behind another address: what is refused on one is tried on the other
	t.Cleanup(second.Close)
	g := harness.Serve(t, fmt.Sprintf(`
models:
  - {name: penstock-local, engines: [{local: {replicas: 2, profile: instant}}]}
  - {name: %s, engines: [{url: %s, kind: openai, id: a}, {url: %s, kind: openai, id: b}]}
retry: {attempts: 2}
breaker: {failures: 1000}
keys:
%s`, scripted.Model, up.URL, second.URL, keys))
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) { c.run(t, g, up) })
	}
	wantAtRest(t, g)
}

func (c settleCase) run(t *testing.T, g *harness.Process, up *scripted.Upstream) {
	path := c.path
	if path == "" {
		path = "/v1/chat/completions"
	}
	run := &settleRun{g: g, up: up, url: g.URL + path, body: c.body, key: c.name}
	if c.end == nil {
		run.got = post(t, run.url, run.body, as(c.name)...)
	} else {
		c.end(t, run)
	}
	want := c.want
	if c.reported {
		u := decode[struct {
			Usage struct {
				Prompt     int `json:"prompt_tokens"`
				Completion int `json:"completion_tokens"`
			}
		}](t, run.got.body).Usage
		if u.Prompt < want.inMin || u.Prompt > want.inMax || u.Completion < want.outMin || u.Completion > want.outMax {
			t.Errorf("usage %+v, want within %+v; %s", u, want, run.got.body)
		}
		want = exactly(u.Prompt, u.Completion)
	}
	harness.Eventually(t, 5*time.Second, "settled", func() error {
		k := limitsOf(t, g).of(c.name)
		n, in, out, all := k.used("requests"), k.used("input_tokens"), k.used("output_tokens"), k.used("tokens")
		if n != want.requests || in < want.inMin || in > want.inMax || out < want.outMin || out > want.outMax || all != in+out {
			return fmt.Errorf("charged %d requests, %d input, %d output and %d tokens, want %+v; the answer: %d %.200s", n, in, out, all, want, run.got.status, run.got.body)
		}
		return limitsPage{Keys: []keyPart{k}}.atRest()
	})
}

// readBroken reads an answer that breaks off, or is an error.
func readBroken(t *testing.T, c *settleRun) {
	h := hold(t, c.url, c.body, as(c.key)...)
	select {
	case <-h.done:
	case <-time.After(10 * time.Second):
		t.Error("an answer that broke off upstream did not end within 10 s")
	}
}

// leaveSilent leaves while the engine has said nothing.
func leaveSilent(t *testing.T, c *settleRun) {
	atEngine(t, c.up, 0)
	h := hold(t, c.url, c.body, as(c.key)...)
	atEngine(t, c.up, 1)
	if l := limitsOf(t, c.g).of(c.key).Limits[0]; l.UnderWay != 1 || l.Running != 1 || l.ReservedOutput != 400 {
		t.Errorf("while it runs: %+v, want one under way with a slot and 400 output tokens reserved", l)
	}
	h.leave()
}

// atEngine waits until so many requests are being answered by the upstream.
func atEngine(t *testing.T, up *scripted.Upstream, want int) {
	t.Helper()
	harness.Eventually(t, 10*time.Second, "requests at the engine", func() error {
		if n := up.Open(); n != want {
			return fmt.Errorf("%d there, want %d", n, want)
		}
		return nil
	})
}

// leaveAfterFive leaves after five events with text.
func leaveAfterFive(t *testing.T, c *settleRun) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, strings.NewReader(c.body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+c.key)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	for n := 0; n < 5 && lines.Scan(); {
		if strings.Contains(lines.Text(), "drop") {
			n++
		}
	}
}

// TestNothingLeaks sends requests of all sorts at once, of which many leave at
// a random moment, and wants every bucket and slot back afterwards.
func TestNothingLeaks(t *testing.T) {
	keys := ""
	for i := range 4 {
		keys += keyLine(fmt.Sprintf("k%d", i), "limits: {requests_per_minute: 100000, tokens_per_minute: 10000000, concurrency: 6}, queue: {max_length: 40}")
	}
	up := scripted.Start(t)
	g := harness.Serve(t, fmt.Sprintf(`
models:
  - {name: penstock-local, limits: {concurrency: 16}, engines: [{local: {replicas: 2, profile: qwen3-30b, time_scale: 20, max_running: 4}}]}
  - {name: %s, engines: [{url: %s, kind: openai, max_running: 6}]}
keys:
%s`, scripted.Model, up.URL, keys))
	bodies := []struct{ path, body string }{
		{"/v1/chat/completions", `{"model":"penstock-local","messages":[{"role":"user","content":"Where?"}],"max_tokens":40,"stream":true}`},
		{"/v1/chat/completions", `{"model":"penstock-local","messages":[{"role":"user","content":"Why?"}],"max_tokens":20,"n":2}`},
		{"/v1/completions", `{"model":"penstock-local","prompt":["a river","a mill","a gate"],"max_tokens":0,"echo":true,"logprobs":1}`},
		{"/v1/embeddings", `{"model":"penstock-local","input":"water"}`},
		{"/v1/chat/completions", say1(scripted.Model, "script:drip", true, "")},
		{"/v1/chat/completions", say1(scripted.Model, "script:die", true, "")},
		{"/v1/chat/completions", say1(scripted.Model, "script:status 500", false, "")},
		{"/v1/chat/completions", say1(scripted.Model, "hello", true, "")},
	}
	var wg sync.WaitGroup
	for w := range 32 {
		rnd := rand.New(rand.NewPCG(uint64(w), 11))
		wg.Go(func() {
			for range 8 {
				b := bodies[rnd.IntN(len(bodies))]
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(10+rnd.IntN(400))*time.Millisecond)
				req, err := http.NewRequestWithContext(ctx, http.MethodPost, g.URL+b.path, strings.NewReader(b.body))
				if err != nil {
					t.Error(err)
				}
				req.Header.Set("Authorization", fmt.Sprintf("Bearer k%d", w%4))
				if resp, err := http.DefaultClient.Do(req); err == nil {
					_, _ = bufio.NewReader(resp.Body).WriteTo(discard{})
					resp.Body.Close()
				}
				cancel()
			}
		})
	}
	wg.Wait()
	wantAtRest(t, g)
}

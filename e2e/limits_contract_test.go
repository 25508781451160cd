package e2e

import (
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"penstock/e2e/harness"
	"penstock/e2e/scripted"
)

// remaining reads a rate limit header, or fails the test.
func remaining(t *testing.T, what string, a answer, unit string) int {
	t.Helper()
	n, err := strconv.Atoi(a.header.Get("x-ratelimit-remaining-" + unit))
	limit, err2 := strconv.Atoi(a.header.Get("x-ratelimit-limit-" + unit))
	reset, err3 := time.ParseDuration(a.header.Get("x-ratelimit-reset-" + unit))
	if err != nil || err2 != nil || err3 != nil || n < 0 || limit <= 0 || reset < 0 {
		t.Errorf("%s: status %d, x-ratelimit headers of %s: limit %q, remaining %q, reset %q; want numbers", what, a.status, unit,
			a.header.Get("x-ratelimit-limit-"+unit), a.header.Get("x-ratelimit-remaining-"+unit), a.header.Get("x-ratelimit-reset-"+unit))
	}
	return n
}

// TestEveryAnswerOfALimitedKeySaysWhatIsLeft holds whatever the answer is:
// success, stream, an engine's error, our own, a refusal.
func TestEveryAnswerOfALimitedKeySaysWhatIsLeft(t *testing.T) {
	up := scripted.Start(t)
	g := harness.Serve(t, fmt.Sprintf(`
models: [{name: %s, engines: [{url: %s, kind: openai}]}]
limits: {ietf_headers: true}
keys:
%s%s%s`, scripted.Model, up.URL,
		keyLine("limited", "limits: {requests_per_minute: 1, requests_burst: 100, tokens_per_minute: 6000}"),
		keyLine("few", "limits: {requests_per_minute: 1}"), keyLine("free", "")))
	url := g.URL + "/v1/chat/completions"
	chat := func(text string, stream bool) string { return say1(scripted.Model, text, stream, `,"max_tokens":100`) }
	last := 100
	for _, c := range []struct {
		what, body string
		status     int
		counts     bool
	}{
		{"success", chat("hello", false), 200, true},
		{"stream", chat("hello", true), 200, true},
		{"an engine's 422", chat("script:status 422", false), 422, true},
		{"an engine's 500", chat("script:status 500", false), 502, true},
		{"request too large", say1(scripted.Model, "hello", false, `,"max_tokens":30000`), 429, false},
		{"invalid JSON", `{"model":`, 400, false},
		{"unknown model", say1("nobody", "hello", false, ""), 404, false},
	} {
		a := post(t, url, c.body, as("limited")...)
		if a.status != c.status {
			t.Errorf("%s: got %d %s, want %d", c.what, a.status, a.body, c.status)
		}
		n := remaining(t, c.what, a, "requests")
		remaining(t, c.what, a, "tokens")
		want := last
		if c.counts {
			want--
		}
		if n != want && n != want+1 { // one is refilled each minute
			t.Errorf("%s: %d requests remaining, want %d", c.what, n, want)
		}
		last = n
		for _, h := range []string{"RateLimit-Policy", "RateLimit"} {
			if v := a.header.Get(h); !strings.Contains(v, `"requests";`) || !strings.Contains(v, `"tokens";`) {
				t.Errorf("%s: header %s is %q, want both requests and tokens in it", c.what, h, v)
			}
		}
		if a.header.Get("x-request-id") == "" || a.header.Get("x-penstock-queue-ms") == "" {
			t.Errorf("%s: headers %v, want x-request-id and x-penstock-queue-ms", c.what, a.header)
		}
	}
	post(t, url, chat("hello", false), as("few")...)
	a := post(t, url, chat("hello", false), as("few")...)
	wantRefusal(t, "over its rate", a, 429, "rate_limit_exceeded", "requests")
	if n := remaining(t, "refusal", a, "requests"); n != 0 {
		t.Errorf("refusal: %d requests remaining, want 0", n)
	}
	if s, _ := strconv.Atoi(a.header.Get("Retry-After")); s < 50 || s > 60 {
		t.Errorf("refusal of the second of one a minute: Retry-After %d, want nearly 60", s)
	}
	for h := range post(t, url, chat("hello", false), as("free")...).header {
		if strings.HasPrefix(strings.ToLower(h), "x-ratelimit") || strings.HasPrefix(strings.ToLower(h), "ratelimit") || h == "Retry-After" {
			t.Errorf("an answer of a key without limits has header %s", h)
		}
	}
}

// TestRefusalsAreExplained plays each refusal by a rate: status, code, type,
// the configuration key in the message, Retry-After, and the metric.
func TestRefusalsAreExplained(t *testing.T) {
	up := scripted.Start(t)
	g := harness.Serve(t, fmt.Sprintf(`
models:
  - {name: %[1]s, engines: [{url: %[2]s, kind: openai}]}
  - {name: small, upstream: %[1]s, engines: [{url: %[2]s, kind: openai, id: second}], limits: {tokens_per_minute: 700}}
keys:
%[3]s%[4]s%[5]s%[6]s%[7]s%[8]s`, scripted.Model, up.URL,
		keyLine("rpm", "limits: {requests_per_minute: 1}"),
		keyLine("tpm", "limits: {tokens_per_minute: 700}"),
		keyLine("input", "limits: {input_tokens_per_minute: 30}"),
		keyLine("output", "limits: {output_tokens_per_minute: 500}"),
		keyLine("both", fmt.Sprintf("model_limits: {%s: {tokens_per_minute: 700}}", scripted.Model)),
		keyLine("any", "")))
	chat := func(model string, n int) string {
		return say1(model, "script:slow "+strings.Repeat("x", 60), true, fmt.Sprintf(`,"max_tokens":%d`, n))
	}
	for _, c := range []struct{ key, model, typ, reason, config string }{
		{"rpm", scripted.Model, "requests", "requests", "keys[rpm].limits.requests_per_minute"},
		{"tpm", scripted.Model, "tokens", "tokens", "keys[tpm].limits.tokens_per_minute"},
		{"input", scripted.Model, "tokens", "input_tokens", "keys[input].limits.input_tokens_per_minute"},
		{"output", scripted.Model, "tokens", "output_tokens", "keys[output].limits.output_tokens_per_minute"},
		{"both", scripted.Model, "tokens", "tokens", "keys[both].model_limits[" + scripted.Model + "].tokens_per_minute"},
		{"any", "small", "tokens", "tokens", "models[small].limits.tokens_per_minute"},
	} {
		first := hold(t, g.URL+"/v1/chat/completions", chat(c.model, 450), as(c.key)...)
		atEngine(t, up, 1)
		a := post(t, g.URL+"/v1/chat/completions", chat(c.model, 450), as(c.key)...)
		wantRefusal(t, c.key, a, 429, "rate_limit_exceeded", c.typ)
		if message := decode[apiError](t, a.body).Error.Message; !strings.Contains(message, "Limit set by "+c.config+".") {
			t.Errorf("%s: the message %q does not name %s", c.key, message, c.config)
		}
		if n := refusals(t, g, c.key, c.reason); n != 1 {
			t.Errorf("%s: penstock_limit_refusals_total counts %d for %s, want 1", c.key, n, c.reason)
		}
		first.leave()
		atEngine(t, up, 0)
	}
	a := post(t, g.URL+"/v1/chat/completions", chat(scripted.Model, 5000), as("tpm")...)
	if a.status != 429 || a.header.Get("x-should-retry") != "false" || a.header.Get("Retry-After") != "" || !strings.Contains(string(a.body), "Request too large") {
		t.Errorf("larger than the bucket: %d %s with x-should-retry %q and Retry-After %q, want 429 Request too large, false and none",
			a.status, a.body, a.header.Get("x-should-retry"), a.header.Get("Retry-After"))
	}
	if n := refusals(t, g, "tpm", "too_large"); n != 1 {
		t.Errorf("penstock_limit_refusals_total counts %d for too_large, want 1", n)
	}
	wantAtRest(t, g)
}

// TestAReloadKeepsWhatWasUsed changes limits while a gateway runs: counters
// stay, the new limit holds from the next request on, and a reset fills the buckets.
func TestAReloadKeepsWhatWasUsed(t *testing.T) {
	up := scripted.Start(t)
	config := func(burst, rest string) string {
		return fmt.Sprintf("models: [{name: %s, engines: [{url: %s, kind: openai}]}]\nkeys:\n%s%s", scripted.Model, up.URL,
			keyLine("k", "limits: {requests_per_minute: 1, requests_burst: "+burst+"}"), rest)
	}
	g := harness.Serve(t, config("10", ""))
	ask := func() answer {
		return post(t, g.URL+"/v1/chat/completions", say1(scripted.Model, "hello", false, ""), as("k")...)
	}
	reload := func(text string) {
		t.Helper()
		if err := os.WriteFile(g.Config, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if a := post(t, g.Admin+"/reload", ""); a.status != 200 {
			t.Fatalf("reload: %d %s", a.status, a.body)
		}
	}
	for range 4 {
		if a := ask(); a.status != 200 {
			t.Fatalf("within the burst of 10: %d %s", a.status, a.body)
		}
	}
	reload(config("5", keyLine("other", "")))
	if n := limitsOf(t, g).of("k").used("requests"); n != 4 {
		t.Errorf("after the reload %d requests are used, want the 4 of before", n)
	}
	if a := ask(); a.status != 200 || remaining(t, "the fifth", a, "requests") != 0 {
		t.Errorf("the fifth of a burst of 5: %d, remaining %s; want 200 and 0", a.status, a.header.Get("x-ratelimit-remaining-requests"))
	}
	wantRefusal(t, "the sixth", ask(), 429, "rate_limit_exceeded", "requests")
	if a := post(t, g.Admin+"/limits/k/reset", ""); a.status != 200 {
		t.Errorf("reset: %d %s", a.status, a.body)
	}
	if a := ask(); a.status != 200 || remaining(t, "after a reset", a, "requests") != 4 {
		t.Errorf("after a reset: %d, remaining %s; want 200 and 4", a.status, a.header.Get("x-ratelimit-remaining-requests"))
	}
	if a := post(t, g.Admin+"/limits/nobody/reset", ""); a.status != http.StatusNotFound {
		t.Errorf("reset of no key: %d %s, want 404", a.status, a.body)
	}
	reload(config("1", ""))
	ask()
	wantRefusal(t, "a lowered limit", ask(), 429, "rate_limit_exceeded", "requests")
}

// TestLimitsModeAutoIsShownAsNumbers: what is derived from the engines is the
// same in check, /config and GET /limits.
func TestLimitsModeAutoIsShownAsNumbers(t *testing.T) {
	e := harness.Engine(t, "--model", "m", "--dp", "4", "--max-running", "64")
	config := fmt.Sprintf("models: [{name: m, engines: [{url: %s}]}]\nlimits: {mode: auto}\n", e.URL)
	g := harness.Serve(t, config)
	page := limitsOf(t, g)
	if len(page.Queues) != 1 || page.Queues[0].MaxLength != 16*4*64 {
		t.Errorf("GET /limits: queues %+v, want a length of 16 × 4 × 64", page.Queues)
	}
	stdout, stderr, code := harness.Run(t, "check", "--config", g.Config)
	if code != 0 || !strings.Contains(stdout, "max_length: 4096") || !strings.Contains(stdout, "concurrency: 256") {
		t.Errorf("check: exit %d, want max_length: 4096 and concurrency: 256 in\n%s%s", code, stdout, stderr)
	}
	shown := do(t, http.MethodGet, g.Admin+"/config", "")
	if !strings.Contains(string(shown.body), "max_length: 4096") && !strings.Contains(string(shown.body), `"max_length":4096`) {
		t.Errorf("/config: want the derived max_length of 4096 in\n%s", shown.body)
	}
}

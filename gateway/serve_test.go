package gateway

import (
	"strings"
	"testing"

	"penstock/engine/local"
	"penstock/engine/local/localtest"
)

const twoEngines = `
models:
  - name: m
    engines: [{url: $1, kind: openai}, {url: $2, kind: openai}]
`

func TestAChatIsAnsweredStreamedAndNot(t *testing.T) {
	g := startGateway(t, twoEngines, localtest.URL(t, local.Options{Model: "m"}), localtest.URL(t, local.Options{Model: "m"}))
	const chat = `{"model":"m","messages":[{"role":"user","content":"How does a penstock work?"}],"max_tokens":8,"ignore_eos":true`
	got := ask(t, "POST", g.url+"/v1/chat/completions", chat+"}")
	if got.status != 200 || !strings.Contains(got.body, `"completion_tokens":8`) {
		t.Fatalf("chat: got %d %s, want 200 and 8 tokens", got.status, got.body)
	}
	if got.header.Get("X-Request-Id") == "" {
		t.Errorf("chat: no x-request-id in %v", got.header)
	}
	got = ask(t, "POST", g.url+"/v1/chat/completions", chat+`,"stream":true}`)
	if got.status != 200 || !strings.HasSuffix(got.body, "data: [DONE]\n\n") || strings.Contains(got.body, `"choices":[]`) {
		t.Fatalf("stream: got %d %s, want events to [DONE] and no usage event", got.status, got.body)
	}
}

func TestTheAdminListenerTellsLimitsAndResetsThem(t *testing.T) {
	g := startGateway(t, strings.Replace(withKeys, "max_body", "limits: {mode: auto}\nmax_body", 1), localtest.URL(t, local.Options{Model: "m"}))
	const bob = "Authorization: Bearer secret-BOB"
	const body = `{"model":"m","prompt":"x","max_tokens":1}`
	for range 2 {
		if got := ask(t, "POST", g.url+"/v1/completions", body, bob); got.status != 200 {
			t.Fatalf("got %d %s", got.status, got.body)
		}
	}
	if got := ask(t, "POST", g.url+"/v1/completions", body, bob); got.status != 429 {
		t.Fatalf("third request: got %d, want 429", got.status)
	}
	got := ask(t, "GET", g.admin+"/limits", "")
	for _, want := range []string{`"key": "bob"`, `"used": 2`, `"remaining": 0`, `"max_length": 4096`} {
		if !strings.Contains(got.body, want) {
			t.Errorf("GET /limits lacks %s: %s", want, got.body)
		}
	}
	if c := ask(t, "GET", g.admin+"/config", ""); !strings.Contains(c.body, "max_length: 4096") || strings.Contains(c.body, "secret-BOB") {
		t.Errorf("GET /config: got %s, want the derived queue length and no secret", c.body)
	}
	if got := ask(t, "POST", g.admin+"/limits/bob/reset", ""); got.status != 401 {
		t.Errorf("reset without the admin key: got %d, want 401", got.status)
	}
	if got := ask(t, "POST", g.admin+"/limits/bob/reset", "", "Authorization: Bearer secret-ADMIN"); got.status != 200 {
		t.Errorf("reset: got %d %s", got.status, got.body)
	}
	if got := ask(t, "POST", g.url+"/v1/completions", body, bob); got.status != 200 {
		t.Errorf("after the reset: got %d %s, want 200", got.status, got.body)
	}
}

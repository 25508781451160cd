package gateway

import (
	"strings"
	"testing"

	"penstock/engine/local"
)

const twoEngines = `
models:
  - name: m
    engines: [{url: $1, kind: openai}, {url: $2, kind: openai}]
`

func TestAChatIsAnsweredStreamedAndNot(t *testing.T) {
	g := startGateway(t, twoEngines, engineURL(t, local.Options{Model: "m"}), engineURL(t, local.Options{Model: "m"}))
	const chat = `{"model":"m","messages":[{"role":"user","content":"How does a penstock work?"}],"max_tokens":8`
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

package gateway

import (
	"flag"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"

	"penstock/engine/local"
	"penstock/engine/local/localtest"
)

var update = flag.Bool("update", false, "write the golden files anew")

const withKeys = `
models:
  - name: m
    aliases: [default]
    engines: [{url: $1, kind: openai}]
  - name: org/other
    engines: [{url: $1, kind: openai, id: other}]
keys:
  - {name: alice, key: "${ALICE}", models: [m]}
  - {name: bob, key: "${BOB}", limits: {requests_per_minute: 2}}
  - {name: late, key: "${LATE}", expires: 2020-01-01}
admin: {key: "${ADMIN}"}
max_body: 64KiB
`

// TestEveryErrorIsDocumentedWordForWord holds each error that a client can make
// happen alone against testdata/errors.golden.
func TestEveryErrorIsDocumentedWordForWord(t *testing.T) {
	g := startGateway(t, withKeys, localtest.URL(t, local.Options{Model: "m"}))
	const chat = `{"model":"m","messages":[{"role":"user","content":"hi"}]}`
	const alice = "Authorization: Bearer secret-ALICE"
	cases := []struct{ name, method, path, body, header string }{
		{"no key", "POST", "/v1/chat/completions", chat, ""},
		{"bearer and nothing", "POST", "/v1/chat/completions", chat, "Authorization: Bearer "},
		{"wrong key", "POST", "/v1/chat/completions", chat, "Authorization: Bearer nope"},
		{"wrong key, anthropic", "POST", "/v1/messages", chat, "X-Api-Key: nope"},
		{"expired key", "POST", "/v1/chat/completions", chat, "Authorization: Bearer secret-LATE"},
		{"model of another key", "POST", "/v1/chat/completions", strings.Replace(chat, `"m"`, `"org/other"`, 1), alice},
		{"unknown model", "POST", "/v1/chat/completions", strings.Replace(chat, `"m"`, `"gpt-9"`, 1), alice},
		{"unknown model, retrieve", "GET", "/v1/models/org%2Fnone", "", alice},
		{"unknown path", "POST", "/v1/chat/completion", chat, alice},
		{"path without v1", "POST", "/chat/completions", chat, alice},
		{"wrong method", "GET", "/v1/chat/completions", "", alice},
		{"wrong method on models", "POST", "/v1/models", "{}", alice},
		{"no json", "POST", "/v1/chat/completions", `{"model":`, alice},
		{"not an object", "POST", "/v1/chat/completions", `[1]`, alice},
		{"empty body", "POST", "/v1/chat/completions", ``, alice},
		{"wrong type", "POST", "/v1/chat/completions", `{"model":"m","messages":"hi"}`, alice},
		{"missing messages", "POST", "/v1/chat/completions", `{"model":"m"}`, alice},
		{"empty messages", "POST", "/v1/chat/completions", `{"model":"m","messages":[]}`, alice},
		{"empty prompt", "POST", "/v1/completions", `{"model":"m","prompt":""}`, alice},
		{"negative max_tokens", "POST", "/v1/completions", `{"model":"m","prompt":"x","max_tokens":-1}`, alice},
		{"stream is no boolean", "POST", "/v1/completions", `{"model":"m","prompt":"x","stream":"yes"}`, alice},
		{"duplicate model", "POST", "/v1/completions", `{"model":"m","prompt":"x","model":"org/other"}`, alice},
		{"engine field", "POST", "/v1/completions", `{"model":"m","prompt":"x","priority":1}`, alice},
		{"engine header", "POST", "/v1/completions", `{"model":"m","prompt":"x"}`, alice + "\nX-Data-Parallel-Rank: 1"},
		{"bad max wait", "POST", "/v1/completions", `{"model":"m","prompt":"x"}`, alice + "\nX-Penstock-Max-Wait: soon"},
		{"body too large", "POST", "/v1/completions", `{"model":"m","prompt":"` + strings.Repeat("x", 70<<10) + `"}`, alice},
		{"headers too large", "GET", "/v1/models", "", alice + "\nX-Long: " + strings.Repeat("x", 20<<10)},
		{"unknown response", "GET", "/v1/responses/resp_1", "", alice},
		{"flush without the admin key", "POST", "/flush_cache", "", alice},
		{"over the limit", "POST", "/v1/completions", `{"model":"m","prompt":"x","max_tokens":1}`, "Authorization: Bearer secret-BOB"},
	}
	var b strings.Builder
	for _, c := range cases {
		var headers []string
		if c.header != "" {
			headers = strings.Split(c.header, "\n")
		}
		if c.name == "over the limit" {
			for range 2 {
				ask(t, c.method, g.url+c.path, c.body, headers...)
			}
		}
		got := ask(t, c.method, g.url+c.path, c.body, append(headers, "X-Request-Id: req-1")...)
		fmt.Fprintf(&b, "== %s\n%d%s\n%s\n", c.name, got.status, shownHeaders(got.header), got.body)
		if got.header.Get("X-Request-Id") == "" {
			t.Errorf("%s: the answer has no x-request-id", c.name)
		}
	}
	golden(t, "testdata/errors.golden", scrub(b.String()))
}

// shownHeaders are those that an error's contract is made of, times left out.
func shownHeaders(h http.Header) string {
	var b strings.Builder
	for _, name := range []string{"Allow", "Connection", "Content-Type", "Www-Authenticate", "X-Should-Retry", "X-Ratelimit-Limit-Requests", "X-Ratelimit-Remaining-Requests"} {
		if v := h.Get(name); v != "" {
			fmt.Fprintf(&b, " %s=%q", name, v)
		}
	}
	for _, name := range []string{"Retry-After", "Retry-After-Ms", "X-Ratelimit-Reset-Requests"} {
		if h.Get(name) != "" {
			fmt.Fprintf(&b, " %s", name)
		}
	}
	return b.String()
}

// scrub takes out what depends on the clock.
func scrub(s string) string {
	if i := strings.Index(s, "try again in "); i > 0 {
		j := i + strings.Index(s[i:], `s.`)
		s = s[:i] + "try again in TIME" + s[j+1:]
	}
	return s
}

func golden(t *testing.T, file, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s differs (go test ./gateway -run %s -update writes it anew). Got:\n%s", file, t.Name(), got)
	}
}

package e2e

import (
	"crypto/sha256"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"penstock/e2e/harness"
	"penstock/e2e/scripted"
)

// varying are the parts of an answer that differ from one call to the next.
var varying = regexp.MustCompile(`"(id|created|created_at|request_id|e2e_latency)": ?("[^"]*"|[0-9.e+-]+)`)

func TestAnswersAreTheEnginesOwnBytes(t *testing.T) {
	for _, kind := range []string{"sglang", "vllm"} {
		engine := harness.Engine(t, "--kind", kind, "--model", "tiny/model", "--profile", "instant")
		gateway := harness.Serve(t, fmt.Sprintf("models: [{engines: [{url: %q}]}]", engine.URL))
		for name, c := range map[string]struct{ path, body string }{
			"chat":              {"/v1/chat/completions", `{"model":"tiny/model","messages":[{"role":"user","content":"Where does the water go?"}],"temperature":0,"max_tokens":20}`},
			"chat stream":       {"/v1/chat/completions", `{"model":"tiny/model","messages":[{"role":"user","content":"Où va l'eau?"}],"temperature":0,"max_tokens":20,"stream":true}`},
			"chat stream usage": {"/v1/chat/completions", `{"model":"tiny/model","messages":[{"role":"user","content":"x"}],"temperature":0,"max_tokens":20,"stream":true,"stream_options":{"include_usage":true}}`},
			"logprobs":          {"/v1/completions", `{"model":"tiny/model","prompt":"The river","temperature":0,"max_tokens":9,"logprobs":3}`},
			"completion stream": {"/v1/completions", `{"model":"tiny/model","prompt":"The river","temperature":0,"max_tokens":20,"stream":true}`},
			"embeddings":        {"/v1/embeddings", `{"model":"tiny/model","input":["a","b"],"encoding_format":"float"}`},
			"an engine's error": {"/v1/completions", `{"model":"tiny/model","prompt":"x","temperature":-1}`},
		} {
			t.Run(kind+" "+name, func(t *testing.T) {
				sameBytes(t, engine.URL, gateway.URL, c.path, c.body)
			})
		}
	}
}

// sameBytes asks directly twice (the second finds the prompt in the cache, as
// the gateway's request then does) and through the gateway.
func sameBytes(t *testing.T, direct, through, path, body string) {
	t.Helper()
	post(t, direct+path, body)
	want, got := post(t, direct+path, body), post(t, through+path, body)
	w, g := varying.ReplaceAll(want.body, []byte(`"$1":0`)), varying.ReplaceAll(got.body, []byte(`"$1":0`))
	if want.status != got.status || sha256.Sum256(w) != sha256.Sum256(g) {
		t.Errorf("%s\ndirect  %d %s\nthrough %d %s", body, want.status, w, got.status, g)
	}
	if a, b := want.header.Get("Content-Type"), got.header.Get("Content-Type"); a != b {
		t.Errorf("content type: direct %q, through %q", a, b)
	}
}

func TestUnknownPartsArriveAsTheyWereWritten(t *testing.T) {
	up := scripted.Start(t)
	gateway := harness.Serve(t, fmt.Sprintf("models: [{name: %s, engines: [{url: %q, kind: openai}]}]", scripted.Model, up.URL))
	// Spaces, number forms and escapes that a decoder would normalise.
	body := `{"model":"org/scripted", "temperature" : 0.70,"messages":[{"role":"user","content":"h\u00e9llo\/"}],"x":{"big":12345678901234567890,"e":1E2 , "dup":1,"dup":2}}`
	a := post(t, gateway.URL+"/v1/chat/completions", body)
	if a.status != http.StatusOK {
		t.Fatalf("%d %s", a.status, a.body)
	}
	if got := up.Last().Body; got != body {
		t.Errorf("the upstream got\n%s\nwant\n%s", got, body)
	}
	if direct := post(t, up.URL+"/v1/chat/completions", body); string(direct.body) != string(a.body) {
		t.Errorf("through\n%s\ndirect\n%s", a.body, direct.body)
	}
	stream := strings.Replace(body, `{"model"`, `{"stream":true,"model"`, 1)
	through, direct := post(t, gateway.URL+"/v1/chat/completions", stream), post(t, up.URL+"/v1/chat/completions", stream)
	if string(through.body) != string(direct.body) {
		t.Errorf("streamed through\n%s\ndirect\n%s", through.body, direct.body)
	}
}

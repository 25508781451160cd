package gateway

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"penstock/engine/local"
	"penstock/engine/local/localtest"
)

// severalModels is an OpenAI-compatible engine that lists the given models and
// keeps the last body that it was sent.
func severalModels(t *testing.T, list string) (url string, last *atomic.Value) {
	last = &atomic.Value{}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if req.Method == http.MethodGet {
			_, _ = io.WriteString(w, list)
			return
		}
		b, _ := io.ReadAll(req.Body)
		last.Store(string(b))
		_, _ = io.WriteString(w, `{"choices":[{"index":0,"text":"a"}]}`)
	}))
	t.Cleanup(srv.Close)
	return srv.URL, last
}

func TestAllModelsOfAnEngineWithoutAConfiguredNameAreServed(t *testing.T) {
	url, last := severalModels(t, `{"object":"list","data":[{"id":"base","root":"/m/base"},{"id":"other","root":"/m/other"},`+
		`{"id":"base-again","root":"/m/base"},{"id":"adapter","root":"/a","parent":"base"}]}`)
	g := startGateway(t, `
models: [{engines: [{url: $1, kind: openai}]}]
keys: [{name: all, key: "${ALL}"}, {name: some, key: "${SOME}", models: [base]}]
`, url)
	for _, tc := range []struct {
		key, model string
		status     int
		sent       string // the model's name upstream
	}{
		{"ALL", "base", 200, "base"},
		{"ALL", "other", 200, "other"},
		{"ALL", "base-again", 200, "base"},
		{"ALL", "adapter", 200, "adapter"},
		{"ALL", "none", 404, ""},
		{"SOME", "base", 200, "base"},
		{"SOME", "base-again", 200, "base"},
		{"SOME", "adapter", 200, "adapter"},
		{"SOME", "other", 403, ""},
	} {
		auth := "Authorization: Bearer secret-" + tc.key
		got := ask(t, "POST", g.url+"/v1/completions", `{"model":"`+tc.model+`","prompt":"x"}`, auth)
		if got.status != tc.status || tc.sent != "" && !strings.Contains(last.Load().(string), `"model":"`+tc.sent+`"`) {
			t.Errorf("%s asks for %s: got %d %s, sent %v; want %d and %q sent", tc.key, tc.model, got.status, got.body, last.Load(), tc.status, tc.sent)
		}
		want := tc.status
		if got := ask(t, "GET", g.url+"/v1/models/"+tc.model, "", auth); got.status != want {
			t.Errorf("%s reads %s: got %d %s, want %d", tc.key, tc.model, got.status, got.body, want)
		}
	}
	if got := ask(t, "GET", g.url+"/v1/models", "", "Authorization: Bearer secret-ALL"); strings.Count(got.body, `"object":"model"`) != 4 {
		t.Errorf("list for all: got %s, want four models", got.body)
	}
	if got := ask(t, "GET", g.url+"/v1/models", "", "Authorization: Bearer secret-SOME"); strings.Contains(got.body, `"other"`) {
		t.Errorf("list for a key of base alone: got %s, want no other", got.body)
	}
}

func TestARankThatTheClientSaysIsTheClientsOwnAffair(t *testing.T) {
	g := startGateway(t, "models: [{name: m, engines: [{url: $1, id: e}]}]\nhealth: {load_interval: 50ms}",
		localtest.URL(t, local.Options{Model: "m", DP: 4}))
	got := ask(t, "POST", g.url+"/v1/completions", `{"model":"m","prompt":"x","max_tokens":1,"routed_dp_rank":9}`)
	if got.status != 400 || !strings.Contains(got.body, "routed_dp_rank=9 out of range") {
		t.Errorf("rank 9 of 4: got %d %s, want the engine's own 400", got.status, got.body)
	}
	for end := time.Now().Add(1500 * time.Millisecond); time.Now().Before(end); {
		if got := ask(t, "POST", g.url+"/v1/completions", `{"model":"m","prompt":"x","max_tokens":1,"routed_dp_rank":2}`); got.status != 200 {
			t.Fatalf("rank 2: got %d %s", got.status, got.body)
		}
	}
	if n := len(g.fleet.Replicas()); n != 4 {
		t.Errorf("replicas after requests to a rank of the client's choice: got %d, want still 4", n)
	}
}

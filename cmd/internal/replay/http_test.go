package replay

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
)

// fakeGateway answers completions from one infinite cache of prompts.
func fakeGateway(t *testing.T) *httptest.Server {
	t.Helper()
	var mu sync.Mutex
	seen := map[string]bool{}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `{"data": [{"id": "m"}]}`)
	})
	mux.HandleFunc("POST /v1/completions", func(w http.ResponseWriter, r *http.Request) {
		var q struct {
			Model, Prompt string
			Stream        bool
			MaxTokens     int `json:"max_tokens"`
		}
		if err := json.NewDecoder(r.Body).Decode(&q); err != nil || q.Model != "m" || r.Header.Get("Authorization") != "Bearer k" {
			http.Error(w, "bad request", http.StatusBadRequest)
			return
		}
		mu.Lock()
		cached := 0
		if seen[q.Prompt] {
			cached = len(q.Prompt) / 4
		}
		seen[q.Prompt] = true
		mu.Unlock()
		usage := fmt.Sprintf(`{"prompt_tokens": %d, "completion_tokens": %d, "prompt_tokens_details": {"cached_tokens": %d}}`, len(q.Prompt)/4, q.MaxTokens, cached)
		if !q.Stream {
			fmt.Fprintf(w, `{"choices": [{"text": "x"}], "usage": %s}`, usage)
			return
		}
		fmt.Fprintf(w, "data: {\"choices\": [{\"text\": \"x\"}]}\n\ndata: {\"choices\": [], \"usage\": %s}\n\ndata: [DONE]\n\n", usage)
	})
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return s
}

func overFake(t *testing.T, base, key string) (Result, string, error) {
	t.Helper()
	rows := make([]rawRow, 20)
	for i := range rows {
		rows[i] = rawRow{At: float64(i), Input: 128, Output: 4, IDs: []uint64{uint64(i / 2)}}
	}
	var log bytes.Buffer
	o := Options{BaseURL: base, HTTP: HTTPOptions{Key: key, Most: 1}, Fleet: Fleet{Speed: 10, Unstreamed: 0.3}}
	r, err := overHTTP(t.Context(), fromRows(rows), o, &log)
	return r, log.String(), err
}

func TestATraceIsSentOverHTTP(t *testing.T) {
	r, log, err := overFake(t, fakeGateway(t).URL+"/v1", "k")
	if err != nil || r.Failed != 0 {
		t.Fatalf("%v, %d failed: %s", err, r.Failed, log)
	}
	if r.Requests != 20 || r.HitRate != 0.5 || r.TTFTMean <= 0 {
		t.Errorf("%+v; want 20 requests and a hit rate of 0.5: every prompt came twice", r)
	}
}

func TestFailuresOverHTTPAreCountedAndShown(t *testing.T) {
	_, _, err := overFake(t, fakeGateway(t).URL+"/v1", "wrong")
	if err == nil || !strings.Contains(err.Error(), "status 400: bad request") {
		t.Errorf("every request refused: %v, want the refusal", err)
	}
}

func TestAStreamWithoutItsEndIsAFailure(t *testing.T) {
	for in, want := range map[string]string{
		"data: {\"choices\": [{}]}\n\n":                  "unexpected EOF",
		"data: {\"error\": {\"message\": \"died\"}}\n\n": "died",
		"data: {\n\n": "unexpected end of JSON",
	} {
		if _, err := readStream(strings.NewReader(in)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want an error with %q", in, err, want)
		}
	}
}

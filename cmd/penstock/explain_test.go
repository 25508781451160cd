package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"penstock/router"
)

// adminOf serves requests as the admin listener does; the first is the last.
func adminOf(t *testing.T, all ...explained) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var v any = all
		if id, ok := strings.CutPrefix(r.URL.Path, "/requests/"); ok {
			v = nil
			for _, x := range all {
				if x.ID == id {
					v = x
				}
			}
			if v == nil {
				w.WriteHeader(http.StatusNotFound)
				fmt.Fprintf(w, `{"error":{"message":"No request %s among the last 1000."}}`, id)
				return
			}
		}
		_ = json.NewEncoder(w).Encode(v)
	}))
	t.Cleanup(s.Close)
	return s.URL
}

func TestExplainSaysWhyInWords(t *testing.T) {
	url := adminOf(t,
		explained{
			ID: "r-1", Path: "/v1/chat/completions", Key: "team", Model: "m", Status: 200, Outcome: "done", Streamed: true,
			Replica: "b", Matched: 1024, Best: 2048, Uncached: 1500, QueueMS: 12, FirstTokenMS: 81, TotalMS: 1234,
			Retries: []string{"a: connect"}, Attempts: []string{"req_1", "req_2"}, EstimatedIn: 2524, ReservedOut: 512, Prompt: 2600, Cached: 1000, Completion: 99,
			Candidates: []router.Considered{{Replica: "c", Matched: 2048, Uncached: 476, Queued: 90000, Rate: 10000, Cost: 9}, {Replica: "b", Matched: 1024, Uncached: 1500, Rate: 10000, Cost: 0.15}},
		},
		explained{ID: "r-2", Path: "/v1/completions", Key: "team", Model: "m", Status: 429, Code: "rate_limit_exceeded", Outcome: "refused", Message: "Rate limit reached.", Advice: "Nothing is broken."},
		explained{ID: "r-3", Path: "/v1/completions", Model: "m", Lane: "score", Status: 504, Code: "upstream_timeout", Outcome: "failed", Replica: "a"},
		explained{ID: "r-4", Path: "/v1/completions", Model: "m", Status: 499, Outcome: "left", Streamed: true, Replica: "a", Completion: 38},
	)
	for id, want := range map[string][]string{
		"r-1": {
			"r-1: answered with 200 after 1.23 s", "key team, model m", "2,524 prompt tokens (estimated) and 512 of output", "12 ms for room",
			"a: connect (attempt req_1)", "b (attempt req_2)", "after 81 ms", "1,000 of them from the engine's cache", "Another held 2,048",
			">  b", "150 ms", "9.00 s",
		},
		"last": {"r-1: answered"},
		"r-2":  {"r-2: refused, 429 rate_limit_exceeded, after", "Rate limit reached.", "Nothing is broken."},
		"r-3":  {"r-3: failed, 504 upstream_timeout, after", "never read a prefix cache"},
		"r-4":  {"38 of output, by the events that came; the engine did not tell the prompt's tokens"},
	} {
		got := invoke(t, nil, "", "explain", id, "--admin", url)
		for _, w := range want {
			if got.code != exitOK || !strings.Contains(got.stdout, w) {
				t.Errorf("explain %s: exit %d, lacks %q:\n%s%s", id, got.code, w, got.stdout, got.stderr)
			}
		}
	}
	first, second := strings.Index(invoke(t, nil, "", "explain", "r-1", "--admin", url).stdout, ">  b"), strings.Index(invoke(t, nil, "", "explain", "r-1", "--admin", url).stdout, "   c  ")
	if first > second {
		t.Errorf("the cheapest candidate is not the first")
	}
	var x explained
	if got := invoke(t, nil, "", "explain", "r-2", "--json", "--admin", url); json.Unmarshal([]byte(got.stdout), &x) != nil || x.ID != "r-2" {
		t.Errorf("explain --json: got %q", got.stdout)
	}
}

func TestExplainAndTopSayWhatIsMissing(t *testing.T) {
	url := adminOf(t)
	for _, c := range []struct {
		args, says string
		code       int
	}{
		{"explain", "accepts 1 arg", exitUsage},
		{"explain r-9 --admin " + url, "No request r-9 among the last 1000", exitFailed},
		{"explain last --admin " + url, "remembers no such request", exitFailed},
		{"explain r-9 --admin ftp://x", "expected the admin listener", exitUsage},
		{"explain r-9 --admin 127.0.0.1:1", "connection refused", exitFailed},
		{"top --admin 127.0.0.1:1", "connection refused", exitFailed},
		{"top --admin http://", "expected the admin listener", exitUsage},
		{"top extra", "unknown command", exitUsage},
	} {
		got := invoke(t, nil, "", strings.Fields(c.args)...)
		if got.code != c.code || !strings.Contains(got.stderr, c.says) {
			t.Errorf("penstock %s: exit %d, %q; want %d, saying %q", c.args, got.code, got.stderr, c.code, c.says)
		}
	}
}

package main

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestHealthTellsByItsExitCode(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/readyz" {
			http.Error(w, "draining", http.StatusServiceUnavailable)
		}
	}))
	defer server.Close()
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	for _, c := range []struct {
		url, says string
		code      int
	}{
		{server.URL + "/healthz", "", exitOK},
		{server.URL + "/readyz", "503: draining", exitFailed},
		{gone.URL + "/healthz", "connection refused", exitFailed},
		{"http://[", "--url", exitUsage},
	} {
		got := invoke(t, nil, "", "health", "--url", c.url)
		if got.code != c.code || !strings.Contains(got.stderr, c.says) {
			t.Errorf("health --url %s: exit %d, stderr %q; want exit %d, saying %q", c.url, got.code, got.stderr, c.code, c.says)
		}
	}
}

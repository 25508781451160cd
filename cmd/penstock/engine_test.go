package main

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"
)

// lockedBuffer is a buffer that a test reads while a command writes it.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func TestEngineServesUntilItIsToldToStop(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var stderr lockedBuffer
	e := &env{stdin: strings.NewReader(""), stdout: io.Discard, stderr: &stderr, getenv: func(string) (string, bool) { return "", false }}
	done := make(chan error, 1)
	args := strings.Fields("engine --listen 127.0.0.1:0 --kind vllm --model tiny --dp 2 --kv-tokens 4096 --page-size 16 --max-running 4 --max-queued 9 --time-scale 2 --profile qwen3-30b --fault 429:count=1")
	go func() { done <- run(ctx, args, e) }()
	ready := regexp.MustCompile(`engine ready.*url=(http://\S+) kind=vllm model=tiny dp=2 profile=qwen3-30b`)
	var url string
	for deadline := time.Now().Add(10 * time.Second); url == ""; {
		if m := ready.FindStringSubmatch(stderr.String()); m != nil {
			url = m[1]
		} else if time.Now().After(deadline) {
			t.Fatalf("no ready line within 10 s: %s", stderr.String())
		}
		time.Sleep(time.Millisecond)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for _, want := range []int{429, 200} {
		resp, err := client.Post(url+"/v1/completions", "application/json", strings.NewReader(`{"model":"tiny","prompt":"x","max_tokens":1}`))
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("with --fault 429:count=1: got %d, want %d", resp.StatusCode, want)
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("after the signal: got %v, want nil", err)
	}
}

func TestEngineRefusesBadFlagsAndPortsInUse(t *testing.T) {
	for _, tc := range []struct {
		args, want string
		code       int
	}{
		{"engine --profile fast", `profile "fast": expected instant, qwen3-30b, glm52-dp4`, exitUsage},
		{"engine --kind tgi", `kind "tgi": expected sglang or vllm`, exitUsage},
		{"engine --dp -1", "dp -1", exitUsage},
		{"engine --dp 0", "--dp 0: expected a number above 0", exitUsage},
		{"engine --dp 5000", "dp 5000: expected 1024 at most", exitUsage},
		{"engine --time-scale 0", "--time-scale 0: expected a number above 0", exitUsage},
		{"engine --fault explode", `fault "explode": expected refuse`, exitUsage},
		{"engine surplus", `unknown command "surplus"`, exitUsage},
		{"engine --listen 127.0.0.1:99999", "invalid port", exitFailed},
	} {
		got := invoke(t, nil, "", strings.Fields(tc.args)...)
		if got.code != tc.code || !strings.Contains(got.stderr, tc.want) {
			t.Errorf("penstock %s: got code %d, %q, want %d with %q", tc.args, got.code, got.stderr, tc.code, tc.want)
		}
	}
}

package local

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"testing"
)

// start serves o on a loopback port until the test ends.
func start(t testing.TB, o Options) (*Server, string) {
	t.Helper()
	s, err := New(o)
	if err != nil {
		t.Fatalf("New(%+v): %v", o, err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("listen: %v", err)
	}
	done := make(chan error, 1)
	go func() { done <- s.Serve(ln) }()
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		s.Close()
		if err := <-done; err != nil {
			t.Errorf("Serve: got %v, want nil", err)
		}
	})
	return s, "http://" + ln.Addr().String()
}

func post(t testing.TB, url, body string) (int, string) {
	t.Helper()
	resp, err := http.Post(url, "application/json", bytes.NewReader([]byte(body)))
	if err != nil {
		t.Fatalf("POST %s: %v", url, err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("POST %s: reading: %v", url, err)
	}
	return resp.StatusCode, string(b)
}

func TestSmoke(t *testing.T) {
	for _, k := range []Kind{SGLang, VLLM} {
		_, u := start(t, Options{Kind: k})
		for _, body := range []string{
			`{"model":"penstock-local","messages":[{"role":"user","content":"hello"}],"temperature":0}`,
			`{"model":"penstock-local","messages":[{"role":"user","content":"hello"}],"temperature":0,"max_tokens":3,"stream":true,"stream_options":{"include_usage":true},"logprobs":true,"top_logprobs":2}`,
			`{"model":"penstock-local","messages":[{"role":"user","content":"hello"}],"temperature":0,"max_tokens":3,"n":2}`,
			`{"model":"penstock-local","messages":[],"temperature":0,"max_tokens":3,"n":2}`,
		} {
			t.Log(post(t, u+"/v1/chat/completions", body))
		}
		for _, body := range []string{
			`{"prompt":"The gate opens","temperature":0,"max_tokens":5,"echo":true,"logprobs":2}`,
			`{"prompt":"The gate opens","temperature":0,"max_tokens":0,"echo":true,"logprobs":0}`,
			`{"prompt":"The gate opens","temperature":0,"max_tokens":4,"echo":true,"stream":true}`,
			`{"prompt":"The gate opens","temperature":"x"`,
		} {
			t.Log(post(t, u+"/v1/completions", body))
		}
	}
}

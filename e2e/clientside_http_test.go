package e2e

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"penstock/e2e/faulty"
	"penstock/e2e/harness"
)

// What clients do to the gateway: by intent, by accident, or because they are old.

const clientConfig = `
max_body: 12MiB
max_headers: 8KiB
timeouts: {read_headers: 2s, read_body: 2s, keep_alive: 60s, first_token: 60s}
models: [{name: m, engines: [{url: %q, kind: openai}]}]
keys:
  - {name: k, sha256: 2c70e12b7a0646f92279f427c7b38e7334d8e5389cff167a1dc30e73f826b683} # key
  - {name: one, sha256: 7692c3ad3540bb803c020b3aee66cd8887123234ea0c6e7143c0add73ff431ed, limits: {requests_per_minute: 1, requests_burst: 1}} # one
`

// clientGateway is a gateway before an engine that does as the prompt says.
func clientGateway(t *testing.T, more string) (*harness.Process, *faulty.Server) {
	t.Helper()
	engine := faulty.Start(t, faulty.Serving("m", faulty.ByName(faulty.Matrix(bigEvent))))
	return harness.Serve(t, fmt.Sprintf(clientConfig, engine.URL)+more), engine
}

// wire is a client's connection, byte by byte.
type wire struct {
	t testing.TB
	net.Conn
	br *bufio.Reader
}

func dialWire(t testing.TB, gateway *harness.Process) *wire {
	t.Helper()
	c, err := net.DialTimeout("tcp", strings.TrimPrefix(gateway.URL, "http://"), 30*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	return &wire{t, c, bufio.NewReader(c)}
}

func (w *wire) write(s string) {
	w.t.Helper()
	if _, err := io.WriteString(w, s); err != nil {
		w.t.Fatalf("writing %.60q: %v", s, err)
	}
}

// read reads one answer; method is that of its request.
func (w *wire) read(method string) (status int, header http.Header, body string) {
	w.t.Helper()
	resp, err := http.ReadResponse(w.br, &http.Request{Method: method})
	if err != nil {
		w.t.Fatalf("no answer: %v", err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		w.t.Fatalf("%d and then %v", resp.StatusCode, err)
	}
	if resp.Close { // ReadResponse takes the header away
		resp.Header.Set("Connection", "close")
	}
	return resp.StatusCode, resp.Header, string(b)
}

// wantClosed fails unless the gateway closes the connection, having sent nothing more.
func (w *wire) wantClosed() {
	w.t.Helper()
	b, err := w.br.ReadByte()
	if err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		w.t.Errorf("the connection goes on (%q, %v), want it closed", b, err)
	}
}

// wantGood sends a request on the connection and fails unless it is answered.
func (w *wire) wantGood() {
	w.t.Helper()
	w.write(chatRequest("HTTP/1.1", "", faultBody("none", false)))
	if status, _, body := w.read("POST"); status != 200 || body != faulty.JSON {
		w.t.Errorf("a good request: got %d %s", status, body)
	}
}

func faultBody(fault string, stream bool) string {
	return fmt.Sprintf(`{"model":"m","stream":%t,"messages":[{"role":"user","content":%q}]}`, stream, faulty.Marker(fault))
}

// chatRequest is a whole request; header holds further lines.
func chatRequest(version, header, body string) string {
	return chatHead(version, header) + fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(body), body)
}

func chatHead(version, header string) string {
	return "POST /v1/chat/completions " + version + "\r\nHost: gateway\r\nAuthorization: Bearer key\r\nContent-Type: application/json\r\n" + header
}

// posts is how many requests have reached the engine.
func posts(s *faulty.Server) int {
	n := 0
	for _, r := range s.Requests() {
		if r.Method == http.MethodPost {
			n++
		}
	}
	return n
}

func TestSlowSendersAreEndedWith408(t *testing.T) {
	gateway, _ := clientGateway(t, "")
	const body = `{"model":"m","messages":[{"role":"user","content":"hi"}]}`
	// The first bytes, and what follows one by one for ever.
	for name, start := range map[string]string{
		"headers":                "POST /v1/chat/completions HTTP/1.1\r\nHost: ",
		"body":                   chatHead("HTTP/1.1", "") + "Content-Length: 50000\r\n\r\n" + body[:20],
		"body of unknown length": chatHead("HTTP/1.1", "") + "Transfer-Encoding: chunked\r\n\r\n10000\r\n" + body[:20],
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var wg sync.WaitGroup
			for range 20 {
				wg.Go(func() {
					w := dialWire(t, gateway)
					began := time.Now()
					w.write(start)
					stop := make(chan struct{})
					var drip sync.WaitGroup
					drip.Go(func() {
						for {
							select {
							case <-stop:
								return
							case <-time.After(50 * time.Millisecond):
								if _, err := w.Write([]byte("x")); err != nil {
									return
								}
							}
						}
					})
					resp, err := http.ReadResponse(w.br, nil)
					close(stop)
					drip.Wait()
					if err != nil {
						t.Errorf("no answer: %v", err)
						return
					}
					if took := time.Since(began); resp.StatusCode != http.StatusRequestTimeout || took > 40*time.Second {
						t.Errorf("got %d after %v, want 408 after a few seconds", resp.StatusCode, took)
					}
				})
			}
			dialWire(t, gateway).wantGood() // nobody else is held up
			wg.Wait()
		})
	}
}

func TestPipelinedRequestsAreAnsweredInOrderEachAsSoonAsItIsReady(t *testing.T) {
	gateway, engine := clientGateway(t, "")
	w := dialWire(t, gateway)
	w.write(chatRequest("HTTP/1.1", "", faultBody("none", false)) + chatRequest("HTTP/1.1", "", faultBody("none", true)) +
		chatRequest("HTTP/1.1", "", faultBody("400-flat", false)) + chatRequest("HTTP/1.1", "", faultBody("headers-never", false)))
	for i, want := range []string{faulty.JSON, goodBody(true), `"code":400`} {
		if _, _, body := w.read("POST"); !strings.Contains(body, want) { // though the last one is never ready
			t.Errorf("answer %d is %s, want %s", i+1, body, want)
		}
	}
	harness.Eventually(t, 20*time.Second, "the last one waits at the engine", func() error {
		if n := posts(engine); n != 4 {
			return fmt.Errorf("%d requests", n)
		}
		return nil
	})
	_ = w.Close()
	harness.Eventually(t, 20*time.Second, "it ends when its client leaves", func() error { return atRest(gateway.Admin) })
}

func TestExpectContinue(t *testing.T) {
	gateway, engine := clientGateway(t, "")
	body := faultBody("none", false)
	w := dialWire(t, gateway)
	for range 2 { // the connection serves on
		w.write(chatHead("HTTP/1.1", fmt.Sprintf("Expect: 100-continue\r\nContent-Length: %d\r\n\r\n", len(body))))
		if line, err := w.br.ReadString('\n'); err != nil || line != "HTTP/1.1 100 Continue\r\n" {
			t.Fatalf("got %q, %v, want 100 Continue", line, err)
		}
		if line, err := w.br.ReadString('\n'); err != nil || line != "\r\n" {
			t.Fatalf("got %q, %v, want an empty line", line, err)
		}
		w.write(body)
		if status, _, got := w.read("POST"); status != 200 || got != faulty.JSON {
			t.Errorf("got %d %s", status, got)
		}
	}
	if h := engine.Requests()[len(engine.Requests())-1].Header; h["expect"] != "" {
		t.Errorf("the engine got Expect: %s", h["expect"])
	}
	before := posts(engine)
	for name, length := range map[string]string{"too large": "Content-Length: 99999999\r\n\r\n", "too large by far": "Content-Length: 99999999999\r\n\r\n"} {
		w := dialWire(t, gateway)
		w.write(chatHead("HTTP/1.1", "Expect: 100-continue\r\n"+length))
		if status, h, got := w.read("POST"); status != 413 || !strings.Contains(got, "request_too_large") || h.Get("Connection") != "close" {
			t.Errorf("%s: got %d %v %s, want 413 at once and a close", name, status, h, got)
		}
		w.wantClosed()
	}
	if n := posts(engine); n != before {
		t.Errorf("%d of the refused requests reached the engine", n-before)
	}
}

func TestUploadsOfEveryFraming(t *testing.T) {
	gateway, engine := clientGateway(t, "")
	body := faultBody("none", false)
	half := len(body) / 2
	for name, upload := range map[string]string{
		"one chunk":             fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(body), body),
		"two chunks":            fmt.Sprintf("%x\r\n%s\r\n%X\r\n%s\r\n0\r\n\r\n", half, body[:half], len(body)-half, body[half:]),
		"extensions":            fmt.Sprintf("%x;a=b;c\r\n%s\r\n0;d\r\n\r\n", len(body), body),
		"trailers":              fmt.Sprintf("%x\r\n%s\r\n0\r\nX-Sum: abc\r\n\r\n", len(body), body),
		"chunks of a byte each": bytewise(body),
	} {
		t.Run(name, func(t *testing.T) {
			w := dialWire(t, gateway)
			w.write(chatHead("HTTP/1.1", "Transfer-Encoding: chunked\r\n\r\n"+upload))
			if status, _, got := w.read("POST"); status != 200 || got != faulty.JSON {
				t.Errorf("got %d %s", status, got)
			}
			all := engine.Requests()
			if got := all[len(all)-1]; string(got.Body) != body || got.Header["x-sum"] != "" {
				t.Errorf("the engine got %q with %v, want the body and no trailer", got.Body, got.Header)
			}
			w.wantGood()
		})
	}
}

func bytewise(s string) string {
	var b strings.Builder
	for i := range len(s) {
		fmt.Fprintf(&b, "1\r\n%s\r\n", s[i:i+1])
	}
	return b.String() + "0\r\n\r\n"
}

func TestHTTP10(t *testing.T) {
	gateway, _ := clientGateway(t, "")
	t.Run("a whole answer closes", func(t *testing.T) {
		w := dialWire(t, gateway)
		w.write(chatRequest("HTTP/1.0", "", faultBody("none", false)))
		status, h, body := w.read("POST")
		if status != 200 || body != faulty.JSON || h.Get("Transfer-Encoding") != "" {
			t.Errorf("got %d %v %s", status, h, body)
		}
		w.wantClosed()
	})
	t.Run("unless it asks", func(t *testing.T) {
		w := dialWire(t, gateway)
		for range 2 {
			w.write(chatRequest("HTTP/1.0", "Connection: keep-alive\r\n", faultBody("none", false)))
			if status, h, body := w.read("POST"); status != 200 || body != faulty.JSON || h.Get("Connection") != "keep-alive" {
				t.Errorf("got %d %v %s", status, h, body)
			}
		}
	})
	for _, header := range []string{"", "Connection: keep-alive\r\n"} {
		t.Run("a stream has no chunks"+header, func(t *testing.T) {
			w := dialWire(t, gateway)
			w.write(chatRequest("HTTP/1.0", header, faultBody("none", true)))
			all, err := io.ReadAll(w.br)
			head, body, _ := strings.Cut(string(all), "\r\n\r\n")
			if err != nil || body != goodBody(true) || strings.Contains(strings.ToLower(head), "chunked") {
				t.Errorf("got %q, %v, want the plain events and the end of the connection", all, err)
			}
		})
	}
	t.Run("a stream's first event does not wait for its last", func(t *testing.T) {
		w := dialWire(t, gateway)
		w.write(chatRequest("HTTP/1.0", "", faultBody("silence-mid-stream", true)))
		for {
			line, err := w.br.ReadString('\n')
			if err != nil {
				t.Fatal(err)
			}
			if strings.HasPrefix(line, "data: ") {
				return
			}
		}
	})
	t.Run("a stream that breaks off does not end well", func(t *testing.T) {
		w := dialWire(t, gateway)
		w.write(chatRequest("HTTP/1.0", "", faultBody("reset-mid-event", true)))
		all, _ := io.ReadAll(w.br)
		if !strings.Contains(string(all), `"code":"upstream_disconnected"`) {
			t.Errorf("got %q, want an error event at the end", all)
		}
	})
}

func TestAConnectionServesOnAfterAnError(t *testing.T) {
	gateway, _ := clientGateway(t, "")
	for _, c := range []struct {
		name, request string
		status        int
	}{
		{"unknown path", "POST /v1/nothing HTTP/1.1\r\nHost: g\r\nContent-Length: 2\r\n\r\n{}", 404},
		{"wrong method", "GET /v1/chat/completions HTTP/1.1\r\nHost: g\r\n\r\n", 405},
		{"no key", "POST /v1/chat/completions HTTP/1.1\r\nHost: g\r\nContent-Length: 2\r\n\r\n{}", 401},
		{"bad JSON", chatRequest("HTTP/1.1", "", "{"), 400},
		{"no body", chatRequest("HTTP/1.1", "", ""), 400},
		{"unknown model", chatRequest("HTTP/1.1", "", `{"model":"nobody","messages":[{"role":"user","content":"x"}]}`), 404},
		{"engine's 400", chatRequest("HTTP/1.1", "", faultBody("400-flat", true)), 400},
		{"engine's 500", chatRequest("HTTP/1.1", "", faultBody("500", false)), 502},
		{"engine's 503 in a stream", chatRequest("HTTP/1.1", "", faultBody("503-in-stream", true)), 503},
		{"engine that hangs up", chatRequest("HTTP/1.1", "", faultBody("reset-before-headers", false)), 502},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := dialWire(t, gateway)
			for range 3 {
				w.write(c.request)
				if status, _, body := w.read("POST"); status != c.status {
					t.Fatalf("got %d %s, want %d", status, body, c.status)
				}
			}
			w.wantGood()
		})
	}
	t.Run("rate limit", func(t *testing.T) {
		w := dialWire(t, gateway)
		limited := strings.Replace(chatRequest("HTTP/1.1", "", faultBody("none", false)), "Bearer key", "Bearer one", 1)
		for _, want := range []int{200, 429, 429} {
			w.write(limited)
			if status, _, body := w.read("POST"); status != want {
				t.Fatalf("got %d %s, want %d", status, body, want)
			}
		}
		w.wantGood()
	})
}

func TestAPromptOf10MB(t *testing.T) {
	gateway, engine := clientGateway(t, "")
	text := strings.Repeat("All work and no play. ", 10<<20/22)
	for _, stream := range []bool{false, true} {
		body := fmt.Sprintf(`{"model":"m","stream":%t,"messages":[{"role":"user","content":%q}]}`, stream, text)
		w := dialWire(t, gateway)
		w.write(chatRequest("HTTP/1.1", "", body))
		if status, _, got := w.read("POST"); status != 200 || got != goodBody(stream) {
			t.Errorf("stream %v: got %d %.200s", stream, status, got)
		}
		all := engine.Requests()
		if got := string(all[len(all)-1].Body); !stream && got != body || !strings.Contains(got, text) {
			t.Errorf("stream %v: the engine got %d bytes, not the %d sent", stream, len(got), len(body))
		}
		w.wantGood()
	}
}

func TestHead(t *testing.T) {
	gateway, _ := clientGateway(t, "")
	w := dialWire(t, gateway)
	for path, want := range map[string]int{"/v1/models": 200, "/v1/models/m": 200, "/healthz": 200, "/readyz": 200, "/v1/models/nobody": 404, "/v1/chat/completions": 405} {
		w.write("HEAD " + path + " HTTP/1.1\r\nHost: g\r\nAuthorization: Bearer key\r\n\r\n")
		if status, h, _ := w.read("HEAD"); status != want || h.Get("Content-Length") == "" && status == 200 {
			t.Errorf("HEAD %s: got %d %v, want %d", path, status, h, want)
		}
	}
	w.wantGood() // no body was sent that would be in the way
}

func TestCrossOriginRequests(t *testing.T) {
	const origin = "https://app.example.com"
	preflight := func(w *wire, from string) (int, http.Header) {
		w.write("OPTIONS /v1/chat/completions HTTP/1.1\r\nHost: g\r\nOrigin: " + from + "\r\nAccess-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: authorization,content-type\r\n\r\n")
		status, h, _ := w.read("OPTIONS")
		return status, h
	}
	ask := func(w *wire, from string) http.Header {
		w.write(chatRequest("HTTP/1.1", "Origin: "+from+"\r\n", faultBody("none", true)))
		_, h, _ := w.read("POST")
		return h
	}
	t.Run("off by default", func(t *testing.T) {
		gateway, _ := clientGateway(t, "")
		w := dialWire(t, gateway)
		if status, h := preflight(w, origin); status != 405 || h.Get("Access-Control-Allow-Origin") != "" || h.Get("Allow") != "POST" {
			t.Errorf("a preflight: got %d %v, want 405", status, h)
		}
		if h := ask(w, origin); h.Get("Access-Control-Allow-Origin") != "" {
			t.Errorf("a request: got %v", h)
		}
	})
	t.Run("for configured origins", func(t *testing.T) {
		gateway, _ := clientGateway(t, "cors: {origins: ["+origin+"]}\n")
		w := dialWire(t, gateway)
		status, h := preflight(w, origin)
		if status != 204 || h.Get("Access-Control-Allow-Origin") != origin || !strings.Contains(h.Get("Access-Control-Allow-Methods"), "POST") ||
			h.Get("Access-Control-Allow-Headers") != "authorization,content-type" || h.Get("Vary") != "Origin" {
			t.Errorf("a preflight: got %d %v", status, h)
		}
		if h := ask(w, origin); h.Get("Access-Control-Allow-Origin") != origin || !strings.Contains(h.Get("Access-Control-Expose-Headers"), "x-request-id") {
			t.Errorf("a request: got %v", h)
		}
		w.write("POST /v1/chat/completions HTTP/1.1\r\nHost: g\r\nOrigin: " + origin + "\r\nContent-Length: 2\r\n\r\n{}")
		if status, h, _ := w.read("POST"); status != 401 || h.Get("Access-Control-Allow-Origin") != origin {
			t.Errorf("an error: got %d %v, want one that the page can read", status, h)
		}
		if status, h := preflight(w, "https://evil.example.com"); status == 204 || h.Get("Access-Control-Allow-Origin") != "" {
			t.Errorf("another origin's preflight: got %d %v", status, h)
		}
		if h := ask(w, "https://evil.example.com"); h.Get("Access-Control-Allow-Origin") != "" {
			t.Errorf("another origin's request: got %v", h)
		}
	})
}

func TestTargetsInAbsoluteForm(t *testing.T) {
	gateway, engine := clientGateway(t, "")
	w := dialWire(t, gateway)
	w.write(strings.Replace(chatRequest("HTTP/1.1", "", faultBody("none", false)), "POST /v1", "POST http://penstock.example.com/v1", 1))
	if status, _, body := w.read("POST"); status != 200 || body != faulty.JSON {
		t.Errorf("got %d %s", status, body)
	}
	all := engine.Requests()
	if got := all[len(all)-1]; got.Path != "/v1/chat/completions" || got.Header["host"] != engine.Addr {
		t.Errorf("the engine got %s, Host %s, want its own path and host", got.Path, got.Header["host"])
	}
	w.write("GET http://penstock.example.com/v1/models HTTP/1.1\r\nHost: g\r\nAuthorization: Bearer key\r\n\r\n")
	if status, _, body := w.read("GET"); status != 200 || !strings.Contains(body, `"m"`) {
		t.Errorf("got %d %s", status, body)
	}
}

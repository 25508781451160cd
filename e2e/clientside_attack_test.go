package e2e

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"penstock/e2e/harness"
)

func TestHeadersThatAreTooMany(t *testing.T) {
	gateway, engine := clientGateway(t, "")
	for name, headers := range map[string]string{
		"one that is long": "X-Long: " + strings.Repeat("x", 9<<10) + "\r\n",
		"many":             strings.Repeat("X-Many: "+strings.Repeat("x", 50)+"\r\n", 200),
		"a long key":       "Authorization: Bearer " + strings.Repeat("x", 9<<10) + "\r\n",
		"endless":          "X-Endless: " + strings.Repeat("x", 1<<20),
	} {
		w := dialWire(t, gateway)
		_, _ = io.WriteString(w, chatHead("HTTP/1.1", headers+"Content-Length: 2\r\n\r\n{}")) // the answer may come first
		if status, _, body := w.read("POST"); status != 431 || !strings.Contains(body, "headers_too_large") {
			t.Errorf("%s: got %d %s, want 431", name, status, body)
		}
		w.wantClosed()
	}
	long := "GET /" + strings.Repeat("x", 9<<10) + " HTTP/1.1\r\nHost: g\r\n\r\n"
	w := dialWire(t, gateway)
	_, _ = io.WriteString(w, long)
	if status, _, _ := w.read("GET"); status != 431 {
		t.Errorf("a long target: got %d, want 431", status)
	}
	if n := posts(engine); n != 0 {
		t.Errorf("%d of them reached the engine", n)
	}
}

// A gateway and an engine that disagree about where a request ends let one
// client speak in another's name.
func TestRequestsThatEndInTwoWaysAreRefused(t *testing.T) {
	gateway, engine := clientGateway(t, "")
	body := faultBody("none", false)
	smuggled := chatRequest("HTTP/1.1", "X-Smuggled: yes\r\n", body)
	n := len(body)
	chunks := fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", n, body)
	for _, c := range []struct{ name, rest string }{
		{"a length and chunks", fmt.Sprintf("Content-Length: %d\r\nTransfer-Encoding: chunked\r\n\r\n%s", len(chunks), chunks)},
		{"chunks and a length", fmt.Sprintf("Transfer-Encoding: chunked\r\nContent-Length: %d\r\n\r\n%s", 3, chunks)},
		{"two lengths", fmt.Sprintf("Content-Length: %d\r\nContent-Length: %d\r\n\r\n%s", n, n+1, body)},
		{"two equal lengths", fmt.Sprintf("Content-Length: %d\r\nContent-Length: %d\r\n\r\n%s", n, n, body)},
		{"a list of lengths", fmt.Sprintf("Content-Length: %d, %d\r\n\r\n%s", n, n, body)},
		{"a signed length", fmt.Sprintf("Content-Length: +%d\r\n\r\n%s", n, body)},
		{"a negative length", "Content-Length: -1\r\n\r\n" + body},
		{"a hexadecimal length", fmt.Sprintf("Content-Length: 0x%x\r\n\r\n%s", n, body)},
		{"a length with words", fmt.Sprintf("Content-Length: %d x\r\n\r\n%s", n, body)},
		{"a length beyond all numbers", "Content-Length: 99999999999999999999999\r\n\r\n" + body},
		{"an unknown coding", "Transfer-Encoding: gzip\r\n\r\n" + chunks},
		{"an unknown coding first", "Transfer-Encoding: gzip, chunked\r\n\r\n" + chunks},
		{"chunked and not last", "Transfer-Encoding: chunked, identity\r\n\r\n" + chunks},
		{"chunked twice", "Transfer-Encoding: chunked, chunked\r\n\r\n" + chunks},
		{"chunked in two headers", "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n" + chunks},
		{"chunked misspelt", "Transfer-Encoding: xchunked\r\n\r\n" + chunks},
		{"a vertical tab", "Transfer-Encoding: \x0bchunked\r\n\r\n" + chunks},
		{"a blank before the colon", fmt.Sprintf("Content-Length: %d\r\nTransfer-Encoding : chunked\r\n\r\n%s", len(chunks), chunks)},
		{"a folded header", fmt.Sprintf("X-A: b\r\n Transfer-Encoding: chunked\r\nContent-Length: %d\r\n\r\n%s", len(chunks), chunks)},
		{"a bare CR", fmt.Sprintf("X-A: b\rTransfer-Encoding: chunked\r\nContent-Length: %d\r\n\r\n%s", len(chunks), chunks)},
		{"a NUL", fmt.Sprintf("X-A: b\x00\r\nContent-Length: %d\r\n\r\n%s", n, body)},
		{"a header without a name", fmt.Sprintf(": b\r\nContent-Length: %d\r\n\r\n%s", n, body)},
		{"a chunk without a size", "Transfer-Encoding: chunked\r\n\r\n\r\n" + body + "\r\n0\r\n\r\n"},
		{"a chunk of a negative size", fmt.Sprintf("Transfer-Encoding: chunked\r\n\r\n-%x\r\n%s\r\n0\r\n\r\n", n, body)},
		{"a chunk of a size in 0x", fmt.Sprintf("Transfer-Encoding: chunked\r\n\r\n0x%x\r\n%s\r\n0\r\n\r\n", n, body)},
		{"a chunk of a size with words", fmt.Sprintf("Transfer-Encoding: chunked\r\n\r\n%xz\r\n%s\r\n0\r\n\r\n", n, body)},
		{"a chunk beyond all numbers", fmt.Sprintf("Transfer-Encoding: chunked\r\n\r\n1%016x\r\n%s\r\n0\r\n\r\n", n, body)},
		{"a chunk longer than it says", fmt.Sprintf("Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", n-1, body)},
		{"a chunk without its end", fmt.Sprintf("Transfer-Encoding: chunked\r\n\r\n%x\r\n%s0\r\n\r\n", n, body)},
		{"a target with a blank", "\x00"},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := posts(engine)
			w := dialWire(t, gateway)
			request := chatHead("HTTP/1.1", c.rest)
			if c.rest == "\x00" {
				request = strings.Replace(chatRequest("HTTP/1.1", "", body), "/v1/chat/completions HTTP", "/v1/chat/completions HTTP/1.1\r\nX: HTTP", 1)
				request = strings.Replace(request, "POST /v1", "POST /v1 /v1", 1)
			}
			w.write(request + smuggled)
			status, h, got := w.read("POST")
			if status < 400 || status >= 500 || h.Get("Connection") != "close" {
				t.Errorf("got %d %v %.200s, want 400 and a close", status, h, got)
			}
			w.wantClosed()
			if n := posts(engine) - before; n != 0 {
				t.Errorf("%d requests reached the engine", n)
			}
		})
	}
}

func TestDuplicateHeaders(t *testing.T) {
	gateway, engine := clientGateway(t, "")
	body := faultBody("none", false)
	for _, c := range []struct {
		name, header string
		status       int
	}{
		{"the same key twice", "Authorization: Bearer key\r\n", 200},
		{"another key", "Authorization: Bearer one\r\n", 400},
		{"another kind of key", "X-Api-Key: one\r\n", 200}, // the bearer token counts
		{"another host", "Host: elsewhere\r\n", 400},
		{"another type", "Content-Type: text/plain\r\n", 200},
		{"two of no meaning", "X-A: 1\r\nX-A: 2\r\n", 200},
	} {
		w := dialWire(t, gateway)
		w.write(chatRequest("HTTP/1.1", c.header, body))
		if status, _, got := w.read("POST"); status != c.status {
			t.Errorf("%s: got %d %s, want %d", c.name, status, got, c.status)
		}
	}
	all := engine.Requests()
	if h := all[len(all)-1].Header; h["x-a"] != "2" || h["authorization"] != "" || h["x-api-key"] != "" {
		t.Errorf("the engine got %v, want both of X-A and no key", h)
	}
}

// A client that is still sending when it is refused must see why: 50 of 50.
func TestTheRefusalOfALargeBodyReachesAClientThatIsStillSending(t *testing.T) {
	gateway, engine := clientGateway(t, "")
	piece := strings.Repeat("x", 64<<10)
	for name, head := range map[string]string{
		"length": chatHead("HTTP/1.1", "Content-Length: 30000000\r\n\r\n"),
		"chunks": chatHead("HTTP/1.1", "Transfer-Encoding: chunked\r\n\r\n"),
	} {
		t.Run(name, func(t *testing.T) {
			var seen atomic.Int32
			var wg sync.WaitGroup
			slots := make(chan struct{}, 10)
			for range 50 {
				slots <- struct{}{}
				wg.Go(func() {
					defer func() { <-slots }()
					w := dialWire(t, gateway)
					_, _ = io.WriteString(w, head)
					for sent := 0; sent < 30000000; sent += len(piece) { // all of it, as SDKs do, before they read
						out := piece
						if name == "chunks" {
							out = fmt.Sprintf("%x\r\n%s\r\n", len(piece), piece)
						}
						if _, err := io.WriteString(w, out); err != nil {
							break
						}
					}
					resp, err := http.ReadResponse(w.br, nil)
					if err != nil {
						t.Logf("no answer: %v", err)
						return
					}
					b, _ := io.ReadAll(resp.Body)
					if resp.StatusCode == 413 && strings.Contains(string(b), "request_too_large") {
						seen.Add(1)
					}
					_ = w.Close()
				})
			}
			wg.Wait()
			if n := seen.Load(); n != 50 {
				t.Errorf("%d of 50 clients saw the 413", n)
			}
		})
	}
	if n := posts(engine); n != 0 {
		t.Errorf("%d of them reached the engine", n)
	}
}

// noise is sent instead of HTTP.
func TestWhatIsNotHTTPIsRefused(t *testing.T) {
	gateway, _ := clientGateway(t, "")
	for name, noise := range map[string]string{
		"TLS":      "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + strings.Repeat("\x00\xff", 200) + "\r\n\r\n",
		"HTTP/2":   "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
		"SSH":      "SSH-2.0-OpenSSH_9.6\r\n\r\n",
		"blanks":   strings.Repeat("\r\n", 50) + "x\r\n\r\n",
		"no HTTP":  "POST /v1/chat/completions\r\n\r\n",
		"no slash": "POST v1/chat/completions HTTP/1.1\r\nHost: g\r\n\r\n",
	} {
		w := dialWire(t, gateway)
		w.write(noise)
		resp, err := http.ReadResponse(bufio.NewReader(w), nil)
		if err != nil {
			continue // closed without a word
		}
		if resp.StatusCode < 400 || resp.StatusCode >= 500 {
			t.Errorf("%s: got %s, want a 4xx or a close", name, resp.Status)
		}
	}
	dialWire(t, gateway).wantGood()
	harness.Eventually(t, 20*time.Second, "nothing is left", func() error { return atRest(gateway.Admin) })
}

package relay

import (
	"bufio"
	"crypto/tls"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/valyala/fasthttp"

	"penstock/e2e/faulty"
)

func parseHeader(t *testing.T, lines string) *fasthttp.RequestHeader {
	t.Helper()
	h := &fasthttp.RequestHeader{}
	if err := h.Read(bufio.NewReader(strings.NewReader(lines))); err != nil {
		t.Fatal(err)
	}
	return h
}

func TestWhichHeadersReachTheEngine(t *testing.T) {
	s := faulty.Start(t, faulty.ByName(nil))
	r := New(Options{})
	defer r.Close()
	up, err := r.NewUpstream(UpstreamOptions{URL: s.URL + "/engines/a/", Key: "engine-key"})
	if err != nil {
		t.Fatal(err)
	}
	defer up.Close()
	client := parseHeader(t, "POST /v1/x HTTP/1.1\r\nHost: gateway.example\r\nUser-Agent: sdk/1\r\nContent-Type: application/json\r\nContent-Length: 7\r\n"+
		"Authorization: Bearer client-key\r\nX-Api-Key: client-key\r\nConnection: keep-alive, X-Named\r\nX-Named: secret\r\nKeep-Alive: timeout=5\r\nTE: trailers\r\n"+
		"Transfer-Encoding: chunked\r\nExpect: 100-continue\r\nUpgrade: h2c\r\nProxy-Authorization: Basic eA==\r\nAccept-Encoding: gzip\r\n"+
		"X-Data-Parallel-Rank: 3\r\nTraceparent: 00-1\r\nCookie: a=b; c=d\r\nX-Stainless-Lang: python\r\nX-Request-Id: theirs\r\n\r\n")
	req := &Request{
		Path: "/v1/chat/completions?x=1", Header: client, Body: [][]byte{[]byte("{"), []byte("}"), nil},
		Drop: []string{"x-data-parallel-rank"}, Set: []Header{{"X-Request-Id", "ours"}},
	}
	if _, err := do(up, newCall(), req); err != nil {
		t.Fatal(err)
	}
	got := s.Requests()[0]
	if got.Path != "/engines/a/v1/chat/completions?x=1" || got.Method != "POST" || string(got.Body) != "{}" {
		t.Errorf("got %s %s %q, want POST /engines/a/v1/chat/completions?x=1 {}", got.Method, got.Path, got.Body)
	}
	want := map[string]string{
		"host": strings.TrimPrefix(s.URL, "http://"), "authorization": "Bearer engine-key", "accept-encoding": "identity",
		"user-agent": "sdk/1", "content-type": "application/json", "content-length": "2", "traceparent": "00-1",
		"cookie": "a=b; c=d", "x-stainless-lang": "python", "x-request-id": "ours",
	}
	for k, v := range got.Header {
		if want[k] != v {
			t.Errorf("header %s: got %q, want %q", k, v, want[k])
		}
		delete(want, k)
	}
	for k, v := range want {
		t.Errorf("header %s is missing, want %q", k, v)
	}
}

func TestMethodsWithoutABody(t *testing.T) {
	s := faulty.Start(t, faulty.Always(func(c *faulty.Conn) {
		if c.Method == "HEAD" {
			c.Head(200, "content-length: 100")
			c.KeepAlive()
			return
		}
		c.Whole(200, "text/plain", "ok")
	}))
	up := newUpstream(t, s.URL, Options{})
	for _, c := range []struct{ method, body, length string }{{"GET", "ok", ""}, {"HEAD", "", ""}, {"DELETE", "ok", ""}, {"POST", "ok", "0"}} {
		d, err := do(up, newCall(), &Request{Method: c.method, Path: "/health"})
		if err != nil || d.body.String() != c.body || d.answer.Status != 200 {
			t.Errorf("%s: error %v, status %d, body %q, want %q", c.method, err, d.answer.Status, d.body.String(), c.body)
		}
		if got := s.Requests()[len(s.Requests())-1].Header["content-length"]; got != c.length {
			t.Errorf("%s: content-length %q, want %q", c.method, got, c.length)
		}
	}
	if n := s.Accepted(); n != 1 {
		t.Errorf("%d connections, want 1", n)
	}
}

func TestHopByHopHeadersOfTheEngineStayBehind(t *testing.T) {
	s := faulty.Start(t, faulty.Always(func(c *faulty.Conn) {
		c.Raw("HTTP/1.0 200 Fine\r\nServer: uvicorn\r\nX-Thing: 1\r\nKeep-Alive: timeout=5\r\nTrailer: X-T\r\nUpgrade: h2c\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nok")
		c.KeepAlive()
	}))
	up := newUpstream(t, s.URL, Options{})
	d, err := do(up, newCall(), post("{}"))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for k := range d.resp.Header.All() {
		names = append(names, string(k))
	}
	slices.Sort(names)
	if want := "Content-Length Content-Type Server X-Thing"; strings.Join(names, " ") != want && strings.Join(names, " ") != "Content-Length Server X-Thing" {
		t.Errorf("headers %v, want %s", names, want)
	}
	if line, _, _ := strings.Cut(d.resp.Header.String(), "\r\n"); line != "HTTP/1.1 200 OK" {
		t.Errorf("status line %q, want HTTP/1.1 200 OK", line)
	}
	if _, idle := up.Conns(); idle != 1 {
		t.Errorf("an HTTP/1.0 connection with keep-alive was not kept")
	}
}

func TestTLSUpstream(t *testing.T) {
	srv := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength > 0 && r.ProtoMajor == 1 {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = w.Write([]byte("data: {}\n\ndata: [DONE]\n\n"))
		}
	}))
	defer srv.Close()
	r := New(Options{})
	defer r.Close()
	up, err := r.NewUpstream(UpstreamOptions{URL: srv.URL, TLS: srv.Client().Transport.(*http.Transport).TLSClientConfig})
	if err != nil {
		t.Fatal(err)
	}
	defer up.Close()
	for range 3 {
		d, err := do(up, newCall(), post(strings.Repeat("x", 100_000)))
		if err != nil || d.body.String() != "data: {}\n\ndata: [DONE]\n\n" || d.result.Err != nil {
			t.Fatalf("error %v, body %q, result %+v", err, d.body.String(), d.result)
		}
	}
	if open, _ := up.Conns(); open != 1 {
		t.Errorf("%d connections for three requests, want 1", open)
	}

	strict, err := r.NewUpstream(UpstreamOptions{URL: srv.URL, TLS: &tls.Config{MinVersion: tls.VersionTLS12}})
	if err != nil {
		t.Fatal(err)
	}
	_, err = do(strict, newCall(), post("{}"))
	wantError(t, err, KindConnect)
}

func TestBadEngineURLs(t *testing.T) {
	r := New(Options{})
	defer r.Close()
	for _, u := range []string{"", "engine:30000", "ftp://engine", "http://", "http://a b"} {
		if _, err := r.NewUpstream(UpstreamOptions{URL: u}); err == nil {
			t.Errorf("URL %q was accepted", u)
		}
	}
	for u, want := range map[string]string{"http://e": "e:80", "https://e": "e:443", "http://[::1]:9/x": "[::1]:9"} {
		up, err := r.NewUpstream(UpstreamOptions{URL: u})
		if err != nil || up.Addr() != want {
			t.Errorf("URL %q: %v, address %q, want %q", u, err, up.Addr(), want)
		}
	}
}

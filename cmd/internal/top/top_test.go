package top

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"
)

const update = `{"time":"2026-01-02T03:04:05Z","version":"v1","started_at":"2026-01-02T02:04:05Z",
"summary":{"level":"warn","text":"1 of 2 replicas take no requests: two."},
"replicas":[{"id":"one","state":"healthy","in_flight":3,"waiting":1,"kv_tokens":1000,"requests_total":12345,"failures_total":2,"hit_actual":0.915,"first_token_ms":{"p50":26.4,"p95":1234},"load":{"used_tokens":250}},
{"id":"two\u001b[31m","state":"unhealthy","kv_tokens":0,"hit_actual":null,"first_token_ms":null,"load":null}],
"limits":{"keys":[{"key":"team","running":3,"waiting":1,"refusals":{"tokens":7,"queue_full":2},"limits":[{"rates":[{"kind":"tokens","burst":200000,"used":81609}],"running":3,"concurrency":64}]}],
"queues":[{"model":"m","waiting":9,"max_length":10,"oldest_ms":61000}]},"keys_total":3,
"trouble":[{"level":"bad","title":"Replica two does not answer","text":"connection refused","last":"2026-01-02T03:03:55Z"}],
"point":{"requests":11.2,"refused":0.4,"failed":0,"input":12907,"cached":11933,"output":542,"first_token_ms":{"p50":27,"p95":106},"hit_actual":0.92}}`

// gateway serves updates: those of each connection in turn.
func gateway(t *testing.T, connections ...[]string) string {
	t.Helper()
	var n atomic.Int64
	over := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		i := int(n.Add(1)) - 1
		if r.URL.Path != "/events" {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		fmt.Fprint(w, "event: history\ndata: []\n\n")
		for _, u := range connections[min(i, len(connections)-1)] {
			fmt.Fprintf(w, "event: status\ndata: %s\n\n", strings.ReplaceAll(u, "\n", ""))
			w.(http.Flusher).Flush()
		}
		if i >= len(connections)-1 { // the last one stays
			select {
			case <-r.Context().Done():
			case <-over:
			}
		}
	}))
	t.Cleanup(s.Close)
	t.Cleanup(func() { close(over) })
	return s.URL
}

func TestWithoutATerminalItWritesOneViewAndEnds(t *testing.T) {
	var out bytes.Buffer
	url := gateway(t, []string{update, update})
	if err := Run(t.Context(), Options{URL: url, Color: true}, strings.NewReader(""), &out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"Penstock v1 at " + url + ", up for 1 h 0 min",
		"1 of 2 replicas take no requests: two.",
		"Requests/s 11, refused 0.4, failed 0   First token 27 ms, 95 % within 106 ms",
		"Tokens/s   prompt 13k, from cache 12k, output 542   Cache hits 92 %",
		"healthy        3      1  25 %  92 %    26 ms    1.2 s     12345      2",
		"unhealthy      0      0     –     –        –        –         0      0",
		"9 of 10    1 min 1 s",
		"team                     3     1  tokens 82k/200k, at once 3/64; refused: queue full 2, tokens 7",
		"and 2 keys that do less",
		"    10 s  Replica two does not answer: connection refused",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the view lacks %q:\n%s", want, out.String())
		}
	}
	if strings.Contains(out.String(), "\x1b") {
		t.Errorf("there are control characters in\n%q", out.String())
	}
}

func TestWithoutAGatewayItSaysSo(t *testing.T) {
	gone := httptest.NewServer(http.NotFoundHandler())
	err := Run(t.Context(), Options{URL: gone.URL}, strings.NewReader(""), io.Discard)
	if err == nil || !strings.Contains(err.Error(), "404") {
		t.Errorf("a server without updates: got %v", err)
	}
	gone.Close()
	err = Run(t.Context(), Options{URL: gone.URL}, strings.NewReader(""), io.Discard)
	if err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("nobody there: got %v", err)
	}
}

func TestLinesFitTheTerminal(t *testing.T) {
	url := gateway(t, []string{update})
	s, err := one(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	for _, size := range [][2]int{{20, 5}, {80, 24}, {200, 60}, {1, 1}} {
		v := view{width: size[0], height: size[1]}
		got := v.render(s, url)
		if len(got) > size[1] {
			t.Errorf("%d×%d: %d lines", size[0], size[1], len(got))
		}
		for _, l := range got {
			if utf8.RuneCountInString(l) > size[0] {
				t.Errorf("%d×%d: the line %q is too long", size[0], size[1], l)
			}
		}
	}
}

// screen is a terminal that remembers what was written.
type screen struct {
	mu   sync.Mutex
	text strings.Builder
}

func (s *screen) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(b)
}

func (s *screen) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

func (s *screen) shows(t *testing.T, want string) {
	t.Helper()
	deadline := time.After(10 * time.Second)
	for tick := time.NewTicker(5 * time.Millisecond); ; {
		select {
		case <-deadline:
			t.Fatalf("the screen does not show %q:\n%q", want, s.String())
		case <-tick.C:
			if strings.Contains(s.String(), want) {
				return
			}
		}
	}
}

func TestItDrawsFollowsAndEndsOnQ(t *testing.T) {
	url := gateway(t, []string{update}, []string{strings.Replace(update, "requests: two", "requests: both", 1)})
	keys, press := io.Pipe()
	var s screen
	var width atomic.Int64
	width.Store(100)
	ended := make(chan error, 1)
	go func() {
		ended <- show(context.Background(), Options{URL: url, Color: true}, keys, &s, func() (int, int) { return int(width.Load()), 30 })
	}()
	s.shows(t, red+"two")
	s.shows(t, "Not connected: unexpected EOF. Trying again; q quits")
	s.shows(t, "requests: both.")
	width.Store(30)
	s.shows(t, "1 of 2 replicas take no reque…")
	fmt.Fprint(press, "xq")
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(5 * time.Second):
		t.Fatal("q does not end it")
	}
	if got := s.String(); !strings.HasPrefix(got, enter) || !strings.HasSuffix(got, leave) {
		t.Errorf("the terminal is not left as it was: it begins %q, ends %q", got[:20], got[len(got)-20:])
	}
}

func TestASilentGatewayIsTold(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errSilent)
	if err := reason(ctx, io.EOF); !errors.Is(err, errSilent) {
		t.Errorf("got %v", err)
	}
	var s screen
	if err := draw(&s, Options{URL: "http://x"}, news{err: errSilent}, 80, 24); err != nil || !strings.Contains(s.String(), "silent") {
		t.Errorf("got %q, %v", s.String(), err)
	}
}

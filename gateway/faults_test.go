package gateway

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"penstock/e2e/faulty"
	"penstock/gateway/relay"
)

const chatBody = `{"model":"m","messages":[{"role":"user","content":"hi"}],"max_tokens":4`

// eventually waits for a condition that other goroutines bring about.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(5 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within 5s: %s", what)
		}
	}
}

// atRest checks that nothing of any request is left.
func (h *harness) atRest(t testing.TB) {
	t.Helper()
	eventually(t, "nothing under way", func() bool { return h.attempts.count() == 0 && h.pools.waiting() == 0 })
	for _, pl := range h.pools.all() {
		for _, m := range *pl.members.Load() {
			if st := m.route.Stats(); st.InFlight != 0 || st.QueuedTokens != 0 || st.Waiting != 0 || st.KVInFlight != 0 {
				t.Errorf("replica %s is not at rest: %+v", st.ID, st)
			}
			if n := m.engine.InFlight(); n != 0 {
				t.Errorf("engine %s has %d attempts in flight", m.engine.ID(), n)
			}
		}
	}
}

// engineOf is an engine that serves m by that script.
func engineOf(script func(*faulty.Request) faulty.Script) func(*faulty.Request) faulty.Script {
	return faulty.Serving("m", script)
}

const twoFaulty = `
models:
  - name: m
    engines: [{url: $1, kind: openai, id: a}, {url: $2, kind: openai, id: b}]
    policy: round_robin
timeouts: {connect: 1s, first_token: 1s, idle: 1s, request: 3s}
keys: [{name: k, key: "${K}", limits: {tokens_per_minute: 1000000, concurrency: 100}}]
`

const auth = "Authorization: Bearer secret-K"

func TestAFailureBeforeTheFirstByteIsTriedElsewhere(t *testing.T) {
	bad := map[string]faulty.Script{
		"503":                  func(c *faulty.Conn) { c.Whole(503, "application/json", `{"error":{"message":"busy"}}`) },
		"429":                  func(c *faulty.Conn) { c.Whole(429, "application/json", `{}`) },
		"500":                  func(c *faulty.Conn) { c.Whole(500, "application/json", `{}`) },
		"reset before headers": func(c *faulty.Conn) { c.Reset() },
		"503 inside a 200 stream": func(c *faulty.Conn) {
			c.Stream()
			c.Event(`{"error":{"message":"overloaded","type":"x","code":503}}`)
			c.Event(faulty.Done)
			c.End()
		},
		"reset after headers": func(c *faulty.Conn) { c.Stream(); c.Reset() },
	}
	for name, script := range bad {
		t.Run(name, func(t *testing.T) {
			a := faulty.Start(t, engineOf(faulty.Always(script)))
			b := faulty.Start(t, engineOf(faulty.Always(faulty.Good().Stream)))
			g := startGateway(t, twoFaulty, a.URL, b.URL)
			for range 4 { // some of them begin at a, some at b
				got := ask(t, "POST", g.url+"/v1/chat/completions", chatBody+`,"stream":true}`, auth)
				if got.status != 200 || !strings.HasSuffix(got.body, "data: [DONE]\n\n") {
					t.Fatalf("got %d %q, want a whole stream from the good replica", got.status, got.body)
				}
			}
			g.atRest(t)
		})
	}
}

func TestADeadReplicaGetsAtMostOneMoreTry(t *testing.T) {
	die := faulty.Always(func(c *faulty.Conn) { c.Reset() })
	a, b := faulty.Start(t, engineOf(die)), faulty.Start(t, engineOf(die))
	c := faulty.Start(t, engineOf(die))
	g := startGateway(t, strings.Replace(twoFaulty, "id: b}", "id: b}, {url: $3, kind: openai, id: c}", 1), a.URL, b.URL, c.URL)
	got := ask(t, "POST", g.url+"/v1/chat/completions", chatBody+"}", auth)
	if got.status != 502 || !strings.Contains(got.body, "upstream_disconnected") {
		t.Fatalf("got %d %s, want 502 upstream_disconnected", got.status, got.body)
	}
	posts := 0
	for _, s := range []*faulty.Server{a, b, c} {
		for _, r := range s.Requests() {
			if r.Method == http.MethodPost {
				posts++
			}
		}
	}
	if posts != 2 {
		t.Errorf("the request reached %d replicas, want 2: the first and one more", posts)
	}
	g.atRest(t)
}

func TestADeathInMidStreamIsAnErrorEventAndACutConnection(t *testing.T) {
	die := faulty.Always(func(c *faulty.Conn) {
		c.Stream()
		c.Event(faulty.Chunk("Hello"))
		c.Pause(30 * time.Millisecond)
		c.Reset()
	})
	s := faulty.Start(t, engineOf(die))
	g := startGateway(t, twoFaulty, s.URL, faulty.Start(t, engineOf(die)).URL)
	req, _ := http.NewRequestWithContext(t.Context(), "POST", g.url+"/v1/chat/completions", strings.NewReader(chatBody+`,"stream":true}`))
	req.Header.Set("Authorization", "Bearer secret-K")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err == nil {
		t.Errorf("the stream ended cleanly, want a cut connection")
	}
	if !strings.Contains(string(b), "Hello") || !strings.Contains(string(b), `"code":"upstream_disconnected"`) {
		t.Errorf("got %q, want the first event and an error event", b)
	}
	g.atRest(t)
}

// leave opens a request and goes away after it has read so many lines.
func leave(t *testing.T, g *harness, body string, until func(*bufio.Reader)) {
	t.Helper()
	c, err := net.Dial("tcp", strings.TrimPrefix(g.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.WriteString(c, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"+auth+"\r\nContent-Length: "+strconv.Itoa(len(body))+"\r\n\r\n"+body)
	until(bufio.NewReader(c))
	_ = c.Close()
}

func TestALeavingClientEndsItsRequestEverywhere(t *testing.T) {
	begun := make(chan struct{}, 8)
	cases := map[string]faulty.Script{
		"before headers":         func(c *faulty.Conn) { begun <- struct{}{}; c.Wait() },
		"before the first event": func(c *faulty.Conn) { c.Stream(); begun <- struct{}{}; c.Wait() },
		"between events": func(c *faulty.Conn) {
			c.Stream()
			c.Event(faulty.Chunk("Hello"))
			begun <- struct{}{}
			c.Wait()
		},
	}
	for name, script := range cases {
		for _, body := range []string{chatBody + `,"stream":true}`, chatBody + "}"} {
			t.Run(name, func(t *testing.T) {
				s := faulty.Start(t, engineOf(faulty.Always(script)))
				g := startGateway(t, twoFaulty, s.URL, faulty.Start(t, engineOf(faulty.Always(script))).URL)
				leave(t, g, body, func(*bufio.Reader) { <-begun })
				g.atRest(t)
				eventually(t, "an access line of status 499", func() bool { return strings.Contains(g.log.String(), `"status":499`) })
			})
		}
	}
}

func TestWhatWaitsOnAnUnhealthyReplicaIsAnsweredElsewhere(t *testing.T) {
	begun := make(chan struct{}, 8)
	freeze := faulty.Always(func(c *faulty.Conn) { begun <- struct{}{}; c.Wait() })
	a := faulty.Start(t, engineOf(freeze))
	b := faulty.Start(t, engineOf(faulty.Always(faulty.Good().Whole)))
	g := startGateway(t, twoFaulty, a.URL, b.URL)
	got := make(chan answer, 2)
	for range 2 {
		go func() { got <- ask(t, "POST", g.url+"/v1/chat/completions", chatBody+"}", auth) }()
	}
	var frozen *member
	if r, ok := g.fleet.Replica("a"); ok {
		frozen = g.pools.member(r)
	}
	go func() {
		for range begun {
			g.attempts.cancelOn(frozen, relay.ErrUnhealthy)
		}
	}()
	defer close(begun)
	for range 2 {
		if x := <-got; x.status != 200 {
			t.Errorf("got %d %s, want 200 from the other replica", x.status, x.body)
		}
	}
	g.atRest(t)
}

func TestAReaderOfDrainingGetsWhatItBegan(t *testing.T) {
	hold := make(chan struct{})
	slow := faulty.Always(func(c *faulty.Conn) {
		c.Stream()
		c.Event(faulty.Chunk("Hello"))
		<-hold
		c.Event(faulty.Done)
		c.End()
	})
	g := startGateway(t, twoFaulty, faulty.Start(t, engineOf(slow)).URL, faulty.Start(t, engineOf(slow)).URL)
	running := make(chan answer, 1)
	go func() { running <- ask(t, "POST", g.url+"/v1/chat/completions", chatBody+`,"stream":true}`, auth) }()
	eventually(t, "the stream runs", func() bool { return g.attempts.count() == 1 })
	g.draining.Store(true)
	got := ask(t, "POST", g.url+"/v1/chat/completions", chatBody+"}", auth)
	if got.status != 503 || !strings.Contains(got.body, `"code":"draining"`) {
		t.Errorf("a new request while draining: got %d %s, want 503 draining", got.status, got.body)
	}
	if h := ask(t, "GET", g.url+"/readyz", ""); h.status != 503 {
		t.Errorf("readyz while draining: got %d, want 503", h.status)
	}
	close(hold)
	if x := <-running; !strings.HasSuffix(x.body, "data: [DONE]\n\n") {
		t.Errorf("the stream that ran: got %q, want it whole", x.body)
	}
}

func TestDeadlinesAreTheOnesThatTheErrorsName(t *testing.T) {
	for _, c := range []struct {
		name, code string
		stream     bool
		script     faulty.Script
	}{
		{"no headers, stream", "first_token_timeout", true, func(c *faulty.Conn) { c.Wait() }},
		{"no first event", "first_token_timeout", true, func(c *faulty.Conn) { c.Stream(); c.Wait() }},
		{"no headers, whole", "upstream_timeout", false, func(c *faulty.Conn) { c.Wait() }},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := faulty.Start(t, engineOf(faulty.Always(c.script)))
			g := startGateway(t, twoFaulty, s.URL, faulty.Start(t, engineOf(faulty.Always(c.script))).URL)
			body := chatBody + "}"
			if c.stream {
				body = chatBody + `,"stream":true}`
			}
			ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
			defer cancel()
			req, _ := http.NewRequestWithContext(ctx, "POST", g.url+"/v1/chat/completions", strings.NewReader(body))
			req.Header.Set("Authorization", "Bearer secret-K")
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatalf("no answer in time: %v", err)
			}
			defer resp.Body.Close()
			b, err := io.ReadAll(resp.Body)
			if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Fatal(err)
			}
			if resp.StatusCode != 504 || !strings.Contains(string(b), `"code":"`+c.code+`"`) {
				t.Errorf("got %d %s, want 504 %s", resp.StatusCode, b, c.code)
			}
			g.atRest(t)
		})
	}
}

func TestRetriesAreAShareOfTheRequestsThatCome(t *testing.T) {
	busy := faulty.Always(func(c *faulty.Conn) { c.Whole(503, "application/json", `{}`) })
	s := faulty.Start(t, engineOf(busy))
	good := faulty.Start(t, engineOf(faulty.Always(faulty.Good().Whole)))
	g := startGateway(t, strings.Replace(twoFaulty, "keys:", "retry: {budget: 0.2, min_per_second: 0}\nkeys:", 1), s.URL, good.URL)
	answered, refused := 0, 0
	for range 40 { // every second one meets the busy replica first
		switch got := ask(t, "POST", g.url+"/v1/chat/completions", chatBody+"}", auth); got.status {
		case 200:
			answered++
		case 503:
			refused++
		default:
			t.Fatalf("got %d %s", got.status, got.body)
		}
	}
	// 8 of 40 may be tried again, and 20 need it: some would be more if retries
	// were free, none if requests were not counted.
	if answered < 24 || refused < 8 {
		t.Errorf("%d answered, %d refused, want about 28 and 12", answered, refused)
	}
}

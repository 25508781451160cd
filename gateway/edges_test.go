package gateway

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"penstock/e2e/faulty"
	"penstock/engine/local"
	"penstock/engine/local/localtest"
)

// wholeAnd answers paths that begin with path by body, and everything else as in.
func wholeAnd(in faulty.Script, path string, status int, body string) func(*faulty.Request) faulty.Script {
	others := engineOf(faulty.Always(in))
	return func(r *faulty.Request) faulty.Script {
		if strings.HasPrefix(r.Path, path) {
			return func(c *faulty.Conn) { c.Whole(status, "application/json", body) }
		}
		return others(r)
	}
}

func TestQuestionsToAnyEngineAreTriedElsewhere(t *testing.T) {
	busy := faulty.Start(t, wholeAnd(faulty.Good().Whole, "/tokenizer_info", 503, `{}`))
	free := faulty.Start(t, wholeAnd(faulty.Good().Whole, "/tokenizer_info", 200, `{"ok":true}`))
	g := startGateway(t, twoFaulty, busy.URL, free.URL)
	for range 4 {
		if got := ask(t, "GET", g.url+"/tokenizer_info", "", auth); got.status != 200 {
			t.Errorf("got %d %s, want the other engine's 200", got.status, got.body)
		}
	}
}

func TestACompressedBodyIsNamedAsSuch(t *testing.T) {
	s := faulty.Start(t, engineOf(faulty.Always(faulty.Good().Whole)))
	g := startGateway(t, oneFaulty, s.URL)
	got := ask(t, "POST", g.url+"/v1/chat/completions", "\x1f\x8b\x08\x00\x00", auth, "Content-Encoding: gzip")
	if got.status != 400 || !strings.Contains(got.body, `Content-Encoding \"gzip\"`) {
		t.Errorf("got %d %s, want a 400 that names the encoding", got.status, got.body)
	}
	if got := ask(t, "POST", g.url+"/v1/chat/completions", chatBody+"}", auth, "Content-Encoding: identity"); got.status != 200 {
		t.Errorf("encoded as identity: got %d %s, want 200", got.status, got.body)
	}
}

func TestAFullEngineIsNoFaultOfOurs(t *testing.T) {
	s := faulty.Start(t, wholeAnd(func(c *faulty.Conn) { c.Stream(); c.Event(faulty.Chunk("x")); c.Wait() }, "/v1/responses", 200, `{"id":"resp_abc","object":"response","status":"queued"}`))
	g := startGateway(t, `
models: [{name: m, engines: [{url: $1, kind: openai, id: a, max_running: 1}], queue: {max_wait: 3s}}]
keys: [{name: k, key: "${K}"}]
`, s.URL)
	ask(t, "POST", g.url+"/v1/responses", `{"model":"m","input":"hi","background":true}`, auth)
	for range 2 {
		raw(t, g, "POST /v1/chat/completions", "", chatBody+`,"stream":true}`)
	}
	eventually(t, "one waits", func() bool { return g.pools.waiting() > 0 })
	for _, q := range []string{"GET /tokenizer_info", "GET /v1/responses/resp_abc", "POST /v1/responses/resp_abc/cancel"} {
		method, path, _ := strings.Cut(q, " ")
		if got := ask(t, method, g.url+path, "", auth); got.status == 500 {
			t.Errorf("%s while the engine is full: got %d %s", q, got.status, got.body)
		}
	}
}

func TestAHalfClosedClientGetsNoEmptySuccess(t *testing.T) {
	s := faulty.Start(t, engineOf(faulty.Always(func(c *faulty.Conn) { c.Pause(300 * time.Millisecond); faulty.Good().Whole(c) })))
	g := startGateway(t, oneLimitedKey, s.URL)
	nc := raw(t, g, "POST /v1/chat/completions", "", chatBody+"}")
	_ = nc.(*net.TCPConn).CloseWrite()
	_ = nc.SetReadDeadline(time.Now().Add(5 * time.Second))
	got, _ := io.ReadAll(nc)
	if strings.HasPrefix(string(got), "HTTP/1.1 200") && !strings.Contains(string(got), "choices") {
		t.Errorf("got %q, want no 200 without an answer", got)
	}
}

func TestDrainWaitsForThoseThatWaitForTheirRate(t *testing.T) {
	s := faulty.Start(t, engineOf(faulty.Always(faulty.Good().Whole)))
	g := startGateway(t, `
models: [{name: m, engines: [{url: $1, kind: openai, id: a}]}]
timeouts: {drain: 20s}
keys: [{name: k, key: "${K}", on_rate_limit: wait, limits: {requests_per_minute: 40, requests_burst: 1}, queue: {max_wait: 20s}}]
`, s.URL)
	ask(t, "POST", g.url+"/v1/chat/completions", chatBody+"}", auth)
	nc := raw(t, g, "POST /v1/chat/completions", "", chatBody+"}")
	eventually(t, "one waits for its rate", func() bool { return g.limiter.Waiting() == 1 })
	g.Shutdown()
	_ = nc.SetReadDeadline(time.Now().Add(time.Second))
	if got, err := bufio.NewReader(nc).ReadString('\n'); !strings.HasPrefix(got, "HTTP/1.1 200") {
		t.Errorf("got %q, %v; want its 200 before the drain is over", got, err)
	}
}

func TestAKeySeesTheNamesThatItMayUseAndNoOthers(t *testing.T) {
	s := faulty.Start(t, engineOf(faulty.Always(faulty.Good().Whole)))
	g := startGateway(t, `
models:
  - {name: m, aliases: [fast], engines: [{url: $1, kind: openai, id: a}]}
  - {name: secret, engines: []}
keys: [{name: k, key: "${K}", models: [fast]}]
`, s.URL)
	if got := ask(t, "GET", g.url+"/v1/models", "", auth); !strings.Contains(got.body, `"data":[{"id":"fast",`) || strings.Contains(got.body, "secret") {
		t.Errorf("the list is %s, want fast alone", got.body)
	}
	for _, model := range []string{`"model":"fsat",`, ""} {
		body := strings.Replace(chatBody, `"model":"m",`, model, 1) + "}"
		if got := ask(t, "POST", g.url+"/v1/chat/completions", body, auth); got.status >= 500 || strings.Contains(got.body, "secret") || !strings.Contains(got.body, "fast") {
			t.Errorf("%s: got %d %s, want the name that the key may use and no other", model, got.status, got.body)
		}
	}
}

// vLLM and SGLang let the pages of all origins read their answers.
func TestTheEngineDoesNotSayWhichPagesMayRead(t *testing.T) {
	s := faulty.Start(t, engineOf(faulty.Always(func(c *faulty.Conn) {
		c.Whole(200, "application/json", "{}", "access-control-allow-origin: *", "access-control-allow-credentials: true", "access-control-expose-headers: x-a")
	})))
	for _, cors := range []string{"", "cors: {origins: [https://app.example.com]}\n"} {
		g := startGateway(t, cors+`models: [{name: m, engines: [{url: $1, kind: openai, id: a}]}]`, s.URL)
		got := ask(t, "POST", g.url+"/v1/chat/completions", chatBody+"}", "Origin: https://evil.example.com")
		for name := range got.header {
			if strings.HasPrefix(name, "Access-Control-") {
				t.Errorf("with %q a page of another origin gets %s: %s", cors, name, got.header.Get(name))
			}
		}
	}
}

func TestAScoringRequestNamesWhatBoundsItsWait(t *testing.T) {
	s := faulty.Start(t, engineOf(faulty.Always(func(c *faulty.Conn) { c.Wait() })))
	g := startGateway(t, `
models: [{name: m, engines: [{url: $1, kind: openai, id: a}]}]
scoring: {max_in_flight_tokens: 16, max_wait: 200ms}
keys: [{name: k, key: "${K}"}]
`, s.URL)
	body := `{"model":"m","echo":true,"logprobs":1,"max_tokens":0,"prompt":"` + strings.Repeat("word ", 20) + `"}`
	raw(t, g, "POST /v1/completions", "", body)
	eventually(t, "one runs", func() bool { return g.attempts.count() == 1 })
	got := ask(t, "POST", g.url+"/v1/completions", body, auth)
	if got.status != 503 || !strings.Contains(got.body, "within 200ms. Limit set by scoring.max_wait.") {
		t.Errorf("got %d %s, want 503 that names scoring.max_wait", got.status, got.body)
	}
}

func TestWaitingForARateAndForASlotIsOneWait(t *testing.T) {
	s := faulty.Start(t, engineOf(faulty.Always(func(c *faulty.Conn) { c.Stream(); c.Event(faulty.Chunk("x")); c.Wait() })))
	g := startGateway(t, `
models: [{name: m, engines: [{url: $1, kind: openai, id: a}]}]
keys: [{name: k, key: "${K}", on_rate_limit: wait, limits: {requests_per_minute: 60, requests_burst: 1, concurrency: 1}, queue: {max_wait: 2s}}]
`, s.URL)
	raw(t, g, "POST /v1/chat/completions", "", chatBody+`,"stream":true}`)
	eventually(t, "one runs", func() bool { return g.attempts.count() == 1 })
	start := time.Now()
	got := ask(t, "POST", g.url+"/v1/chat/completions", chatBody+"}", auth)
	if d := time.Since(start); got.status != 429 || d < 1900*time.Millisecond || d > 2500*time.Millisecond {
		t.Errorf("%d after %v, want 429 after its max_wait of 2s: nearly 1s for its rate, the rest for the slot", got.status, d)
	}
	if ms, _ := strconv.Atoi(got.header.Get("X-Penstock-Queue-Ms")); ms < 1900 || ms > 2500 {
		t.Errorf("X-Penstock-Queue-Ms is %d, want all of the 2 s", ms)
	}
}

func TestWhoStillWaitsWhenTheDrainIsOverIsTold(t *testing.T) {
	s := faulty.Start(t, engineOf(faulty.Always(func(c *faulty.Conn) { c.Wait() })))
	g := startGateway(t, `
models: [{name: m, engines: [{url: $1, kind: openai, id: a, max_running: 1}]}]
timeouts: {drain: 100ms}
keys: [{name: k, key: "${K}", on_rate_limit: wait, limits: {requests_per_minute: 3}, queue: {max_wait: 50s}}]
`, s.URL)
	var all []net.Conn
	for range 4 { // one runs, two wait for room, one for its rate
		all = append(all, raw(t, g, "POST /v1/chat/completions", "", chatBody+"}"))
	}
	eventually(t, "all are there", func() bool { return g.attempts.count() == 1 && g.pools.waiting() == 2 && g.limiter.Waiting() == 1 })
	if cut := g.Shutdown(); cut != 4 {
		t.Errorf("%d were cut off, want all 4", cut)
	}
	for i, nc := range all {
		_ = nc.SetReadDeadline(time.Now().Add(5 * time.Second))
		if got, _ := io.ReadAll(nc); !strings.HasPrefix(string(got), "HTTP/1.1 503") || !strings.Contains(string(got), `"draining"`) {
			t.Errorf("request %d got %q, want 503 draining", i, got)
		}
	}
}

func TestPartsOfOneRequestTakeOnePlaceOfItsKey(t *testing.T) {
	g := startGateway(t, `
models: [{name: m, engines: [{url: $1}]}]
keys: [{name: k, key: "${K}", queue: {max_length: 1}}]
`, localtest.URL(t, local.Options{Model: "m", Profile: "instant"}))
	ids := "[" + strings.TrimSuffix(strings.Repeat("65,", 2000), ",") + "]"
	body := `{"model":"m","echo":true,"logprobs":1,"max_tokens":0,"prompt":[` + strings.TrimSuffix(strings.Repeat(ids+",", 25), ",") + `]}`
	if got := ask(t, "POST", g.url+"/v1/completions", body, auth); got.status != 200 {
		t.Errorf("alone on an idle gateway: %d %.300s", got.status, got.body)
	}
}

func TestTextIsCountedWhereverItStands(t *testing.T) {
	s := faulty.Start(t, engineOf(faulty.Always(faulty.Good().Whole)))
	g := startGateway(t, strings.Replace(oneLimitedKey, "10000000", "20000", 1), s.URL)
	text := strings.Repeat("word ", 20000)
	for path, body := range map[string]string{
		"/v1/chat/completions": `{"model":"m","max_tokens":1,"messages":[{"role":"user","content":"` + text + `"}]}`,
		"/v1/rerank":           `{"model":"m","query":"q","documents":["` + text + `"]}`,
		"/v1/score":            `{"model":"m","text_1":"q","text_2":["` + text + `"]}`,
		"/pooling":             `{"model":"m","input":"` + text + `"}`,
		"/classify":            `{"model":"m","input":"` + text + `"}`,
	} {
		if got := ask(t, "POST", g.url+path, body, auth); got.status != 429 {
			t.Errorf("%s with 100 KB of text at a burst of 20000 tokens: got %d, want 429", path, got.status)
		}
	}
	escaped := `{"model":"m","max_tokens":1,"messages":[{"role":"user","c\u006fntent":"` + text + `"}]}`
	if got := ask(t, "POST", g.url+"/v1/chat/completions", escaped, auth); got.status != 400 || !strings.Contains(got.body, "messages[0].content") {
		t.Errorf("a key written with escapes: got %d %.200s, want 400 that names it", got.status, got.body)
	}
}

func TestOutputNullIsNoOutput(t *testing.T) {
	s := faulty.Start(t, engineOf(faulty.Always(faulty.Good().Whole)))
	g := startGateway(t, oneLimitedKey, s.URL)
	body := `{"model":"m","input":[{"role":"user","content":"hi"},{"type":"mcp_call","id":"mcp_1","name":"f","server_label":"s","arguments":"{}","output":null,"error":"boom"}]}`
	if got := ask(t, "POST", g.url+"/v1/responses", body, auth); got.status != 200 {
		t.Errorf("got %d %.200s, want 200", got.status, got.body)
	}
}

func TestEnginesGetThePathThatTheyKnow(t *testing.T) {
	s := faulty.Start(t, engineOf(faulty.Always(faulty.Good().Whole)))
	g := startGateway(t, oneLimitedKey, s.URL)
	for _, path := range []string{"//v1/chat/completions", "/x/../v1/chat/completions", "/v1/chat%2Fcompletions", "/v1/chat/./completions"} {
		nc := raw(t, g, "POST "+path, "Connection: close\r\n", chatBody+"}")
		got, _ := bufio.NewReader(nc).ReadString('\n')
		all := s.Requests()
		if last := all[len(all)-1].Path; last != "/v1/chat/completions" || !strings.Contains(got, "200") {
			t.Errorf("%s: the engine was asked %s, the client got %q", path, last, got)
		}
	}
}

func TestAnEmptyRankHeaderHidesNoOther(t *testing.T) {
	s := faulty.Start(t, engineOf(faulty.Always(faulty.Good().Whole)))
	g := startGateway(t, oneLimitedKey, s.URL)
	nc := raw(t, g, "POST /v1/chat/completions", "X-Data-Parallel-Rank:\r\nX-Data-Parallel-Rank: 3\r\n", chatBody+"}")
	if got, _ := bufio.NewReader(nc).ReadString('\n'); !strings.Contains(got, "400") {
		t.Errorf("got %q, want 400: the key may not direct the engine", got)
	}
}

func TestAKeyForTheDefaultModelMayNameNone(t *testing.T) {
	s := faulty.Start(t, engineOf(faulty.Always(faulty.Good().Whole)))
	g := startGateway(t, `
models: [{name: m, aliases: [default], engines: [{url: $1, kind: openai, id: a}]}]
keys: [{name: k, key: "${K}", models: [default]}]
`, s.URL)
	if got := ask(t, "POST", g.url+"/v1/chat/completions", strings.Replace(chatBody, `"model":"m",`, ``, 1)+"}", auth); got.status != 200 {
		t.Errorf("without a model: got %d %s", got.status, got.body)
	}
}

func TestHalfAnEndEventIsNoEnd(t *testing.T) {
	s := faulty.Start(t, engineOf(faulty.Always(func(c *faulty.Conn) {
		c.Stream()
		c.Chunk("event: response.created\ndata: {\"type\":\"response.created\",\"response\":{\"id\":\"resp_1\"}}\n\n")
		c.Meet()
		c.Chunk("event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"id\":\"resp_1\",\"outp")
		c.End()
	})))
	g := startGateway(t, oneLimitedKey, s.URL)
	nc := raw(t, g, "POST /v1/responses", "Connection: close\r\n", `{"model":"m","input":"hi","stream":true}`)
	if got, _ := io.ReadAll(nc); !strings.Contains(string(got), "event: error") || strings.Contains(string(got), "outp") {
		t.Errorf("got %q, want an error event in its place", got)
	}
}

func TestAFirstErrorOfSeveralLinesIsKept(t *testing.T) {
	s := faulty.Start(t, engineOf(faulty.Always(func(c *faulty.Conn) {
		c.Stream()
		c.Chunk("data: {\ndata: \"error\":{\"message\":\"first error here\",\"code\":400}}\n\ndata: [\ndata: \"second event's data\"]\n\n")
		c.Event(faulty.Done)
		c.End()
	})))
	g := startGateway(t, oneLimitedKey, s.URL)
	if got := ask(t, "POST", g.url+"/v1/chat/completions", chatBody+`,"stream":true}`, auth); !strings.Contains(got.body, "first error here") {
		t.Errorf("got %d %q, want the error's text", got.status, got.body)
	}
}

// The parts of a scored batch share the client's headers; the race detector watches.
func TestPartsReadTheSessionOnce(t *testing.T) {
	g := startGateway(t, `
models: [{name: m, policy: session, session_header: X-Session, engines: [{url: $1}, {url: $2}, {url: $3}, {url: $4}]}]
scoring: {split_tokens: 16}
`, four(t, local.Options{})...)
	prompt := `"The river runs down to the mill and the gate."`
	body := fmt.Sprintf(`{"model":"m","echo":true,"logprobs":1,"max_tokens":0,"prompt":[%[1]s,%[1]s,%[1]s,%[1]s]}`, prompt)
	if got := ask(t, "POST", g.url+"/v1/completions", body, "X-Session: a"); got.status != 200 {
		t.Errorf("got %d %s", got.status, got.body)
	}
}

package gateway

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"strings"
	"testing"

	"penstock/e2e/faulty"
)

// oneLimitedKey refills so slowly that what is charged can be read off afterwards.
const oneLimitedKey = `
models:
  - name: m
    engines: [{url: $1, kind: openai, id: a}]
timeouts: {connect: 5s, first_token: 20s, idle: 20s, request: 30s}
keys: [{name: k, key: "${K}", limits: {tokens_per_minute: 60, tokens_burst: 10000000, requests_per_minute: 6, requests_burst: 1000}}]
`

// charged is what the only key has used of its rates, once nothing runs.
func charged(t *testing.T, g *harness) (tokens, requests int64) {
	t.Helper()
	g.atRest(t)
	var page struct {
		Keys []struct {
			Limits []struct {
				Rates []struct {
					Kind string `json:"kind"`
					Used int64  `json:"used"`
				} `json:"rates"`
			} `json:"limits"`
		} `json:"keys"`
	}
	if err := json.Unmarshal([]byte(ask(t, "GET", g.admin+"/limits", "").body), &page); err != nil {
		t.Fatal(err)
	}
	for _, r := range page.Keys[0].Limits[0].Rates {
		switch r.Kind {
		case "tokens":
			tokens = r.Used
		case "requests":
			requests = r.Used
		}
	}
	return tokens, requests
}

// raw sends a request as it is written and leaves the connection open.
func raw(t *testing.T, g *harness, line, header, body string) net.Conn {
	t.Helper()
	nc, err := net.Dial("tcp", strings.TrimPrefix(g.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = nc.Close() })
	fmt.Fprintf(nc, "%s HTTP/1.1\r\nHost: x\r\n%s\r\n%sContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", line, auth, header, len(body), body)
	return nc
}

// nearly says that got is want, or one less: the rate refills while the test runs.
func nearly(got, want int64) bool { return got == want || got == want-1 }

func TestWhatIsCharged(t *testing.T) {
	native := func(n int) string {
		return fmt.Sprintf(`{"text":"abc","index":%d,"meta_info":{"id":"r","prompt_tokens":100,"completion_tokens":5,"cached_tokens":0,"finish_reason":{"type":"length"}}}`, n)
	}
	stream := func(events ...string) faulty.Script {
		return func(c *faulty.Conn) {
			c.Stream()
			for _, e := range events {
				c.Event(e)
			}
			c.Event(faulty.Done)
			c.End()
		}
	}
	for name, c := range map[string]struct {
		engine     faulty.Script
		path, body string
		want       int64
	}{
		"a /generate batch, streamed": {
			stream(native(0), native(1), native(0), native(3), native(2)), "/generate",
			`{"model":"m","text":["aaaa","bbbb","cccc","dddd"],"stream":true,"sampling_params":{"max_new_tokens":5}}`, 4 * 105,
		},
		"a /generate request with n, streamed": {
			stream(native(0), native(1), native(2)), "/generate",
			`{"model":"m","text":"aaaa","stream":true,"sampling_params":{"max_new_tokens":5,"n":3}}`, 100 + 3*5,
		},
		"a /generate request with n": {
			func(c *faulty.Conn) {
				c.Whole(200, "application/json", "["+native(0)+","+native(1)+","+native(2)+"]")
			}, "/generate",
			`{"model":"m","text":"aaaa","sampling_params":{"max_new_tokens":5,"n":3}}`, 100 + 3*5,
		},
		"a score without usage": {
			func(c *faulty.Conn) {
				c.Whole(200, "application/json", `{"id":"c","object":"text_completion","model":"m","choices":[{"index":0,"text":"abc","logprobs":{"tokens":["a","b","c"],"token_logprobs":[null,-1.5,-2.5],"top_logprobs":[null,{"b":-1.5},{"c":-2.5}],"text_offset":[0,1,2]},"finish_reason":"length"}]}`)
			}, "/v1/completions",
			`{"model":"m","prompt":[1,2,3],"echo":true,"logprobs":1,"max_tokens":0}`, 3,
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := startGateway(t, oneLimitedKey, faulty.Start(t, engineOf(faulty.Always(c.engine))).URL)
			if got := ask(t, "POST", g.url+c.path, c.body, auth); got.status != 200 {
				t.Fatalf("got %d %.300s", got.status, got.body)
			}
			if got, _ := charged(t, g); !nearly(got, c.want) {
				t.Errorf("charged %d tokens, want %d", got, c.want)
			}
		})
	}
}

func TestWhatWasDeliveredBeforeAnErrorEventIsCharged(t *testing.T) {
	s := faulty.Start(t, engineOf(faulty.Always(func(c *faulty.Conn) {
		c.Stream()
		for range 500 {
			c.Event(faulty.Chunk("x"))
		}
		c.Event(`{"error":{"message":"boom","type":"x","code":500}}`)
		c.Event(faulty.Done)
		c.End()
	})))
	g := startGateway(t, oneLimitedKey, s.URL)
	ask(t, "POST", g.url+"/v1/chat/completions", chatBody+`,"stream":true}`, auth)
	if got, _ := charged(t, g); got < 500 {
		t.Errorf("charged %d tokens, want the 500 delivered at least", got)
	}
}

// Anthropic's streams begin with an output of 0 tokens and tell the true number at their end.
func TestWhatWasDeliveredToWhoLeavesIsCharged(t *testing.T) {
	s := faulty.Start(t, engineOf(faulty.Always(func(c *faulty.Conn) {
		c.Stream()
		c.Chunk("event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"x\",\"usage\":{\"input_tokens\":10,\"output_tokens\":0}}}\n\n")
		for range 500 {
			c.Chunk("event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"x\"}}\n\n")
		}
		c.Wait()
	})))
	g := startGateway(t, oneLimitedKey, s.URL)
	nc := raw(t, g, "POST /v1/messages", "", `{"model":"m","max_tokens":1000,"stream":true,"messages":[{"role":"user","content":"hi"}]}`)
	rd := bufio.NewReader(nc)
	for n := 0; n < 500; {
		line, err := rd.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(line, "text_delta") {
			n++
		}
	}
	_ = nc.Close()
	if got, _ := charged(t, g); got < 500 {
		t.Errorf("charged %d tokens, want the 500 delivered at least", got)
	}
}

func TestWhatWasNeverSentIsNotCharged(t *testing.T) {
	s := faulty.Start(t, engineOf(faulty.Always(faulty.Good().Whole)))
	g := startGateway(t, oneLimitedKey, s.URL)
	chat := g.routes["/v1/chat/completions"]
	g.routes["/v1/left"] = &route{path: "/v1/left", methods: chat.methods, endpoint: chat.endpoint, counted: true, serve: func(s *Server, r *request) {
		err := s.identify(r)
		if err == nil {
			err = s.admit(r)
		}
		if err == nil {
			err = s.choose(r)
		}
		r.ClientLeft() // between the binding and the sending
		if err == nil {
			_, err = s.relayAttempt(r)
		}
		r.fail(err)
	}}
	before := s.Count()
	_ = ask(t, "POST", g.url+"/v1/left", chatBody+"}", auth)
	tokens, requests := charged(t, g)
	if tokens != 0 || requests != 0 || s.Count() != before {
		t.Errorf("the engine got %d requests; charged %d tokens, %d requests; want none", s.Count()-before, tokens, requests)
	}
}

package gateway

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"penstock/engine/local"
	"penstock/engine/local/localtest"
)

// lines are the access lines so far.
func lines(t *testing.T, g *harness) (all []map[string]any) {
	t.Helper()
	for in := bufio.NewScanner(strings.NewReader(g.log.String())); in.Scan(); {
		var v map[string]any
		if err := json.Unmarshal(in.Bytes(), &v); err != nil {
			t.Fatalf("%v in %s", err, in.Text())
		}
		if v["msg"] == "request" {
			all = append(all, v)
		}
	}
	return all
}

func TestTheAccessLineTellsADecisionAndItsEnd(t *testing.T) {
	engine, seen := echoHeaders(t)
	g := startGateway(t, "models: [{name: m, engines: [{url: $1, kind: openai, id: one}]}]\nkeys: [{name: alice, key: \"${A}\"}]", engine)
	ask(t, "POST", g.url+"/v1/completions", streamed, "Authorization: Bearer secret-A", "x-request-id: r-1")
	eventually(t, "the line is written", func() bool { return len(lines(t, g)) == 1 })
	l := lines(t, g)[0]
	for key, want := range map[string]any{
		"level": "INFO", "request_id": "r-1", "method": "POST", "path": "/v1/completions", "status": 200.0, "outcome": "done", "key": "alice", "model": "m",
		"lane": "generate", "stream": true, "replica": "one", "attempt_id": seen().Get("X-Request-Id"), "matched": 0.0, "best": 0.0,
		"prompt_tokens": 7.0, "cached_tokens": 4.0, "completion_tokens": 1.0, "events": 1.0,
	} {
		if l[key] != want {
			t.Errorf("%s: got %v, want %v in %v", key, l[key], want, l)
		}
	}
	for _, key := range []string{"uncached", "cost_ms", "queue_ms", "ttft_ms", "total_ms", "bytes"} {
		if v, ok := l[key].(float64); !ok || v < 0 {
			t.Errorf("%s: got %v, want a number", key, l[key])
		}
	}
	for _, key := range []string{"hint", "error", "code", "trace_id", "retries"} {
		if v, ok := l[key]; ok {
			t.Errorf("%s: got %v, want nothing: all is well", key, v)
		}
	}
}

func TestLinesOfFailuresAreKeptAndSayWhatToDo(t *testing.T) {
	broken := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/models" {
			fmt.Fprint(w, `{"object":"list","data":[{"id":"m"}]}`)
			return
		}
		b, _ := io.ReadAll(r.Body)
		switch {
		case strings.Contains(string(b), "status"):
			w.WriteHeader(http.StatusInternalServerError)
		case strings.Contains(string(b), "break"):
			w.Header().Set("Content-Type", "text/event-stream")
			fmt.Fprint(w, "data: {\"choices\":[{\"index\":0,\"text\":\"a\"}]}\n\n")
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		default:
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprint(w, `{"choices":[]}`)
		}
	}))
	defer broken.Close()
	g := startGateway(t, "models: [{name: m, engines: [{url: $1, kind: openai, id: one}]}]\nlog: {sample_success: 0}", broken.URL)
	ask(t, "POST", g.url+"/v1/completions", `{"model":"m","prompt":"fine"}`)
	ask(t, "POST", g.url+"/v1/completions", `{"model":"m","prompt":"status"}`)
	ask(t, "POST", g.url+"/v1/completions", `{"model":"nope","prompt":"x"}`)
	resp, err := http.Post(g.url+"/v1/completions", "application/json", strings.NewReader(`{"model":"m","prompt":"break","stream":true}`))
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.ReadAll(resp.Body)
	resp.Body.Close()
	eventually(t, "three lines are written", func() bool { return len(lines(t, g)) == 3 })
	var got []string
	for _, l := range lines(t, g) {
		got = append(got, fmt.Sprint(l["level"], " ", l["status"], " ", l["outcome"], " ", l["code"], " hint ", l["hint"] != nil, " error ", l["error"] != nil))
	}
	slices.Sort(got)
	want := []string{
		"INFO 404 refused model_not_found hint false error false",
		"WARN 200 failed upstream_disconnected hint true error true",
		"WARN 502 failed upstream_error hint true error false",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// canary must be found nowhere but at the engine and the client.
const canary = "CANARY7f3a"

// chatty is an engine that repeats what it is sent in all that it answers.
func chatty(t *testing.T) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/models" {
			fmt.Fprint(w, `{"object":"list","data":[{"id":"m"}]}`)
			return
		}
		b, _ := io.ReadAll(r.Body)
		switch text := string(b); {
		case strings.Contains(text, "answer-400"):
			w.WriteHeader(http.StatusBadRequest)
			fmt.Fprintf(w, `{"error":{"message":"bad: %s"}}`, canary)
		case strings.Contains(text, "answer-500"):
			w.WriteHeader(http.StatusInternalServerError)
			fmt.Fprintf(w, `{"error":{"message":"bad: %s"}}`, canary)
		case strings.Contains(text, "answer-event"):
			w.Header().Set("Content-Type", "text/event-stream")
			fmt.Fprintf(w, "data: {\"error\":{\"message\":%q,\"code\":500}}\n\n", canary)
		case strings.Contains(text, "answer-late"):
			w.Header().Set("Content-Type", "text/event-stream")
			fmt.Fprintf(w, "data: {\"choices\":[{\"text\":%q}]}\n\ndata: {\"error\":{\"message\":%q}}\n\n", canary, canary)
		case strings.Contains(text, "answer-garbage"):
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprint(w, `{"choices": `+canary)
		case strings.Contains(text, "answer-http"):
			c, _, _ := w.(http.Hijacker).Hijack()
			fmt.Fprintf(c, "%s garbage\r\n%s: %s\r\n\r\n", canary, canary, canary)
			c.Close()
		default:
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprintf(w, `{"choices":[{"text":%q}],"usage":{"prompt_tokens":5,"completion_tokens":1}}`, canary)
		}
	}))
	t.Cleanup(s.Close)
	return s.URL
}

// TestPromptsAndSecretsAreWrittenNowhere sends a marked text in every place
// that a client has, to an engine that repeats it, and looks for it in the log
// at level debug, on the admin listener and in the traces.
func TestPromptsAndSecretsAreWrittenNowhere(t *testing.T) {
	rc := startReceiver(t)
	g := startGateway(t, `
models: [{name: m, engines: [{url: $1, kind: openai, key: "${ENGINE_`+canary+`}"}]}]
keys: [{name: alice, key: "${A_`+canary+`}"}]
admin: {key: "${ADMIN_`+canary+`}"}
tracing: {endpoint: "$2", sample: 1}
`, chatty(t), rc.url)
	const key = "Authorization: Bearer secret-A_" + canary
	for _, c := range []struct{ path, body string }{
		{"/v1/completions", `{"model":"m","prompt":"%s"}`},
		{"/v1/completions", `{"model":"m","prompt":"%s answer-400"}`},
		{"/v1/completions", `{"model":"m","prompt":"%s answer-500"}`},
		{"/v1/completions", `{"model":"m","prompt":"%s answer-event","stream":true}`},
		{"/v1/completions", `{"model":"m","prompt":"%s answer-late","stream":true}`},
		{"/v1/completions", `{"model":"m","prompt":"%s answer-garbage"}`},
		{"/v1/completions", `{"model":"m","prompt":"%s answer-http"}`},
		{"/v1/completions", `{"model":"m","prompt":"%s","echo":true,"logprobs":1,"max_tokens":0}`},
		{"/v1/completions", `{"model":"m","prompt":"%s answer-garbage","echo":true,"logprobs":1,"max_tokens":0}`},
		{"/v1/completions", `{"model":"m","prompt":["%s"],"user":"%s","max_tokens":"%s"}`},
		{"/v1/completions", `{"model":"m","prompt":"%s`},
		{"/v1/completions", `{"model":"m","prompt":"x","%s":1,"%s":"\ud800%s"}`},
		{"/v1/completions", `%s`},
		{"/v1/chat/completions", `{"model":"m","messages":[{"role":"%s","content":"%s"}],"tools":[{"type":"function","function":{"name":"%s"}}],"stop":["%s"]}`},
		{"/v1/chat/completions", `{"model":"m","messages":"%s"}`},
		{"/v1/chat/completions", `{"model":"m","messages":[{"role":"user","content":"%s"}],"stream":"%s"}`},
		{"/v1/responses", `{"model":"m","input":"%s","metadata":{"a":"%s"}}`},
		{"/v1/messages", `{"model":"m","system":"%s","messages":[{"role":"user","content":"%s"}]}`},
		{"/v1/embeddings", `{"model":"m","input":"%s"}`},
		{"/v1/completions?api_key=%s", `{"model":"m","prompt":"%s"}`},
	} {
		fill := func(s string) string { return strings.ReplaceAll(s, "%s", canary) }
		sendOff(t, g.url+fill(c.path), fill(c.body), key, "Cookie: session="+canary, "X-Custom: "+canary, "x-request-id: "+canary+" with blanks", "baggage: user="+canary)
	}
	sendOff(t, g.url+"/v1/completions", `{"model":"m","prompt":"x"}`, "Authorization: Bearer "+canary)
	sendOff(t, g.url+"/v1/messages", `{"model":"m","messages":[]}`, "X-Api-Key: "+canary)
	// What is told of a request to a wrong URL, or for a wrong model, is that name.
	sendRaw(t, g.url, "BREW / HTTP/9.9\r\n"+canary+": "+canary+"\r\n\r\n")
	sendRaw(t, g.url, canary+"\r\n\r\n")
	sendRaw(t, g.url, "POST /v1/completions HTTP/1.1\r\nAuthorization: Bearer "+canary+"\r\nContent-Length: "+canary+"\r\n\r\n")
	sendOff(t, g.admin+"/reload", "", "Authorization: Bearer "+canary)
	eventually(t, "all has ended", func() bool { return g.attempts.count() == 0 })

	all := map[string]string{"log": g.log.String()}
	for _, path := range []string{"/requests", "/requests?errors=1", "/replicas", "/limits", "/config", "/metrics"} {
		all["GET "+path] = ask(t, "GET", g.admin+path, "").body
	}
	first, _, leave, _ := g.feed.watch()
	leave()
	all["the status page's update"] = string(first)
	if err := g.tracer.provider.ForceFlush(t.Context()); err != nil {
		t.Fatal(err)
	}
	rc.mu.Lock()
	for _, s := range rc.spans {
		all["span "+s.Name] += s.String()
	}
	rc.mu.Unlock()
	for where, text := range all {
		for i := strings.Index(text, canary); i >= 0; i = -1 {
			// The configuration shows by which name a secret is found, not the secret.
			if where == "GET /config" && !strings.Contains(text, "secret-") {
				break
			}
			t.Errorf("%s has what it must not: …%s…", where, text[max(0, i-200):min(len(text), i+60)])
		}
	}
	if n := len(lines(t, g)); n < 20 {
		t.Errorf("the log has %d access lines, want one for each request", n)
	}
}

// sendOff sends a request whose answer may be cut short.
func sendOff(t *testing.T, url, body string, headers ...string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range headers {
		k, v, _ := strings.Cut(h, ": ")
		req.Header.Set(k, v)
	}
	if resp, err := http.DefaultClient.Do(req); err == nil {
		_, _ = io.ReadAll(resp.Body)
		resp.Body.Close()
	}
}

// sendRaw sends bytes and reads what comes.
func sendRaw(t *testing.T, url, text string) {
	t.Helper()
	c, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(2 * time.Second))
	fmt.Fprint(c, text)
	_, _ = io.ReadAll(c)
}

func TestRetriesAreInTheLine(t *testing.T) {
	broken := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/models" {
			fmt.Fprint(w, `{"object":"list","data":[{"id":"m"}]}`)
			return
		}
		w.WriteHeader(http.StatusInternalServerError)
	}))
	defer broken.Close()
	g := startGateway(t, "models: [{name: m, policy: round_robin, engines: [{url: $1, kind: openai, id: bad}, {url: $2, kind: openai, id: good}]}]", broken.URL, localtest.URL(t, local.Options{Model: "m"}))
	for range 2 {
		ask(t, "POST", g.url+"/v1/completions", `{"model":"m","prompt":"x","max_tokens":1}`)
	}
	for _, l := range lines(t, g) {
		if l["retries"] == nil {
			continue
		}
		earlier, _ := l["earlier_attempts"].([]any)
		if l["replica"] != "good" || fmt.Sprint(l["retries"]) != "[bad: status]" || len(earlier) != 1 || earlier[0] == l["attempt_id"] {
			t.Errorf("got %v, want the attempt on bad before the one on good", l)
		}
		return
	}
	t.Errorf("no request was retried: %v", lines(t, g))
}

// TestAWrongURLIsARequestToo is for the client whose base_url lacks its /v1.
func TestAWrongURLIsARequestToo(t *testing.T) {
	g := startGateway(t, `models: [{name: m, engines: [{url: $1, kind: openai}]}]`, chatty(t))
	ask(t, "POST", g.url+"/chat/completions", `{"model":"m"}`)
	eventually(t, "there is a line", func() bool { return len(lines(t, g)) == 1 })
	if l := lines(t, g)[0]; l["code"] != "unknown_url" || l["status"] != 404.0 || l["path"] != "unknown" || l["outcome"] != "refused" {
		t.Errorf("the access line of a wrong URL is %v", l)
	}
	const want = `penstock_requests_total{code="unknown_url",key="none",model="none",status="404"} 1`
	if m := ask(t, "GET", g.admin+"/metrics", "").body; !strings.Contains(m, want) {
		t.Errorf("a wrong URL is not counted: want %s", want)
	}
}

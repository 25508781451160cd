package e2e

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"penstock/e2e/harness"
	"penstock/e2e/scripted"
)

// contractConfig has a model for each way to fail. Its parts are the upstream's
// URL, a replica's that nobody serves, and the keys.
const contractConfig = `
models:
  - {name: %[1]s, engines: [{url: %[2]s, kind: openai, id: one}]}
  - name: hasty
    upstream: %[1]s
    engines: [{url: %[2]s, kind: openai, id: hasty}]
    timeouts: {first_token: 200ms, idle: 200ms, request: 500ms}
  - name: tight
    upstream: %[1]s
    engines: [{url: %[2]s, kind: openai, id: tight, max_running: 1}]
    queue: {max_wait: 300ms, max_length: 1}
  - {name: second, upstream: %[1]s, engines: [{url: %[2]s, kind: openai, id: second}]}
keys:
%[3]s
admin: {key: "${ADMIN}"}
cors: {origins: ["https://app.example.com"]}
limits: {ietf_headers: true}
max_body: 64KiB
timeouts: {read_body: 300ms}
`

// unprovoked are the responses and codes that no test can make happen: bugs.
var unprovoked = []string{
	componentPrefix + "Internal", componentPrefix + "AnthropicInternal", componentPrefix + "AdminInternal", "code internal_error",
}

// TestOpenAPIIsWhatTheServerDoes calls every described operation, well and
// badly, and wants no status, header, field or code that is not described, and
// none described that is not seen.
func TestOpenAPIIsWhatTheServerDoes(t *testing.T) {
	c := readContract(t)
	t.Setenv("ADMIN", "operator")
	up := scripted.Start(t)
	g := harness.Serve(t, fmt.Sprintf(contractConfig, scripted.Model, up.URL,
		keyLine("any", "limits: {concurrency: 100}, priority: high")+keyLine("limited", "limits: {requests_per_minute: 600, tokens_per_minute: 600000}")+
			keyLine("one", "models: ["+scripted.Model+"]")+keyLine("few", "limits: {requests_per_minute: 1}")+keyLine("small", "limits: {tokens_per_minute: 5}")))
	part := func(name string, test func(*contract)) {
		t.Run(name, func(t *testing.T) {
			of := *c
			of.t = t
			test(&of)
		})
	}
	part("own paths", func(c *contract) { c.ownPaths(g) })
	part("engines' paths", func(c *contract) { c.enginePaths(g) })
	part("failures", func(c *contract) { c.failures(g) })
	part("queue", func(c *contract) { c.queue(g, up) })
	part("streams that fail", func(c *contract) { c.brokenStreams(g) })
	part("unreadable requests", func(c *contract) { c.unreadable(g) })
	part("admin", func(c *contract) { c.admin(g) })
	part("replicas", func(c *contract) { c.replicas(g, up) })
	part("status page", func(c *contract) { c.page(g) })
	part("every HEAD", func(c *contract) { c.heads(g) })
	part("without keys", func(c *contract) { c.local(t) })
	part("without Redis", func(c *contract) { c.withoutRedis(t, up) })
	part("shutting down", func(c *contract) { c.draining(g, up) })
	if !t.Failed() {
		c.complete()
	}
}

// complete wants everything seen that is described.
func (c *contract) complete() {
	var described []string
	for path, item := range c.doc.Paths.Map() {
		for method, op := range item.Operations() {
			described = append(described, method+" "+path)
			for status, r := range op.Responses.Map() {
				if r.Ref == "" {
					described = append(described, method+" "+path+" "+status)
				}
			}
		}
	}
	for name := range c.doc.Components.Responses {
		described = append(described, componentPrefix+name)
	}
	for name := range c.doc.Components.Headers {
		described = append(described, "#/components/headers/"+name)
	}
	for code := range c.statuses {
		described = append(described, "code "+code)
	}
	for _, lack := range missing(described, append(unprovoked, slices.Collect(maps.Keys(c.seen))...)) {
		c.t.Errorf("%s is described, and the server never did it", lack)
	}
}

// operator is the header of the admin key.
func operator() []string { return []string{"Authorization", "Bearer operator"} }

const page = "https://app.example.com"

func (c *contract) ownPaths(g *harness.Process) {
	origin := append(as("limited"), "Origin", page)
	const one = "GET /v1/models/{id}"
	if a := c.send(g.URL, ask{operation: "GET /v1/models", headers: origin, status: 200}); a.header.Get("X-RateLimit-Limit-Requests") != "600" {
		c.t.Errorf("the models of a limited key: headers %v, want its limits", a.header)
	}
	for _, q := range []ask{
		{operation: "GET /v1/models", headers: as("any"), status: 200},
		{operation: "GET /v1/models", status: 401, code: "invalid_api_key"},
		{operation: one, path: "/v1/models/" + scripted.Model, headers: as("limited"), status: 200},
		{operation: one, path: "/v1/models/nobody", headers: as("limited"), status: 404, code: "model_not_found"},
		{operation: one, path: "/v1/models/hasty", headers: as("one"), status: 403, code: "model_not_allowed"},
		{operation: one, path: "/v1/models/hasty", status: 401, code: "invalid_api_key"},
		{operation: "GET /health", status: 200},
		{operation: "GET /readyz", headers: []string{"Origin", page}, status: 200},
		{operation: "GET /healthz", status: 200},
		{operation: "POST /flush_cache", headers: as("any"), status: 401, code: "invalid_api_key"},
		{operation: "POST /flush_cache", headers: operator(), status: 502}, // the upstream cannot
		{operation: "GET /flush_cache", headers: operator(), status: 502},
	} {
		c.send(g.URL, q)
	}
	c.check(ask{operation: one, status: 400, code: "invalid_value"}, rawAnswer(c.t, g.URL, "GET /v1/models/a%zz HTTP/1.1\r\nHost: g\r\nAuthorization: Bearer any\r\n\r\n"))
	twice := "GET /v1/models HTTP/1.1\r\nHost: g\r\nAuthorization: Bearer any\r\nAuthorization: Bearer one\r\n\r\n"
	c.check(ask{operation: "GET /v1/models", status: 400, code: "invalid_request"}, rawAnswer(c.t, g.URL, twice))
	for _, path := range []string{"/v1/model", "/v1/messages/batches"} {
		c.general("an unknown path", inForm(path, "UnknownURL"), do(c.t, "GET", g.URL+path, ""))
	}
	preflight := do(c.t, "OPTIONS", g.URL+"/v1/models", "", "Origin", page, "Access-Control-Request-Method", "GET", "Access-Control-Request-Headers", "authorization")
	if preflight.status != http.StatusNoContent {
		c.t.Errorf("a preflight: got %d, want 204", preflight.status)
	}
	c.general("a preflight", "Preflight", preflight)
}

// anyBody is a request to whatever path of an engine.
func anyBody(model string) string {
	return fmt.Sprintf(`{"model":%q,"messages":[{"role":"user","content":"hello"}],"max_tokens":4,"prompt":"hello","input":"hello","text":"hello",
		"query":"hello","documents":["a","b"],"text_1":"a","text_2":"b","tokens":[1,2]}`, model)
}

// anyForm is the same as a form, of the audio paths.
func anyForm(model string) (body, contentType string) {
	part := func(disposition, value string) string {
		return "--frontier\r\nContent-Disposition: form-data; " + disposition + "\r\n\r\n" + value + "\r\n"
	}
	return part(`name="model"`, model) + part(`name="file"; filename="a.wav"`, "RIFF") + "--frontier--\r\n", "multipart/form-data; boundary=frontier"
}

// engineOperations are those that engines answer.
func (c *contract) engineOperations() []string {
	var all []string
	for path, item := range c.doc.Paths.Map() {
		for method, op := range item.Operations() {
			if slices.Contains(op.Tags, "engine") {
				all = append(all, method+" "+path)
			}
		}
	}
	slices.Sort(all)
	return all
}

// callEngine sends what an engine's path takes, for a model.
func (c *contract) callEngine(base, operation, model string, headers ...string) answer {
	c.t.Helper()
	method, path, _ := strings.Cut(operation, " ")
	body := anyBody(model)
	switch {
	case strings.HasPrefix(path, "/v1/audio/tr"):
		var form string
		body, form = anyForm(model)
		headers = append(headers, "Content-Type", form)
	case strings.HasSuffix(path, "{id}"):
		path, body = strings.Replace(path, "{id}", "resp_1", 1), ""
	case method == http.MethodGet:
		path, body = path+"?model="+model, ""
	}
	a := do(c.t, method, base+path, body, headers...)
	c.answered(operation, a)
	return a
}

// enginePaths asks every path of an engine's, with what is right and with what
// the gateway itself refuses.
func (c *contract) enginePaths(g *harness.Process) {
	answered := 0
	all := c.engineOperations()
	c.callEngine(g.URL, "POST /v1/responses", scripted.Model, as("limited")...) // resp_1 is known from now on
	for _, operation := range all {
		method, path, _ := strings.Cut(operation, " ")
		stored := strings.HasSuffix(path, "{id}")
		if a := c.callEngine(g.URL, operation, scripted.Model, as("limited")...); a.status == http.StatusOK {
			answered++
		}
		path = strings.Replace(path, "{id}", "resp_2", 1)
		c.send(g.URL, ask{operation: operation, path: path, status: 401, code: "invalid_api_key"})
		switch {
		case stored:
			c.send(g.URL, ask{operation: operation, path: path, headers: as("any"), status: 404, code: "response_not_found"})
			continue
		case method == http.MethodGet:
			c.send(g.URL, ask{operation: operation, path: path + "?model=hasty", headers: as("one"), status: 403, code: "model_not_allowed"})
			continue
		}
		c.send(g.URL, ask{operation: operation, body: `{"model":`, headers: as("limited"), status: 400, code: "invalid_json"})
		if a := c.callEngine(g.URL, operation, "nobody", as("any")...); a.status != http.StatusNotFound {
			c.t.Errorf("%s of a model that does not exist: got %d %s", operation, a.status, a.body)
		}
		if a := c.callEngine(g.URL, operation, "second", as("one")...); a.status != http.StatusForbidden {
			c.t.Errorf("%s of another key's model: got %d %s", operation, a.status, a.body)
		}
		c.general("DELETE "+path, inForm(path, "MethodNotAllowed"), do(c.t, "DELETE", g.URL+path, "", as("any")...))
	}
	if len(all) < 30 || answered < 8 {
		c.t.Errorf("%d operations of engines, of which %d were answered well; want 30 and 8", len(all), answered)
	}
}

// failures are those of keys, limits and engines, in both forms of errors.
func (c *contract) failures(g *harness.Process) {
	for _, operation := range []string{"POST /v1/chat/completions", "POST /v1/messages"} {
		say := func(model, text string, stream bool) string { return say1(model, text, stream, `,"max_tokens":10`) }
		for _, q := range []ask{
			{body: say(scripted.Model, "hello", true), headers: as("limited"), status: 200},
			{body: say(scripted.Model, "script:status 422", false), headers: as("limited"), status: 422},
			{body: say(scripted.Model, "script:status 400", false), headers: as("limited"), status: 400},
			{body: `{"model":"second"}`, headers: as("any"), status: 400, code: "missing_required_parameter"},
			{body: say(scripted.Model, "hello", false), headers: append(as("any"), "X-Penstock-Max-Wait", "soon"), status: 400, code: "invalid_value"},
			{body: say(scripted.Model, "hello", false), headers: append(as("any"), "X-Data-Parallel-Rank", "1"), status: 400, code: "invalid_value"},
			{body: say(scripted.Model, "hello", false), headers: append(as("any"), "X-Request-Id", "mine", "Origin", page), status: 200},
			{body: say(scripted.Model, "script:status 500", false), headers: as("any"), status: 502, code: "upstream_error"},
			{body: say(scripted.Model, "script:status 503", false), headers: as("any"), status: 503, code: "engine_overloaded"},
			{body: say(scripted.Model, "script:die", false), headers: as("any"), status: 502, code: "upstream_disconnected"},
			{body: say("hasty", "script:slow", true), headers: as("any"), status: 504, code: "first_token_timeout"},
			{body: say("hasty", "script:silent", false), headers: as("any"), status: 504, code: "stream_idle_timeout"},
			{body: say("hasty", "script:slow", false), headers: as("any"), status: 504, code: "upstream_timeout"},
			{body: say(scripted.Model, strings.Repeat("x", 70<<10), false), headers: as("any"), status: 413, code: "request_too_large"},
			{body: say("second", "hello", false), headers: as("small"), status: 429, code: "rate_limit_exceeded"},
		} {
			q.operation = operation
			c.send(g.URL, q)
		}
		post(c.t, g.URL+"/v1/chat/completions", say(scripted.Model, "hello", false), as("few")...)
		c.send(g.URL, ask{operation: operation, body: say(scripted.Model, "hello", false), headers: as("few"), status: 429, code: "rate_limit_exceeded"})
	}
	c.send(g.URL, ask{
		operation: "POST /v1/completions", headers: as("any"), status: 502, code: "echo_logprobs_missing",
		body: fmt.Sprintf(`{"model":%q,"prompt":"hello","max_tokens":0,"echo":true,"logprobs":1}`, scripted.Model),
	})
}

// queue fills a model that runs one request at once and lets one more wait.
func (c *contract) queue(g *harness.Process, up *scripted.Upstream) {
	const operation = "POST /v1/chat/completions"
	slow := say1("tight", "script:slow", true, "")
	running := hold(c.t, g.URL+"/v1/chat/completions", slow, as("any")...)
	atEngine(c.t, up, 1)
	c.send(g.URL, ask{operation: operation, body: slow, headers: as("any"), status: 503, code: "queue_timeout"})
	waiting := hold(c.t, g.URL+"/v1/chat/completions", slow, as("any")...)
	harness.Eventually(c.t, 5*time.Second, "one waits", func() error { return queued(limitsOf(c.t, g), "tight", 1) })
	c.send(g.URL, ask{operation: operation, body: slow, headers: as("any"), status: 429, code: "queue_full"})
	c.send(g.Admin, ask{operation: "GET /limits", status: 200})
	waiting.leave()
	running.leave()
	wantAtRest(c.t, g)
}

func queued(p limitsPage, model string, n int) error {
	for _, q := range p.Queues {
		if q.Model == model && q.Waiting == n {
			return nil
		}
	}
	return fmt.Errorf("queues %+v, want %d in that of %s", p.Queues, n, model)
}

// brokenStreams holds the last events of streams that fail after their beginning.
func (c *contract) brokenStreams(g *harness.Process) {
	for _, q := range []struct{ path, body, event, schema string }{
		{"/v1/chat/completions", say1("hasty", "script:silent", true, ""), "", "Error"},
		{"/v1/responses", `{"model":"hasty","input":"script:silent","stream":true}`, "error", "ResponsesError"},
		{"/v1/messages", say1("hasty", "script:silent", true, `,"max_tokens":9`), "error", "AnthropicError"},
	} {
		a := cutOff(c.t, g.URL+q.path, q.body, as("any")...)
		c.answered("POST "+q.path, a)
		events := sentEvents(a.body, q.event)
		if len(events) == 0 {
			c.t.Errorf("%s: no event %q in %s", q.path, q.event, a.body)
			continue
		}
		c.valid(q.path+", last event", q.schema, events[len(events)-1])
	}
}

// cutOff is post for an answer whose connection breaks.
func cutOff(t *testing.T, url, body string, headers ...string) answer {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	all, err := io.ReadAll(resp.Body)
	if err == nil {
		t.Errorf("%s: the connection was not cut after %s", url, all)
	}
	return answer{resp.StatusCode, resp.Header, all}
}

// rawAnswer is the whole answer to bytes that a client library would not send.
func rawAnswer(t *testing.T, base, request string) answer {
	t.Helper()
	resp := rawResponse(t, base, request)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("after %.100q: %v", request, err)
	}
	return answer{resp.StatusCode, resp.Header, body}
}

// unreadable sends what is not read to its end. Its path is not kept, so that
// the answer has OpenAI's form wherever it was sent.
func (c *contract) unreadable(g *harness.Process) {
	c.general("no HTTP", "Unreadable", rawAnswer(c.t, g.URL, "GET /v1/models\r\nnonsense\r\n\r\n"))
	for _, path := range []string{"/v1/chat/completions", "/v1/messages"} {
		head := "POST " + path + " HTTP/1.1\r\nHost: g\r\nAuthorization: Bearer any\r\n"
		large := rawAnswer(c.t, g.URL, head+"X-Much: "+strings.Repeat("x", 64<<10)+"\r\n\r\n")
		late := rawAnswer(c.t, g.URL, head+"Content-Length: 100\r\n\r\n{")
		c.answered("POST "+path, large)
		c.answered("POST "+path, late)
		if got := oursCode(large.body) + " " + oursCode(late.body); got != "headers_too_large request_timeout" {
			c.t.Errorf("%s: got %s for headers too large and a body too late", path, got)
		}
	}
}

// withoutRedis refuses what cannot be counted.
func (c *contract) withoutRedis(t *testing.T, up *scripted.Upstream) {
	g := harness.Serve(t, fmt.Sprintf("models: [{name: %s, engines: [{url: %s, kind: openai}]}]\n"+
		"redis: {url: \"redis://%s\", on_error: closed, timeout: 50ms}\nkeys:\n%s", scripted.Model, up.URL, harness.FreeAddr(t),
		keyLine("k", "limits: {requests_per_minute: 10}")))
	chat := ask{operation: "POST /v1/chat/completions", body: anyBody(scripted.Model), headers: as("k"), status: 503, code: "limits_unavailable"}
	if a := c.send(g.URL, chat); a.header.Get("X-Penstock-Limits-Mode") != "closed" {
		c.t.Errorf("without Redis: headers %v, want X-Penstock-Limits-Mode closed", a.header)
	}
	c.send(g.Admin, ask{operation: "POST /limits/{key}/reset", path: "/limits/k/reset", status: 503, code: "limits_unavailable"})
	c.send(g.Admin, ask{operation: "GET /limits", status: 200})
}

// local is a gateway without keys before an engine that can do more than the
// scripted one, and then before none.
func (c *contract) local(t *testing.T) {
	g := harness.Serve(t, "models: [{name: m, engines: [{local: {replicas: 1, profile: instant}}]}]\nlimits: {mode: auto}\n")
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	c.updates(watch(c.t, ctx, g.Admin+"/events", "status", 1)) // as long as there is nothing to tell
	for _, operation := range c.engineOperations() {
		c.callEngine(g.URL, operation, "m")
	}
	c.send(g.URL, ask{operation: "POST /flush_cache", status: 200})
	c.send(g.URL, ask{operation: "GET /flush_cache", status: 200})
	for _, q := range []string{"GET /limits", "GET /replicas", "GET /requests"} {
		c.send(g.Admin, ask{operation: q, status: 200})
	}
	id := replicas(c.t, g.Admin)[0].ID
	c.send(g.Admin, ask{operation: "POST /replicas/{id}/drain", path: "/replicas/" + id + "/drain", status: 200})
	c.send(g.URL, ask{operation: "GET /readyz", status: 503, code: "no_healthy_replica"})
	c.send(g.Admin, ask{operation: "GET /readyz", status: 503, code: "no_healthy_replica"})
	c.send(g.URL, ask{operation: "GET /health", status: 503, code: "no_healthy_replica"})
	for _, operation := range []string{"POST /v1/chat/completions", "POST /v1/messages"} {
		c.send(g.URL, ask{operation: operation, body: anyBody("m"), status: 503, code: "no_healthy_replica"})
	}
}

// draining asks while the gateway waits for its last stream.
func (c *contract) draining(g *harness.Process, up *scripted.Upstream) {
	last := hold(c.t, g.URL+"/v1/chat/completions", say1(scripted.Model, "script:drip", true, ""), as("any")...)
	atEngine(c.t, up, 1)
	var wg sync.WaitGroup
	wg.Go(g.Stop)
	harness.Eventually(c.t, 5*time.Second, "readiness is false", func() error {
		if a := do(c.t, "GET", g.URL+"/readyz", ""); a.status != http.StatusServiceUnavailable {
			return fmt.Errorf("status %d", a.status)
		}
		return nil
	})
	for _, base := range []string{g.URL, g.Admin} {
		c.send(base, ask{operation: "GET /readyz", status: 503, code: "draining"})
		c.send(base, ask{operation: "GET /healthz", status: 200})
	}
	c.send(g.URL, ask{operation: "GET /v1/models", headers: as("any"), status: 503, code: "draining"})
	c.send(g.URL, ask{operation: "POST /v1/completions", body: anyBody(scripted.Model), headers: as("any"), status: 503, code: "draining"})
	last.leave()
	wg.Wait()
}

// watch opens the status page's stream and gives what has come once there are
// n events of a name.
func watch(t *testing.T, ctx context.Context, url, name string, n int) answer {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	var got bytes.Buffer
	for buf := make([]byte, 64<<10); resp.StatusCode == http.StatusOK && bytes.Count(got.Bytes(), []byte("event: "+name+"\n")) < n; {
		k, err := resp.Body.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		got.Write(buf[:k])
	}
	if resp.StatusCode != http.StatusOK {
		if _, err := got.ReadFrom(resp.Body); err != nil {
			t.Fatal(err)
		}
	}
	return answer{resp.StatusCode, resp.Header, got.Bytes()}
}

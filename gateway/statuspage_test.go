package gateway

import (
	"bufio"
	"encoding/json"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"penstock/engine/local"
	"penstock/engine/local/localtest"
	"penstock/limits"
)

func TestNobodyWatchingCostsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var taken atomic.Int64
		f := newFeed(func(bool) *statusObject {
			taken.Add(1)
			return &statusObject{Point: point{Time: time.Now().Unix()}}
		})
		f.changed() // nobody is there to be told
		time.Sleep(time.Minute)
		if n := taken.Load(); n != 0 {
			t.Fatalf("a minute without watchers: %d snapshots, want none", n)
		}
		_, _, leaveA, _ := f.watch()
		_, b, leaveB, _ := f.watch()
		time.Sleep(10*time.Second + feedInterval/2)
		if n := taken.Load(); n < 11 || n > 13 {
			t.Errorf("ten seconds with two watchers: %d snapshots, want 11 or so for both together", n)
		}
		leaveA()
		leaveA() // as a deferred call after another would
		<-b
		leaveB()
		synctest.Wait()
		n := taken.Load()
		time.Sleep(time.Minute)
		if got := taken.Load(); got != n {
			t.Errorf("a minute after the last one left: %d more snapshots, want none", got-n)
		}
	})
}

func TestAStormOfChangesIsToldAFewTimesASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var taken atomic.Int64
		f := newFeed(func(bool) *statusObject { taken.Add(1); return &statusObject{} })
		_, updates, leave, _ := f.watch()
		synctest.Wait()
		f.changed()
		time.Sleep(feedInterval / 100)
		if len(updates) != 1 {
			t.Errorf("a change is not told at once")
		}
		for range 1000 {
			f.changed()
			time.Sleep(time.Millisecond)
		}
		if n := taken.Load(); n > 12 {
			t.Errorf("a thousand changes in a second: %d snapshots, want 10 or so", n)
		}
		leave()
	})
}

func TestTheFeedIsBounded(t *testing.T) {
	f := newFeed(func(bool) *statusObject { return &statusObject{} })
	var channels []<-chan []byte
	for range maxWatchers {
		_, c, _, ok := f.watch()
		if !ok {
			t.Fatalf("refused before %d watchers", maxWatchers)
		}
		channels = append(channels, c)
	}
	if _, _, _, ok := f.watch(); ok {
		t.Errorf("watcher %d is let in", maxWatchers+1)
	}
	f.close()
	for _, c := range channels {
		for range c { // ends, since it is closed
		}
	}
	if _, _, _, ok := f.watch(); ok {
		t.Errorf("a watcher is let in after the end")
	}
}

// watch reads updates until one satisfies want, or for five seconds.
func watch(t *testing.T, g *harness, want func(history []point, s *statusObject) bool) (history []point, s *statusObject) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, g.admin+"/events", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	late := time.AfterFunc(5*time.Second, func() { resp.Body.Close() })
	defer late.Stop()
	lines, name := bufio.NewScanner(resp.Body), ""
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if v, ok := strings.CutPrefix(lines.Text(), "event: "); ok {
			name = v
		}
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok {
			continue
		}
		if name == "history" {
			err = json.Unmarshal([]byte(data), &history)
		} else {
			s = &statusObject{}
			err = json.Unmarshal([]byte(data), s)
		}
		if err != nil {
			t.Fatalf("event %s: %v in %s", name, err, data)
		}
		if s != nil && want(history, s) {
			return history, s
		}
	}
	t.Fatalf("no update was as wanted; the last: %+v", s)
	return nil, nil
}

func TestUpdatesTellWhatTheOtherPathsTell(t *testing.T) {
	g := startGateway(t, withKeys, localtest.URL(t, local.Options{Model: "m"}))
	const bob, body = "Authorization: Bearer secret-BOB", `{"model":"m","prompt":"one two three","max_tokens":3,"stream":true}`
	for range 3 {
		ask(t, "POST", g.url+"/v1/completions", body, bob)
	}
	ask(t, "POST", g.url+"/v1/completions", body, "Authorization: Bearer nope")
	ask(t, "GET", g.url+"/healthz", "") // a probe is no request
	_, s := watch(t, g, func([]point, *statusObject) bool { return true })

	var replicas []replicaObject
	if err := json.Unmarshal([]byte(ask(t, "GET", g.admin+"/replicas", "").body), &replicas); err != nil {
		t.Fatal(err)
	}
	for i, r := range replicas {
		if u := s.Replicas[i]; u.ID != r.ID || u.State != r.State || u.RequestsTotal != r.RequestsTotal || u.FailuresTotal != r.FailuresTotal {
			t.Errorf("replica %d: the update says %+v, GET /replicas %+v", i, u, r)
		}
	}
	if f := s.Replicas[0].FirstTokenMS; s.Replicas[0].RequestsTotal != 2 || f == nil || f.Count != 2 {
		t.Errorf("two streams were answered: got %d requests and first tokens %+v", s.Replicas[0].RequestsTotal, f)
	}
	var all limitsObject
	if err := json.Unmarshal([]byte(ask(t, "GET", g.admin+"/limits", "").body), &all); err != nil {
		t.Fatal(err)
	}
	if got, want := s.Limits.Keys[1].Refusals["requests"], all.Keys[1].Refusals["requests"]; got != 1 || want != 1 {
		t.Errorf("refusals of bob: the update says %d, GET /limits %d, want 1", got, want)
	}
	if got := strings.Count(ask(t, "GET", g.admin+"/metrics", "").body, `penstock_limit_refusals_total{key="bob",reason="requests"} 1`); got != 1 {
		t.Errorf("/metrics does not show the one refusal of bob")
	}
	if len(s.Trouble) != 2 || s.Trouble[0].Code != "rate_limit_exceeded" || s.Trouble[0].Key != "bob" || s.Trouble[1].Code != "invalid_api_key" {
		t.Errorf("trouble: got %+v, want bob's refusal before the wrong key", s.Trouble)
	}
	if s.Summary.Level != levelOK {
		t.Errorf("summary: got %+v, want ok: a limit is no trouble of ours", s.Summary)
	}
}

func TestTheChartGoesBackToBeforeAnybodyWatched(t *testing.T) {
	g := startGateway(t, "models: [{name: m, engines: [{url: $1, kind: openai}]}]", localtest.URL(t, local.Options{Model: "m"}))
	g.started = time.Now().Add(-time.Minute)
	const n = 20
	for range n {
		ask(t, "POST", g.url+"/v1/completions", `{"model":"m","prompt":"x","max_tokens":4,"ignore_eos":true}`)
	}
	sum := func(ps []point) (requests, tokens float64) { // each request is in the averages of five seconds
		seen := map[int64]bool{}
		for _, p := range ps {
			if !seen[p.Time] {
				requests, tokens = max(requests, p.Requests*smoothing), max(tokens, p.Output*smoothing)
			}
			seen[p.Time] = true
		}
		return requests, tokens
	}
	history, s := watch(t, g, func(history []point, _ *statusObject) bool { return len(history) > 0 })
	requests, tokens := sum(append(history, s.Point))
	if requests < n*0.9 || tokens < 4*n*0.9 {
		t.Errorf("the history shows %.0f requests and %.0f output tokens, want %d and %d: %+v", requests, tokens, n, 4*n, history)
	}
}

func TestOutputTokensOfTheChartAreThoseOfTheMetrics(t *testing.T) {
	g := startGateway(t, "models: [{name: m, engines: [{url: $1, kind: openai}]}]", localtest.URL(t, local.Options{Model: "m"}))
	for range 3 {
		ask(t, "POST", g.url+"/v1/completions", `{"model":"m","prompt":"x","max_tokens":4,"ignore_eos":true,"stream":true}`)
	}
	ask(t, "POST", g.url+"/v1/completions", `{"model":"nope","prompt":"x"}`)
	eventually(t, "the streams are settled", func() bool { return g.pulse.requests.Load() == 4 })
	x, page := g.sums(time.Now()), ask(t, "GET", g.admin+"/metrics", "").body
	if x.output != 12 || !strings.Contains(page, `penstock_output_tokens_total{key="anonymous",model="m"} 12`) {
		t.Errorf("output tokens: the chart counts %d, want 12 and the same in\n%s", x.output, page)
	}
}

func TestWhatIsWrongIsSaidInWords(t *testing.T) {
	now := time.Now()
	r := newRecent()
	put := func(status int, code, key, replica string) {
		r.ring[r.next%keptRequests] = explanation{ID: "r", Time: now, Status: status, Code: code, Key: key, Model: "m", Replica: replica, Path: "/v1/completions"}
		r.next++
	}
	for range 7 {
		put(429, "rate_limit_exceeded", "a", "")
	}
	put(200, "", "a", "one")
	put(200, "upstream_disconnected", "a", "one")
	put(200, "upstream_disconnected", "a", "two")
	put(499, "client_closed_request", "b", "one")
	var got []string
	for _, x := range pastTrouble(r, now) {
		got = append(got, x.Level+" "+x.Code+" "+x.Key+" "+x.Replica)
	}
	want := []string{"bad upstream_disconnected a two", "bad upstream_disconnected a one", "warn rate_limit_exceeded a ", "note client_closed_request b "}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := pastTrouble(r, now.Add(troubleAge+time.Second)); len(got) != 0 {
		t.Errorf("after %v: got %+v, want nothing", troubleAge, got)
	}
}

func TestEachErrorOfOursComesWithAdvice(t *testing.T) {
	codes := []string{
		"rate_limit_exceeded", "queue_full", "queue_timeout", "no_healthy_replica", "engine_overloaded", "draining",
		"limits_unavailable", "upstream_error", "upstream_disconnected", "echo_logprobs_missing",
		"first_token_timeout", "stream_idle_timeout", "upstream_timeout", "internal_error", "client_closed_request",
		"invalid_api_key", "model_not_allowed", "model_not_found", "request_timeout", "request_too_large", "headers_too_large",
	}
	for _, code := range codes {
		a := adviceFor(code)
		if strings.HasPrefix(a.title, "Answered") || a.todo == "" {
			t.Errorf("%s: no advice", code)
		}
	}
	if a := adviceFor("invalid_json"); a.level != levelNote {
		t.Errorf("invalid_json: got %+v, want a note: it is the client's affair", a)
	}
}

func TestSummariesSayTheWorstFirst(t *testing.T) {
	replica := func(id string, usable bool) replicaObject {
		return replicaObject{ID: id, Model: "m", Usable: usable, InFlight: 1}
	}
	queue := limitsObject{Queues: []limits.QueueStat{{Model: "m"}}}
	now := time.Now()
	for _, c := range []struct {
		o           statusObject
		level, says string
	}{
		{statusObject{}, levelBad, "no replica"},
		{statusObject{Limits: queue, Replicas: []replicaObject{replica("a", true)}}, levelOK, "The one replica takes requests. 1 request running, none waiting."},
		{statusObject{Limits: queue, Replicas: []replicaObject{replica("a", false)}}, levelBad, "No replica takes requests: a"},
		{statusObject{Limits: queue, Replicas: []replicaObject{replica("a", false), replica("b", true)}}, levelWarn, "1 of 2 replicas take no requests: a."},
		{statusObject{Limits: queue, Replicas: []replicaObject{{ID: "b", Model: "other", Usable: true}}}, levelBad, "No replica of m"},
		{statusObject{Limits: queue, Replicas: []replicaObject{replica("a", true)}, Draining: true}, levelWarn, "shutting down"},
		{statusObject{Time: now, Limits: queue, Replicas: []replicaObject{replica("a", true)}, Trouble: []trouble{{Level: levelBad, Last: now}}}, levelWarn, "some failed"},
		{statusObject{Time: now, Limits: queue, Replicas: []replicaObject{replica("a", true)}, Trouble: []trouble{{Code: "queue_full", Last: now}}}, levelWarn, "not enough room"},
		{statusObject{Time: now, Limits: queue, Replicas: []replicaObject{replica("a", true)}, Trouble: []trouble{{Level: levelBad, Last: now.Add(-time.Hour)}}}, levelOK, "takes requests"},
	} {
		if got := summarize(&c.o); got.Level != c.level || !strings.Contains(got.Text, c.says) {
			t.Errorf("%+v: got %+v, want %s, saying %q", c.o, got, c.level, c.says)
		}
	}
}

func TestThePageLoadsNothingFromElsewhere(t *testing.T) {
	g := startGateway(t, "models: [{name: m, engines: [{url: $1, kind: openai}]}]", localtest.URL(t, local.Options{Model: "m"}))
	page := ask(t, "GET", g.admin+"/", "")
	if page.status != 200 || page.header.Get("Content-Type") != "text/html; charset=utf-8" {
		t.Fatalf("GET /: got %d %s", page.status, page.header.Get("Content-Type"))
	}
	for _, want := range []string{"default-src 'none'", "script-src 'self'", "frame-ancestors 'none'", "require-trusted-types-for 'script'"} {
		if csp := page.header.Get("Content-Security-Policy"); !strings.Contains(csp, want) || strings.Contains(csp, "unsafe") {
			t.Errorf("the policy is %q, want %s in it and nothing unsafe", csp, want)
		}
	}
	all := page.body
	for _, m := range regexp.MustCompile(`(?:href|src)="(page/[^"]+)"`).FindAllStringSubmatch(page.body, -1) {
		file := ask(t, "GET", g.admin+"/"+m[1], "")
		if file.status != 200 || file.header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("GET /%s: got %d", m[1], file.status)
		}
		all += file.body
	}
	for _, m := range regexp.MustCompile(`from "\./([^"]+)"`).FindAllStringSubmatch(all, -1) {
		file := ask(t, "GET", g.admin+"/page/"+m[1], "")
		if file.status != 200 || !strings.HasPrefix(file.header.Get("Content-Type"), "text/javascript") {
			t.Errorf("GET /page/%s: got %d %s", m[1], file.status, file.header.Get("Content-Type"))
		}
		all += file.body
	}
	if m := regexp.MustCompile(`https?://[^"' )]+`).FindAllString(all, -1); slices.ContainsFunc(m, func(u string) bool { return !strings.HasPrefix(u, "http://www.w3.org/") }) {
		t.Errorf("the page names other places: %q", m)
	}
	if m := regexp.MustCompile(` style="| on[a-z]+="|<script>|innerHTML|eval\(`).FindString(all); m != "" {
		t.Errorf("the page has %q, which its own policy forbids", m)
	}
}

func TestPagesOfOtherSitesCannotAct(t *testing.T) {
	g := startGateway(t, "models: [{name: m, engines: [{url: $1, kind: openai, id: one}]}]", localtest.URL(t, local.Options{Model: "m"}))
	for _, header := range []string{"Sec-Fetch-Site: cross-site", "Origin: https://elsewhere.example"} {
		if got := ask(t, "POST", g.admin+"/replicas/one/drain", "", header); got.status != http.StatusForbidden {
			t.Errorf("drain with %s: got %d, want 403", header, got.status)
		}
	}
	if got := ask(t, "POST", g.admin+"/replicas/one/drain", "", "Sec-Fetch-Site: same-origin"); got.status != 200 {
		t.Errorf("drain by the page itself: got %d %s", got.status, got.body)
	}
	if got := ask(t, "POST", g.admin+"/replicas/one/undrain", ""); got.status != 200 {
		t.Errorf("undrain by a tool: got %d %s", got.status, got.body)
	}
}

package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"penstock/e2e/harness"
)

// The load on which a managed endpoint refused 398 requests and left 39 hanging.
const (
	crowd       = 929
	crowdOutput = 1024
)

// crowdPrompt is the prompts' length in tokens: less under the race detector,
// where cutting up a prompt takes ten times as long.
func crowdPrompt() int {
	if harness.Race {
		return 1024
	}
	return 8192
}

// crowdEngine is the deployment that had to carry it, ten times as fast.
func crowdEngine(t *testing.T) *harness.Process {
	return harness.Engine(t, "--profile", "glm52-dp4", "--dp", "4", "--max-running", "64", "--time-scale", "10", "--log-level", "warn")
}

// filler is text of so many tokens, as the model behind url counts them, but
// for the few that each request adds to make it its own.
func filler(t *testing.T, url string, tokens int) string {
	t.Helper()
	all := story(7, 2*tokens)
	text := all
	for range 5 {
		a := post(t, url+"/tokenize", string(encode(t, map[string]any{"model": localModel, "prompt": own(0) + text})))
		n := decode[struct{ Count int }](t, a.body).Count
		if a.status != 200 || n == 0 {
			t.Fatalf("/tokenize: %d %.200s", a.status, a.body)
		}
		if n == tokens {
			break
		}
		text = all[:min(len(all), len(text)*tokens/n)]
	}
	return text
}

// crowdSlack is the second that a refusal may take beyond its wait, and what a
// busy machine adds to it; under the race detector times are no promise.
func crowdSlack() time.Duration {
	if harness.Race {
		return time.Minute
	}
	return 3 * time.Second
}

// own is the beginning by which requests differ: nothing of them is cached.
func own(i int) string { return fmt.Sprintf("This is request %04d. ", i) }

// crowdAnswer is how one request of the crowd ended.
type crowdAnswer struct {
	took   time.Duration
	status int
	err    error
	code   string
	usage  struct {
		Prompt     int `json:"prompt_tokens"`
		Completion int `json:"completion_tokens"`
	}
	retryAfter string
}

// sendCrowd sends all requests at once, each on a connection of its own.
func sendCrowd(t *testing.T, url, text string, headers ...string) []crowdAnswer {
	t.Helper()
	transport := &http.Transport{MaxConnsPerHost: 0, MaxIdleConnsPerHost: -1, DisableCompression: true}
	client := &http.Client{Transport: transport, Timeout: 5 * time.Minute}
	answers := make([]crowdAnswer, crowd)
	start := make(chan struct{})
	var wg sync.WaitGroup
	for i := range answers {
		body := string(encode(t, map[string]any{
			"model": localModel, "prompt": own(i) + text, "max_tokens": crowdOutput, "ignore_eos": true,
		}))
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/v1/completions", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		for h := 0; h+1 < len(headers); h += 2 {
			req.Header.Set(headers[h], headers[h+1])
		}
		wg.Go(func() {
			<-start
			answers[i].ask(client, req)
		})
	}
	close(start)
	wg.Wait()
	return answers
}

func (a *crowdAnswer) ask(client *http.Client, req *http.Request) {
	began := time.Now()
	resp, err := client.Do(req)
	if err != nil {
		a.err = err
		return
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	a.took, a.status, a.err = time.Since(began), resp.StatusCode, err
	a.retryAfter = resp.Header.Get("retry-after-ms")
	var v struct {
		Usage any
		apiError
	}
	v.Usage = &a.usage
	if err := json.Unmarshal(text, &v); err != nil && a.err == nil {
		a.err = fmt.Errorf("%w in %.200s", err, text)
	}
	if v.Error.Code != nil {
		a.code = *v.Error.Code
	}
}

// wholeAnswers counts those that were answered in full and reports any that was cut short.
func wholeAnswers(t *testing.T, answers []crowdAnswer) (n int) {
	t.Helper()
	want := crowdPrompt()
	for i, a := range answers {
		if a.err != nil {
			t.Errorf("request %d: %v", i, a.err)
		}
		if a.status != 200 {
			continue
		}
		n++
		if a.usage.Completion != crowdOutput || a.usage.Prompt < want*99/100 || a.usage.Prompt > want*101/100 {
			t.Errorf("request %d: usage %+v, want %d tokens in and %d out", i, a.usage, want, crowdOutput)
		}
	}
	return n
}

// TestACrowdCompletes: with limits.mode auto and a wait of half an hour (three
// minutes here) all of it is answered.
func TestACrowdCompletes(t *testing.T) {
	e := crowdEngine(t)
	g := harness.Serve(t, fmt.Sprintf("models: [{name: penstock-local, engines: [{url: %s}], queue: {max_wait: 3m}}]\nlimits: {mode: auto}\nlog: {access: false}\n", e.URL))
	began := time.Now()
	answers := sendCrowd(t, g.URL, filler(t, e.URL, crowdPrompt()))
	if n := wholeAnswers(t, answers); n != crowd {
		t.Errorf("%d of %d requests completed, want all; statuses %v", n, crowd, tally(answers))
	}
	t.Logf("%d requests in %v", crowd, time.Since(began).Round(time.Millisecond))
	wantAtRest(t, g)
}

// TestACrowdIsRefusedInTime: with places for 400 and a wait of 20 s (two here)
// the rest is refused, by code and in time, and all that is bound completes.
func TestACrowdIsRefusedInTime(t *testing.T) {
	const wait = 2 * time.Second
	e := crowdEngine(t)
	g := harness.Serve(t, fmt.Sprintf("models: [{name: penstock-local, engines: [{url: %s}], queue: {max_length: 400, max_wait: %v}}]\nlog: {access: false}\n", e.URL, wait))
	began := time.Now()
	answers := sendCrowd(t, g.URL, filler(t, e.URL, crowdPrompt()))
	bound := wholeAnswers(t, answers)
	ends := tally(answers)
	t.Logf("in %v: %v", time.Since(began).Round(time.Millisecond), ends)
	if bound+ends["429 queue_full"]+ends["503 queue_timeout"] != crowd || bound < 256 || ends["429 queue_full"] == 0 || ends["503 queue_timeout"] == 0 {
		t.Errorf("ends %v: want at least the 256 that fit to complete, and queue_full and queue_timeout for the rest", ends)
	}
	var refused []time.Duration
	for i, a := range answers {
		if a.status != 200 {
			refused = append(refused, a.took)
			if a.retryAfter == "" {
				t.Errorf("request %d: %d %s without retry-after-ms", i, a.status, a.code)
			}
		}
	}
	if last := slices.Max(refused); last > wait+crowdSlack() {
		t.Errorf("the last refusal came after %v, want within %v and %v", last, wait, crowdSlack())
	}
	t.Logf("the last refusal came after %v", slices.Max(refused).Round(time.Millisecond))
	if n := int(metric(t, g, "penstock_limit_refusals_total")); n != len(refused) {
		t.Errorf("penstock_limit_refusals_total counts %d refusals, want %d", n, len(refused))
	}
	wantAtRest(t, g)
}

// tally counts how the requests ended.
func tally(answers []crowdAnswer) map[string]int {
	ends := map[string]int{}
	for _, a := range answers {
		ends[strings.TrimSpace(fmt.Sprint(a.status, " ", a.code))]++
	}
	return ends
}

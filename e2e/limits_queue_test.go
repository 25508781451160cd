package e2e

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"penstock/e2e/harness"
	"penstock/e2e/scripted"
)

// soon bounds what is to happen at once, on a machine that is busy with other things.
const soon = 5 * time.Second

// narrow is a gateway whose only engine runs one request at a time.
func narrow(t *testing.T, settings, keys string) (*harness.Process, *scripted.Upstream) {
	t.Helper()
	up := scripted.Start(t)
	g := harness.Serve(t, fmt.Sprintf("models: [{name: %s, engines: [{url: %s, kind: openai, max_running: 1}]%s}]\nkeys:\n%s",
		scripted.Model, up.URL, settings, keys))
	return g, up
}

func waiting(t *testing.T, g *harness.Process, want int) {
	t.Helper()
	harness.Eventually(t, soon, "requests in the queue", func() error {
		if n := limitsOf(t, g).Queues[0].Waiting; n != want {
			return fmt.Errorf("%d, want %d", n, want)
		}
		return nil
	})
}

// TestRefusalsByTheQueue: want of room is 503, the key's own concurrency 429,
// each within its wait; the headers shorten it.
func TestRefusalsByTheQueue(t *testing.T) {
	g, up := narrow(t, ", queue: {max_length: 3, max_wait: 1500ms}",
		keyLine("holder", "")+keyLine("other", "limits: {requests_per_minute: 600}")+
			keyLine("patient", "queue: {max_wait: 60s, max_length: 1}"))
	url := g.URL + "/v1/chat/completions"
	slow := say1(scripted.Model, "script:slow", true, "")
	first := hold(t, url, slow, as("holder")...)
	atEngine(t, up, 1)
	timed := func(want time.Duration, key string, more ...string) answer {
		t.Helper()
		began := time.Now()
		a := post(t, url, slow, append(as(key), more...)...)
		if took := time.Since(began); took < want || took > want+soon {
			t.Errorf("key %s with %v was answered %d after %v, want after %v", key, more, a.status, took, want)
		}
		return a
	}
	wantRefusal(t, "no room", timed(1500*time.Millisecond, "other"), 503, "queue_timeout", "server_error")
	wantRefusal(t, "no room, not to wait", timed(0, "other", "x-penstock-no-queue", "1"), 503, "queue_timeout", "server_error")
	wantRefusal(t, "no room, shorter wait", timed(200*time.Millisecond, "other", "x-penstock-max-wait", "200ms"), 503, "queue_timeout", "server_error")
	wantRefusal(t, "no room, wait in seconds", timed(250*time.Millisecond, "other", "x-penstock-max-wait", "0.25"), 503, "queue_timeout", "server_error")
	if n := refusals(t, g, "other", "queue_timeout"); n != 4 {
		t.Errorf("penstock_limit_refusals_total counts %d queue_timeout for other, want 4", n)
	}
	if a := post(t, url, slow, append(as("other"), "x-penstock-max-wait", "soon")...); a.status != 400 {
		t.Errorf("x-penstock-max-wait: soon: %d %s, want 400", a.status, a.body)
	}
	if n := limitsOf(t, g).of("other").used("requests"); n != 0 {
		t.Errorf("%d requests are charged to a key of which none was sent, want 0", n)
	}

	// The queue's length: the key's own part of it.
	q1 := hold(t, url, slow, as("patient")...)
	waiting(t, g, 1)
	wantRefusal(t, "the key's queue", timed(0, "patient"), 429, "queue_full", "queue")
	q1.leave()
	waiting(t, g, 0)
	if n := refusals(t, g, "patient", "queue_full"); n != 1 {
		t.Errorf("penstock_limit_refusals_total counts %d queue_full for patient, want 1", n)
	}
	first.leave()
	wantAtRest(t, g)
}

// TestConcurrencyIs429 tells the caller's own limit from our capacity: with
// room on the engine, only the key's slot is missing.
func TestConcurrencyIs429(t *testing.T) {
	up := scripted.Start(t)
	g := harness.Serve(t, fmt.Sprintf(`
models:
  - {name: %[1]s, engines: [{url: %[2]s, kind: openai}]}
  - {name: small, upstream: %[1]s, limits: {concurrency: 1}, queue: {max_wait: 300ms}, engines: [{url: %[2]s, kind: openai, id: second}]}
keys:
%[3]s%[4]s`, scripted.Model, up.URL, keyLine("alone", "limits: {concurrency: 1}, queue: {max_wait: 300ms}"), keyLine("any", "")))
	url := g.URL + "/v1/chat/completions"
	slow := func(model string) string { return say1(model, "script:slow", true, "") }
	first := hold(t, url, slow(scripted.Model), as("alone")...)
	atEngine(t, up, 1)
	began := time.Now()
	wantRefusal(t, "the key's concurrency", post(t, url, slow(scripted.Model), as("alone")...), 429, "rate_limit_exceeded", "concurrency")
	if took := time.Since(began); took < 300*time.Millisecond || took > soon {
		t.Errorf("refused by concurrency after %v, want after 300 ms", took)
	}
	wantRefusal(t, "not to wait", post(t, url, slow(scripted.Model), append(as("alone"), "x-penstock-no-queue", "1")...), 429, "rate_limit_exceeded", "concurrency")
	if n := refusals(t, g, "alone", "concurrency"); n != 2 {
		t.Errorf("penstock_limit_refusals_total counts %d for concurrency, want 2", n)
	}
	first.leave()
	atEngine(t, up, 0)
	if a := post(t, url, say1(scripted.Model, "hello", false, ""), as("alone")...); a.status != 200 {
		t.Errorf("after the first has left: %d %s, want 200", a.status, a.body)
	}
	second := hold(t, url, slow("small"), as("any")...)
	atEngine(t, up, 1)
	wantRefusal(t, "the model's concurrency", post(t, url, slow("small"), as("any")...), 503, "queue_timeout", "server_error")
	second.leave()
	wantAtRest(t, g)
}

// TestWhoLeavesTheQueueLeavesAtOnce, charged nothing; and who stays is sent as
// soon as there is room.
func TestWhoLeavesTheQueueLeavesAtOnce(t *testing.T) {
	g, up := narrow(t, "", keyLine("k", slowRefill+", queue: {max_wait: 60s}"))
	url := g.URL + "/v1/chat/completions"
	first := hold(t, url, say1(scripted.Model, "script:slow", true, ""), as("k")...)
	atEngine(t, up, 1)
	gone := hold(t, url, say1(scripted.Model, "script:slow", true, ""), as("k")...)
	score := hold(t, g.URL+"/v1/completions", fmt.Sprintf(`{"model":%q,"prompt":"a","max_tokens":0,"echo":true,"logprobs":1}`, scripted.Model), as("k")...)
	stays := hold(t, url, say1(scripted.Model, "hello", false, ""), as("k")...)
	waiting(t, g, 3)
	gone.leave()
	score.leave()
	waiting(t, g, 1)
	if n := limitsOf(t, g).of("k").used("requests"); n != 2 {
		t.Errorf("%d requests charged, want 2: those that left the queue cost nothing", n)
	}
	first.leave()
	<-stays.done
	if stays.status != 200 {
		t.Errorf("who stayed got %d, %v; want 200 once there was room", stays.status, stays.err)
	}
	if n := up.Total(); n != 2 {
		t.Errorf("%d requests reached the engine, want 2", n)
	}
	wantAtRest(t, g)
}

// TestWaitingForARate: on_rate_limit: wait holds a request until its rate
// admits it, if that is within max_wait; else, and with x-penstock-no-queue, it
// is refused at once.
func TestWaitingForARate(t *testing.T) {
	up := scripted.Start(t)
	g := harness.Serve(t, fmt.Sprintf("models: [{name: %s, engines: [{url: %s, kind: openai}]}]\nkeys:\n%s%s", scripted.Model, up.URL,
		keyLine("waits", "on_rate_limit: wait, queue: {max_wait: 10s}, limits: {requests_per_minute: 120, requests_burst: 1}"),
		keyLine("short", "on_rate_limit: wait, queue: {max_wait: 1s}, limits: {requests_per_minute: 1}")))
	ask := func(key string, more ...string) answer {
		return post(t, g.URL+"/v1/chat/completions", say1(scripted.Model, "hello", false, ""), append(as(key), more...)...)
	}
	began := time.Now()
	for i := range 4 {
		if a := ask("waits"); a.status != http.StatusOK {
			t.Errorf("request %d: %d %s, want it to wait", i, a.status, a.body)
		}
	}
	if took := time.Since(began); took < 1400*time.Millisecond {
		t.Errorf("four requests at two a second took %v, want 1.5 s", took)
	}
	wantRefusal(t, "not to wait", ask("waits", "x-penstock-no-queue", "1"), 429, "rate_limit_exceeded", "requests")
	ask("short")
	began = time.Now()
	wantRefusal(t, "longer than max_wait", ask("short"), 429, "rate_limit_exceeded", "requests")
	if took := time.Since(began); took > soon {
		t.Errorf("a wait that cannot fit was refused after %v, want at once", took)
	}
	wantAtRest(t, g)
}

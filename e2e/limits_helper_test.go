package e2e

import (
	"bufio"
	"context"
	"crypto/sha256"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"penstock/e2e/harness"
)

// keyLine is one entry of keys: whose secret is its name, with further settings.
func keyLine(name, settings string) string {
	line := fmt.Sprintf("  - {name: %s, sha256: %x", name, sha256.Sum256([]byte(name)))
	if settings != "" {
		line += ", " + settings
	}
	return line + "}\n"
}

// as is the header of a key made by keyLine.
func as(name string) []string { return []string{"Authorization", "Bearer " + name} }

// limitsPage is what the tests read of GET /limits.
type limitsPage struct {
	Mode   string    `json:"mode"`
	Keys   []keyPart `json:"keys"`
	Models []struct {
		Model  string       `json:"model"`
		Limits []limitsPart `json:"limits"`
	} `json:"models"`
	Queues []struct {
		Model     string `json:"model"`
		Waiting   int    `json:"waiting"`
		MaxLength int    `json:"max_length"`
	} `json:"queues"`
}

type keyPart struct {
	Key     string       `json:"key"`
	Waiting int          `json:"waiting"`
	Running int          `json:"running"`
	Served  float64      `json:"served"`
	Share   float64      `json:"share"`
	Limits  []limitsPart `json:"limits"`
}

type limitsPart struct {
	Scope          string `json:"scope"`
	Mode           string `json:"mode"`
	UnderWay       int    `json:"under_way"`
	ReservedInput  int    `json:"reserved_input_tokens"`
	ReservedOutput int    `json:"reserved_output_tokens"`
	Running        int    `json:"running"`
	RateWaiting    int    `json:"rate_waiting"`
	Rates          []struct {
		Kind      string `json:"kind"`
		Limit     int    `json:"limit_per_minute"`
		Used      int    `json:"used"`
		Remaining int    `json:"remaining"`
	} `json:"rates"`
}

func limitsOf(t *testing.T, g *harness.Process) limitsPage {
	t.Helper()
	a := do(t, http.MethodGet, g.Admin+"/limits", "")
	if a.status != http.StatusOK {
		t.Fatalf("GET /limits: %d %s", a.status, a.body)
	}
	return decode[limitsPage](t, a.body)
}

// of is a key's part of the page.
func (p limitsPage) of(key string) keyPart {
	for _, k := range p.Keys {
		if k.Key == key {
			return k
		}
	}
	return keyPart{}
}

// used is what the key's own buckets hold of a kind; -1: it has no such limit.
func (k keyPart) used(kind string) int {
	for _, l := range k.Limits {
		for _, r := range l.Rates {
			if l.Scope == "key" && r.Kind == kind {
				return r.Used
			}
		}
	}
	return -1
}

// atRest is nil when nothing runs, waits or is reserved, by any key or model.
func (p limitsPage) atRest() error {
	for _, q := range p.Queues {
		if q.Waiting != 0 {
			return fmt.Errorf("%d wait for model %s", q.Waiting, q.Model)
		}
	}
	var all []limitsPart
	for _, k := range p.Keys {
		if k.Waiting != 0 || k.Running != 0 {
			return fmt.Errorf("key %s: %d running and %d waiting", k.Key, k.Running, k.Waiting)
		}
		all = append(all, k.Limits...)
	}
	for _, m := range p.Models {
		all = append(all, m.Limits...)
	}
	for _, l := range all {
		if l.UnderWay != 0 || l.Running != 0 || l.ReservedInput != 0 || l.ReservedOutput != 0 || l.RateWaiting != 0 {
			return fmt.Errorf("still held: %+v", l)
		}
	}
	return nil
}

// wantAtRest waits until everything has been given back.
func wantAtRest(t *testing.T, g *harness.Process) {
	t.Helper()
	harness.Eventually(t, 10*time.Second, "nothing held, waiting or in flight", func() error {
		for _, r := range replicas(t, g.Admin) {
			if r.InFlight != 0 {
				return fmt.Errorf("%s has %d in flight", r.ID, r.InFlight)
			}
		}
		return limitsOf(t, g).atRest()
	})
}

// metric sums the series of a metric that have all the labels given, as written on the page.
func metric(t *testing.T, g *harness.Process, name string, labels ...string) float64 {
	t.Helper()
	page := do(t, http.MethodGet, g.Admin+"/metrics", "")
	sum := 0.0
	for line := range strings.Lines(string(page.body)) {
		rest, ok := strings.CutPrefix(line, name)
		if !ok || rest[0] != '{' && rest[0] != ' ' {
			continue
		}
		all := true
		for _, l := range labels {
			all = all && (strings.Contains(rest, "{"+l) || strings.Contains(rest, ","+l))
		}
		if !all {
			continue
		}
		v, err := strconv.ParseFloat(strings.TrimSpace(rest[strings.LastIndexByte(rest, ' ')+1:]), 64)
		if err != nil {
			t.Fatalf("metric %s: %v in %q", name, err, line)
		}
		sum += v
	}
	return sum
}

func refusals(t *testing.T, g *harness.Process, key, reason string) int {
	t.Helper()
	return int(metric(t, g, "penstock_limit_refusals_total", fmt.Sprintf("key=%q", key), fmt.Sprintf("reason=%q", reason)))
}

// wantRefusal checks an answer against docs/limits.md: status, code, type, and
// the headers that SDKs act on.
func wantRefusal(t *testing.T, what string, a answer, status int, code, typ string) {
	t.Helper()
	if a.status != status {
		t.Errorf("%s: got %d %s, want %d %s", what, a.status, a.body, status, code)
		return
	}
	e := decode[apiError](t, a.body)
	if deref(e.Error.Code) != code || e.Error.Type != typ {
		t.Errorf("%s: got code %s type %s, want %s and %s; %s", what, deref(e.Error.Code), e.Error.Type, code, typ, a.body)
	}
	seconds, err := strconv.Atoi(a.header.Get("Retry-After"))
	ms, err2 := strconv.Atoi(a.header.Get("retry-after-ms"))
	if err != nil || err2 != nil || seconds < 1 || ms < 1 || seconds != max(1, (ms+999)/1000) || a.header.Get("x-should-retry") != "true" {
		t.Errorf("%s: Retry-After %q, retry-after-ms %q, x-should-retry %q; want a time, the same in both, and true",
			what, a.header.Get("Retry-After"), a.header.Get("retry-after-ms"), a.header.Get("x-should-retry"))
	}
	for _, h := range []string{"x-request-id", "x-penstock-queue-ms"} {
		if a.header.Get(h) == "" {
			t.Errorf("%s: no header %s", what, h)
		}
	}
}

// held is a request under way.
type held struct {
	cancel context.CancelFunc
	done   chan struct{} // closed when its answer is over
	status int
	err    error
}

// hold sends a request and reads its answer beside the test.
func hold(t *testing.T, url, body string, headers ...string) *held {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	h := &held{cancel: cancel, done: make(chan struct{})}
	t.Cleanup(h.leave)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	go func() {
		defer close(h.done)
		resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
		if err != nil {
			h.err = err
			return
		}
		defer resp.Body.Close()
		h.status = resp.StatusCode
		_, h.err = bufio.NewReader(resp.Body).WriteTo(discard{})
	}()
	return h
}

// leave closes the connection, as a client does that has gone.
func (h *held) leave() {
	h.cancel()
	<-h.done
}

type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }

// say1 is a chat request of one message.
func say1(model, text string, stream bool, more string) string {
	return fmt.Sprintf(`{"model":%q,"messages":[{"role":"user","content":%q}],"stream":%v%s}`, model, text, stream, more)
}

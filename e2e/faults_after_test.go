package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"penstock/e2e/harness"
)

// aftermath is what the gateway says of a cell when everything is over.
type aftermath struct {
	state    string         // of the faulty replica
	used     int            // tokens charged to the key
	lines    []accessLine   // of the log
	requests map[string]int // penstock_requests_total by "status code"
	failures string         // penstock_replica_failures_total: the reason
}

// accessLine is what is read of one line of the log.
type accessLine struct {
	ID      string   `json:"request_id"`
	Status  int      `json:"status"`
	Code    string   `json:"code"`
	Error   string   `json:"error"`
	Retries []string `json:"retries"`
}

// charged is what the limits were charged, in words.
func (a aftermath) charged() string {
	switch {
	case a.used == 0:
		return "nothing"
	case a.used >= 10 && a.used <= 11:
		return "as reported"
	}
	return "prompt and events"
}

// restReplica is what must be zero of a replica at rest.
type restReplica struct {
	ID           string `json:"id"`
	State        string `json:"state"`
	InFlight     int    `json:"in_flight"`
	Streams      int    `json:"streams"`
	Waiting      int    `json:"waiting"`
	QueuedTokens int    `json:"queued_tokens"`
	KVInFlight   int    `json:"kv_in_flight"`
}

// restLimits is what is read of GET /limits.
type restLimits struct {
	Keys []struct {
		Key     string `json:"key"`
		Waiting int    `json:"waiting"`
		Running int    `json:"running"`
		Limits  []struct {
			UnderWay int `json:"under_way"`
			Running  int `json:"running"`
			Input    int `json:"reserved_input_tokens"`
			Output   int `json:"reserved_output_tokens"`
			Rates    []struct {
				Kind string `json:"kind"`
				Used int    `json:"used"`
			} `json:"rates"`
		} `json:"limits"`
	} `json:"keys"`
}

func adminGet[T any](admin, path string) (v T, err error) {
	resp, err := (&http.Client{Timeout: 30 * time.Second}).Get(admin + path)
	if err != nil {
		return v, err
	}
	defer resp.Body.Close()
	return v, json.NewDecoder(resp.Body).Decode(&v)
}

// atRest is nil when nothing of any request is left: no slot, stream, queued
// token, concurrency slot, reservation or waiting request.
func atRest(admin string) error {
	rs, err := adminGet[[]restReplica](admin, "/replicas")
	if err != nil {
		return err
	}
	for _, r := range rs {
		if r.InFlight != 0 || r.Streams != 0 || r.Waiting != 0 || r.QueuedTokens != 0 || r.KVInFlight != 0 {
			return fmt.Errorf("replica %+v", r)
		}
	}
	l, err := adminGet[restLimits](admin, "/limits")
	if err != nil {
		return err
	}
	for _, k := range l.Keys {
		if k.Waiting != 0 || k.Running != 0 {
			return fmt.Errorf("key %+v", k)
		}
		for _, s := range k.Limits {
			if s.UnderWay != 0 || s.Running != 0 || s.Input != 0 || s.Output != 0 {
				return fmt.Errorf("key %+v", k)
			}
		}
	}
	return nil
}

// rest waits until everything is over.
func (m *matrix) rest(t *testing.T) {
	t.Helper()
	harness.Eventually(t, faultSlack, "everything is given back", func() error { return atRest(m.gateway.Admin) })
	lines := 0
	for _, c := range m.cells {
		lines += len(c.got)
	}
	harness.Eventually(t, faultSlack, "every request has its access line", func() error {
		if n := len(accessLines(m.gateway.Log())); n < lines {
			return fmt.Errorf("%d access lines, want %d", n, lines)
		}
		return nil
	})
}

// accessLines are the log's, by request id.
func accessLines(log string) map[string]accessLine {
	found := map[string]accessLine{}
	for line := range strings.Lines(log) {
		if l := (accessLine{}); json.Unmarshal([]byte(line), &l) == nil && l.ID != "" && l.Status != 0 {
			found[l.ID] = l
		}
	}
	return found
}

// settled reads what is left of each cell.
func (m *matrix) settled(t *testing.T) {
	t.Helper()
	byName := map[string]*cell{}
	for _, c := range m.cells {
		byName[c.name], c.after.requests = c, map[string]int{}
	}
	rs, err := adminGet[[]restReplica](m.gateway.Admin, "/replicas")
	limits, err2 := adminGet[restLimits](m.gateway.Admin, "/limits")
	if err := errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
	for _, r := range rs {
		if c := byName[r.ID]; c != nil {
			c.after.state = r.State
		}
	}
	for _, k := range limits.Keys {
		for _, rate := range k.Limits[0].Rates {
			if rate.Kind == "tokens" {
				byName[k.Key].after.used = rate.Used
			}
		}
	}
	lines := accessLines(m.gateway.Log())
	for _, c := range m.cells {
		for i := range c.got {
			if l, ok := lines[fmt.Sprintf("%s-%d", c.name, i)]; ok {
				c.after.lines = append(c.after.lines, l)
			}
		}
	}
	for name, values := range metricsOf(t, m.gateway) {
		for labels, v := range values {
			l := parseLabels(labels)
			switch c := byName[l["model"]]; {
			case c == nil || v == 0:
			case name == "penstock_requests_total":
				c.after.requests[l["status"]+" "+l["code"]] = int(v)
			case name == "penstock_replica_failures_total" && l["replica"] == c.name:
				c.after.failures = l["reason"]
			}
		}
	}
}

// metricsOf is the gateway's page: name → labels → value.
func metricsOf(t *testing.T, gateway *harness.Process) map[string]map[string]float64 {
	t.Helper()
	page := map[string]map[string]float64{}
	for line := range strings.Lines(string(do(t, http.MethodGet, gateway.Admin+"/metrics", "").body)) {
		at := strings.LastIndexByte(strings.TrimSpace(line), ' ')
		if strings.HasPrefix(line, "#") || at < 0 {
			continue
		}
		name, labels, _ := strings.Cut(line[:at], "{")
		var v float64
		if _, err := fmt.Sscan(line[at:], &v); err != nil {
			continue
		}
		if page[name] == nil {
			page[name] = map[string]float64{}
		}
		page[name][strings.TrimSuffix(labels, "}")] = v
	}
	return page
}

// parseLabels reads labels whose values hold no quotes.
func parseLabels(s string) map[string]string {
	l := map[string]string{}
	for part := range strings.SplitSeq(s, ",") {
		if k, v, ok := strings.Cut(part, "="); ok {
			l[k] = strings.Trim(v, `"`)
		}
	}
	return l
}

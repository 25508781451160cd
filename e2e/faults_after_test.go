package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

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

// restReplica is what is read of GET /replicas.
type restReplica struct {
	ID    string `json:"id"`
	State string `json:"state"`
}

// restLimits is what is read of GET /limits.
type restLimits struct {
	Keys []struct {
		Key    string `json:"key"`
		Limits []struct {
			Rates []struct {
				Kind string `json:"kind"`
				Used int    `json:"used"`
			} `json:"rates"`
		} `json:"limits"`
	} `json:"keys"`
}

// atRest is nil when nothing of any request is left.
func atRest(admin string) error { return harness.AtRest(admin) }

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
	rs, err := harness.AdminGet[[]restReplica](m.gateway.Admin, "/replicas")
	limits, err2 := harness.AdminGet[restLimits](m.gateway.Admin, "/limits")
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

// metricsOf is the gateway's page.
func metricsOf(t *testing.T, gateway *harness.Process) harness.Metrics {
	t.Helper()
	page, err := harness.ReadMetrics(gateway.Admin)
	if err != nil {
		t.Fatal(err)
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

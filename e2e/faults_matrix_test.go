package e2e

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"penstock/e2e/faulty"
	"penstock/e2e/harness"
)

// The matrix: every fault of an engine, in a stream and in a whole answer,
// before a client that stays, one that reads slowly and one that leaves, each
// with a model, an engine and a key of its own, all at once on one gateway; and
// once more with a good engine beside the faulty one. What is seen of each is
// the table in docs/operations.md.

// Deadlines of the matrix: short, and yet so long that a busy machine meets
// none by accident.
const (
	faultFirst   = 3 * time.Second
	faultIdle    = 3 * time.Second
	faultRequest = 8 * time.Second
	// faultSlack is what a busy machine may add to a deadline. A hang is longer.
	faultSlack = 20 * time.Second
	// faultEvent is max_event here, and bigEvent more than that; the real ones
	// have a test of their own.
	faultEvent = 256 << 10
	bigEvent   = 384 << 10
)

const faultConfig = `
max_event: 256KiB
timeouts: {connect: 10s, first_token: 3s, idle: 3s, request: 8s, write: 30s}
health: {interval: 10m, timeout: 10s, load_interval: 10m, refresh_interval: 10m}
breaker: {failures: 1, open: 10m}
retry: {min_per_second: 1000}
log: {format: json}
`

// clientKind is how a client behaves.
type clientKind string

const (
	stays     clientKind = "stays"
	slow      clientKind = "slow"
	leaves    clientKind = "leaves"
	elsewhere clientKind = "elsewhere" // stays, and a good engine is beside the faulty one
)

// cell is one case of the matrix and what was seen of it.
type cell struct {
	fault  faulty.Fault
	stream bool
	client clientKind
	name   string // of the model, the key and the replica
	server *faulty.Server
	good   *faulty.Server

	got   []reply
	after aftermath
}

// matrix is all cells and the gateway that they run on.
type matrix struct {
	cells   []*cell
	gateway *harness.Process
}

// newMatrix starts the engines and the gateway before them.
func newMatrix(t *testing.T) *matrix {
	t.Helper()
	m := &matrix{}
	var models, keys strings.Builder
	for i, f := range faulty.Matrix(bigEvent) {
		for _, stream := range []bool{true, false} {
			for _, client := range []clientKind{stays, slow, leaves, elsewhere} {
				c := newCell(t, i, f, stream, client)
				m.cells = append(m.cells, c)
				models.WriteString(c.model())
				fmt.Fprintf(&keys, "  - {name: %s, sha256: %x, limits: {requests_per_minute: 1, requests_burst: 100, tokens_per_minute: 1, tokens_burst: 100000, concurrency: 10}}\n", c.name, sha256.Sum256([]byte(c.name)))
			}
		}
	}
	m.gateway = harness.Serve(t, faultConfig+"models:\n"+models.String()+"keys:\n"+keys.String())
	harness.Eventually(t, time.Minute, "every replica takes requests", func() error {
		n := 0
		for _, up := range metricsOf(t, m.gateway)["penstock_replica_up"] {
			n += int(up)
		}
		if want := len(m.cells) * 5 / 4; n != want {
			return fmt.Errorf("%d replicas are up, want %d", n, want)
		}
		return nil
	})
	for _, c := range m.cells {
		if c.fault.Name == "refused" {
			c.server.Close()
		}
	}
	return m
}

func newCell(t *testing.T, i int, f faulty.Fault, stream bool, client clientKind) *cell {
	c := &cell{fault: f, stream: stream, client: client, name: fmt.Sprintf("f%02d-whole-%s", i, client)}
	script := f.Whole
	if stream {
		c.name, script = fmt.Sprintf("f%02d-stream-%s", i, client), f.Stream
	}
	c.server = faulty.Start(t, faulty.Serving(c.name, faulty.Always(script)))
	c.server.SetPatience(30 * time.Second)
	if client == elsewhere {
		c.good = faulty.Start(t, faulty.Serving(c.name, faulty.ByName(nil)))
	}
	return c
}

// model is the cell's entry in the configuration.
func (c *cell) model() string {
	s := fmt.Sprintf("  - name: %s\n    policy: round_robin\n    engines:\n      - {url: %q, kind: openai, id: %s}\n", c.name, c.server.URL, c.name)
	if c.good != nil {
		s += fmt.Sprintf("      - {url: %q, kind: openai, id: %s-good}\n", c.good.URL, c.name)
	}
	return s
}

// prompt is long enough that what is charged tells whether it was estimated
// (some 100 tokens) or reported (9).
var prompt = strings.Repeat("Where does the water go? ", 20)

func (c *cell) body() string {
	return fmt.Sprintf(`{"model":%q,"stream":%t,"max_tokens":64,"messages":[{"role":"user","content":%q}]}`, c.name, c.stream, prompt)
}

// run sends the cell's requests.
func (c *cell) run(t *testing.T, gateway *harness.Process) {
	n := 1
	if c.client == elsewhere {
		n = 2 // one of them is sent to the faulty engine first
	}
	for i := range n {
		r := c.ask(t, gateway, fmt.Sprintf("%s-%d", c.name, i))
		c.got = append(c.got, r)
	}
}

// limit is the deadline that a code stands for, 0 for none.
func limitOf(code string) time.Duration {
	switch code {
	case "first_token_timeout":
		return faultFirst
	case "stream_idle_timeout":
		return faultIdle
	case "upstream_timeout":
		return faultRequest
	}
	return 0
}

func TestFaultMatrix(t *testing.T) {
	m := newMatrix(t)
	began := time.Now()
	var wg sync.WaitGroup
	for _, c := range m.cells {
		wg.Go(func() { c.run(t, m.gateway) })
	}
	wg.Wait()
	t.Logf("%d requests in %v", len(m.cells)*5/4, time.Since(began).Round(time.Millisecond))
	m.rest(t)
	m.settled(t)

	t.Run("nothing hangs", m.nothingHangs)
	t.Run("no truncation is silent", m.nothingLies)
	t.Run("a slow client sees the same", m.slowSeesTheSame)
	t.Run("a client that leaves is no fault of the engine", m.leavingIsNoFault)
	t.Run("log and metrics say what the client saw", m.recorded)
	t.Run("the table in docs/operations.md is what was seen", func(t *testing.T) {
		checkDocs(t, "faults", m.table())
	})
}

// find is the cell of that kind beside c.
func (m *matrix) find(c *cell, client clientKind) *cell {
	i := slices.IndexFunc(m.cells, func(d *cell) bool {
		return d.fault.Name == c.fault.Name && d.stream == c.stream && d.client == client
	})
	return m.cells[i]
}

func (m *matrix) each(client clientKind, f func(c *cell)) {
	for _, c := range m.cells {
		if c.client == client {
			f(c)
		}
	}
}

func (m *matrix) nothingHangs(t *testing.T) {
	for _, c := range m.cells {
		for _, r := range c.got {
			limit := limitOf(r.code)
			if r.took > limit+faultSlack {
				t.Errorf("%s (%s): took %v, want at most %v and %v for a busy machine", c.name, c.fault.Name, r.took, limit, faultSlack)
			}
			if limit > 0 && c.client == stays && r.took < limit {
				t.Errorf("%s (%s): %s after %v, before its %v", c.name, c.fault.Name, r.code, r.took, limit)
			}
		}
	}
}

// nothingLies: what looks like an answer is all that the engine sent, to its
// own end; everything else says what is wrong.
func (m *matrix) nothingLies(t *testing.T) {
	whole := []string{"400-flat", "16mb-event", "gzip", "trailing-data"}
	for _, c := range m.cells {
		if c.client == leaves {
			continue
		}
		for _, r := range c.got {
			good := r.clean && r.code == ""
			if c.client == elsewhere && good && string(r.body) == goodBody(c.stream) {
				continue
			}
			switch {
			case good && !slices.Contains(whole, c.fault.Name):
				t.Errorf("%s (%s): looks well: %d %.300q", c.name, c.fault.Name, r.status, r.body)
			case good && c.stream && r.status == 200 && !strings.HasSuffix(string(r.body), "data: [DONE]\n\n"):
				t.Errorf("%s (%s): a clean end without the end marker: %.300q", c.name, c.fault.Name, r.body)
			case r.status == 200 && r.clean && r.code != "":
				t.Errorf("%s (%s): an error event %s and then a clean end", c.name, c.fault.Name, r.code)
			case r.status == 200 && !r.clean && r.code == "":
				t.Errorf("%s (%s): cut off without an error event: %.300q", c.name, c.fault.Name, r.body)
			case r.status != 200 && !r.clean:
				t.Errorf("%s (%s): status %d and then %v", c.name, c.fault.Name, r.status, r.err)
			}
		}
	}
}

// goodBody is what a client gets of a good engine.
func goodBody(stream bool) string {
	if !stream {
		return faulty.JSON
	}
	return "data: " + faulty.Chunk("Hello") + "\n\ndata: " + faulty.Chunk(" there") + "\n\ndata: " + faulty.Done + "\n\n"
}

func (m *matrix) slowSeesTheSame(t *testing.T) {
	m.each(slow, func(c *cell) {
		a, b := c.got[0], m.find(c, stays).got[0]
		if a.status != b.status || a.code != b.code || a.clean != b.clean {
			t.Errorf("%s: a slow client saw %s, another %s", c.name, a, b)
		}
		if x, y := c.after.charged(), m.find(c, stays).after.charged(); x != y {
			t.Errorf("%s: a slow client is charged %s, another %s", c.name, x, y)
		}
	})
}

func (m *matrix) leavingIsNoFault(t *testing.T) {
	m.each(leaves, func(c *cell) {
		if len(c.after.lines) == 0 || len(m.find(c, stays).after.lines) == 0 {
			return // said by recorded
		}
		line := c.after.lines[0]
		other := m.find(c, stays).after.lines[0]
		switch {
		case line.Status == 499 && line.Code == "client_closed_request":
			if c.after.failures != "" {
				t.Errorf("%s (%s): the client left, and the engine is blamed: %s", c.name, c.fault.Name, c.after.failures)
			}
		case waits(c.fault.Name):
			t.Errorf("%s (%s): logged as %d %s, want 499 client_closed_request", c.name, c.fault.Name, line.Status, line.Code)
		case line.Status != other.Status || line.Code != other.Code: // the engine was quicker
			t.Errorf("%s (%s): logged as %d %s, want 499 or %d %s", c.name, c.fault.Name, line.Status, line.Code, other.Status, other.Code)
		}
		if waits(c.fault.Name) {
			select {
			case <-c.server.Gone():
			default:
				t.Errorf("%s (%s): the engine's connection is still open", c.name, c.fault.Name)
			}
		}
	})
}

// waits says that the fault lasts until somebody leaves.
func waits(fault string) bool {
	switch fault {
	case "half-event-then-silence", "headers-never", "first-token-never", "silence-mid-stream", "byte-per-second":
		return true
	}
	return false
}

func (m *matrix) recorded(t *testing.T) {
	for _, c := range m.cells {
		if len(c.after.lines) != len(c.got) {
			t.Errorf("%s: %d access lines for %d requests", c.name, len(c.after.lines), len(c.got))
			continue
		}
		for i, r := range c.got {
			line := c.after.lines[i]
			if c.client != leaves && (line.Status != r.status || r.code != "" && r.code != "BadRequestError" && line.Code != r.code) {
				t.Errorf("%s (%s): logged as %d %s, the client saw %s", c.name, c.fault.Name, line.Status, line.Code, r)
			}
			if c.after.requests[fmt.Sprintf("%d %s", line.Status, cmp.Or(line.Code, "ok"))] == 0 {
				t.Errorf("%s (%s): penstock_requests_total has %v, want one of %d %q", c.name, c.fault.Name, c.after.requests, line.Status, line.Code)
			}
		}
	}
}

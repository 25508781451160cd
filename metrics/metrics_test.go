package metrics

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

var update = flag.Bool("update", false, "rewrite testdata/page.golden")

// page is what a scraper gets.
func page(t testing.TB, g prometheus.Gatherer, accept string) string {
	t.Helper()
	var out bytes.Buffer
	if err := Write(&out, g, ContentType(accept)); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func newTest(t testing.TB, o Options) (*Metrics, *prometheus.Registry) {
	t.Helper()
	reg := prometheus.NewPedanticRegistry()
	m := New(reg, o)
	m.SetNames([]string{"glm-5.2"}, []string{"search"})
	return m, reg
}

// exercise touches every metric once.
func exercise(m *Metrics) {
	c := m.Client("glm-5.2", "search")
	c.Done(200, OK)
	c.Done(429, "rate_limit_exceeded")
	c.Tokens(100, 60, 20)
	m.Refused("search", ReasonTokens)

	model := m.Model("glm-5.2")
	model.Total(2*time.Second, "")
	model.QueueWait(0)
	model.PerToken(20 * time.Millisecond)
	model.InterToken(25 * time.Millisecond)
	model.Estimated(120, 100, 512, 20)
	model.Retried(FailConnect)
	model.RetryBudgetSpent()

	r := m.Replica("glm-5.2", "10.0.0.1:30000/0")
	r.Request()
	r.FirstToken(150*time.Millisecond, "")
	r.Failed(FailTimeout)
	r.Predicted(100, 64)
	r.Reported(100, 60)
	r.Reported(100, -1)
	r.Misrouted(1)
	r.ProbeFailed()
	r.LoadPollFailed()
	r.BreakerChanged("open")

	m.Reloaded(true, time.UnixMilli(1_700_000_000_500), "0000000000ff99")
	m.RedisCall(300 * time.Microsecond)
	m.RedisError("timeout")
	m.Placements(3, 2, 1)
	m.Panic()
}

func exampleGauges() Gauges {
	return Gauges{
		Models: []ModelGauges{{Model: "glm-5.2", InFlight: 3, QueueDepth: 2, QueueMax: 1000}},
		Replicas: []ReplicaGauges{{
			Model: "glm-5.2", Replica: "10.0.0.1:30000/0", Up: true, State: "healthy", Breaker: "closed",
			InFlight: 3, QueuedTokens: 900, IndexBlocks: 12, KVTokens: 2_328_128, MaxRunning: 256, PrefillRate: 8000,
			LoadAge: .5, EngineRunning: 3, EngineWaiting: 1, KVUsage: .25,
		}},
		Keys:        []KeyGauges{{Key: "search", InFlight: 3, Waiting: 2}},
		Limits:      []LimitGauge{{Key: "search", Limit: "tokens", Value: 200_000, Remaining: -10}},
		Connections: 7, IndexBytes: 4096,
	}
}

func TestPageIsTheGoldenOne(t *testing.T) {
	m, reg := newTest(t, Options{Version: "v1", Revision: "abc", Gauges: exampleGauges})
	exercise(m)
	got := regexp.MustCompile(`goversion="[^"]*"`).ReplaceAllString(page(t, reg, ""), `goversion="go"`)
	golden := filepath.Join("testdata", "page.golden")
	if *update {
		if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("the page differs from %s; if that is meant, run go test ./metrics -update and read the diff:\n%s",
			golden, firstDifference(got, string(want)))
	}
}

func firstDifference(got, want string) string {
	g, w := strings.Split(got, "\n"), strings.Split(want, "\n")
	for i := range min(len(g), len(w)) {
		if g[i] != w[i] {
			return fmt.Sprintf("line %d\n got %s\nwant %s", i+1, g[i], w[i])
		}
	}
	return fmt.Sprintf("got %d lines, want %d", len(g), len(w))
}

func TestEveryNameIsOursAndSaysItsUnit(t *testing.T) {
	m, reg := newTest(t, Options{Gauges: exampleGauges})
	exercise(m)
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		name, typ := f.GetName(), f.GetType().String()
		if !strings.HasPrefix(name, prefix) {
			t.Errorf("%s does not begin with %s", name, prefix)
		}
		if isTotal := strings.HasSuffix(name, "_total"); isTotal != (typ == "COUNTER") {
			t.Errorf("%s is a %s: counters, and only they, end in _total", name, typ)
		}
		if typ == "HISTOGRAM" && !strings.HasSuffix(name, "_seconds") && !strings.HasSuffix(name, "_ratio") {
			t.Errorf("%s: a histogram's name ends in its unit", name)
		}
		if !strings.HasSuffix(f.GetHelp(), ".") {
			t.Errorf("%s: help %q is not a sentence", name, f.GetHelp())
		}
	}
}

func TestLabelValuesAreBounded(t *testing.T) {
	m, reg := newTest(t, Options{})
	exercise(m)
	touch := func(i int) {
		name := fmt.Sprintf("random-%d", i)
		m.Client(name, name).Done(600+i, name)
		m.Client("glm-5.2", name).Done(200, OK)
		m.Client(name, "search").Tokens(1, 1, 1)
		m.Model(name).Retried(name)
		m.Refused(name, name)
		m.RedisError(name)
		m.Replica("glm-5.2", "10.0.0.1:30000/0").Failed(name)
		m.Replica("glm-5.2", "10.0.0.1:30000/0").BreakerChanged(name)
	}
	touch(0)
	before := strings.Count(page(t, reg, ""), "\n")
	for i := range 1000 {
		touch(i)
	}
	if after := strings.Count(page(t, reg, ""), "\n"); after != before {
		t.Errorf("1,000 random models, keys, codes and reasons made the page grow from %d to %d lines", before, after)
	}
	if p := page(t, reg, ""); strings.Contains(p, "random-") {
		t.Error("a name that a client chose is on the page")
	}
}

func TestSeriesGoWithTheirReplicaModelAndKey(t *testing.T) {
	m, reg := newTest(t, Options{})
	empty := page(t, reg, "")
	exercise(m)
	held := m.Replica("glm-5.2", "10.0.0.1:30000/0")
	client := m.Client("glm-5.2", "search")
	m.RemoveReplica("glm-5.2", "10.0.0.1:30000/0")
	held.Failed(FailConnect) // of a request that was still there
	held.Request()
	if p := page(t, reg, ""); strings.Contains(p, "10.0.0.1") {
		t.Error("a removed replica is still on the page")
	}
	m.SetNames(nil, nil)
	client.Done(404, "model_not_found")
	p := page(t, reg, "")
	if strings.Contains(p, `"glm-5.2"`) || strings.Contains(p, `"search"`) {
		t.Errorf("removed names are still on the page:\n%s", p)
	}
	if empty == "" {
		t.Error("a new page is empty")
	}
	m.SetNames([]string{"glm-5.2"}, []string{"search"})
	m.Client("glm-5.2", "search").Done(200, OK)
	want := `penstock_requests_total{code="ok",key="search",model="glm-5.2",status="200"} 1`
	if p := page(t, reg, ""); !strings.Contains(p, want) {
		t.Errorf("a name that came back is not counted: want %s", want)
	}
}

func TestHandlesAreSafeAndShared(t *testing.T) {
	m, reg := newTest(t, Options{})
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for i := range 500 {
				m.Client("glm-5.2", "search").Done(200+i%3, OK)
				m.Replica("glm-5.2", "r").Request()
				if i%100 == 0 {
					m.RemoveReplica("glm-5.2", "other")
					page(t, reg, "")
				}
			}
		})
	}
	wg.Wait()
	for _, want := range []string{
		`penstock_replica_requests_total{model="glm-5.2",replica="r"} 4000`,
		`penstock_requests_total{code="ok",key="search",model="glm-5.2",status="200"} 1336`,
	} {
		if p := page(t, reg, ""); !strings.Contains(p, want+"\n") {
			t.Errorf("after 8 × 500 requests the page lacks %s", want)
		}
	}
}

func TestTracedRequestsLeaveExemplars(t *testing.T) {
	m, reg := newTest(t, Options{})
	m.Replica("glm-5.2", "r").FirstToken(time.Second, "4bf92f3577b34da6a3ce929d0e0e4736")
	p := page(t, reg, "application/openmetrics-text; version=1.0.0")
	if want := `trace_id="4bf92f3577b34da6a3ce929d0e0e4736"`; !strings.Contains(p, want) {
		t.Errorf("no exemplar %s in\n%s", want, p)
	}
	if !strings.HasSuffix(p, "# EOF\n") {
		t.Error("the OpenMetrics page does not end in # EOF")
	}
}

func TestRuntimeMetricsAreThereWhenAsked(t *testing.T) {
	reg := prometheus.NewRegistry()
	New(reg, Options{Runtime: true})
	for _, want := range []string{"go_goroutines ", "process_open_fds ", "process_resident_memory_bytes "} {
		if !strings.Contains(page(t, reg, ""), "\n"+want) {
			t.Errorf("no %s on the page", want)
		}
	}
}

func TestHashNumberIsExactAndTolerant(t *testing.T) {
	for in, want := range map[string]float64{"": 0, "zz": 0, "ff": 255, "ffffffffffffffff": 1<<48 - 1, "0102030405060708": 0x010203040506} {
		if got := hashNumber(in); got != want {
			t.Errorf("hashNumber(%q) = %v, want %v", in, got, want)
		}
	}
}

func BenchmarkRequest(b *testing.B) {
	m, _ := newTest(b, Options{})
	model, replica := m.Model("glm-5.2"), m.Replica("glm-5.2", "r")
	b.ReportAllocs()
	for b.Loop() {
		c := m.Client("glm-5.2", "search")
		replica.Request()
		replica.Predicted(100, 64)
		model.QueueWait(0)
		replica.FirstToken(100*time.Millisecond, "")
		model.PerToken(20 * time.Millisecond)
		model.Total(time.Second, "")
		replica.Reported(100, 60)
		c.Tokens(100, 60, 20)
		c.Done(200, OK)
	}
}

func BenchmarkInterToken(b *testing.B) {
	m, _ := newTest(b, Options{})
	model := m.Model("glm-5.2")
	b.ReportAllocs()
	for b.Loop() {
		model.InterToken(20 * time.Millisecond)
	}
}

func BenchmarkScrape500Replicas(b *testing.B) {
	g := exampleGauges()
	m, reg := newTest(b, Options{Gauges: func() Gauges { return g }})
	one := g.Replicas[0]
	g.Replicas = nil
	for i := range 500 {
		one.Replica = fmt.Sprintf("10.0.0.%d:30000", i)
		g.Replicas = append(g.Replicas, one)
		m.Replica("glm-5.2", one.Replica).FirstToken(time.Second, "")
	}
	b.ReportAllocs()
	for b.Loop() {
		page(b, reg, "")
	}
}

package soak

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"penstock/e2e/faulty"
	"penstock/e2e/harness"
)

// configs are what reloads choose from. The engines a, b and c fail as they
// like, good never does; c comes and goes. $1 to $4 are their URLs.
const shared = `
timeouts: {connect: 2s, first_token: 1s, idle: 700ms, request: 3s, write: 2s, read_headers: 2s, read_body: 2s, engine_idle: 1s, keep_alive: 3s, drain: 5s}
health: {interval: 500ms, timeout: 1s}
max_event: 256KiB
log: {format: json, level: error}
keys:
  - {name: free, sha256: 2c70e12b7a0646f92279f427c7b38e7334d8e5389cff167a1dc30e73f826b683} # key
  - {name: tight, sha256: 7692c3ad3540bb803c020b3aee66cd8887123234ea0c6e7143c0add73ff431ed, limits: {requests_per_minute: 600, tokens_per_minute: 60000, concurrency: 3}, queue: {max_wait: 500ms}} # one
models:
  - name: m
    policy: %s
    queue: {max_length: 50, max_wait: 1s}
    engines:
      - {url: %q, kind: openai, id: a, max_running: 8}
      - {url: %q, kind: openai, id: b, max_running: 8}
      - {url: %q, kind: openai, id: good, max_running: 8}
`

const more = "      - {url: %q, kind: openai, id: c, max_running: 8}\n"

// clients is how many there are at once.
const clients = 24

// soak is one run.
type soak struct {
	t       *testing.T
	gateway *harness.Process
	urls    [4]string
	file    string
	seed    uint64
	start   state

	mu    sync.Mutex
	seen  map[string]int // outcomes
	calls atomic.Int64
}

func duration(t *testing.T) time.Duration {
	v := os.Getenv("PENSTOCK_SOAK")
	if v == "" {
		return 8 * time.Second
	}
	d, err := time.ParseDuration(v)
	if err != nil {
		t.Fatalf("PENSTOCK_SOAK=%q: %v", v, err)
	}
	return d
}

func seed(t *testing.T) uint64 {
	v := os.Getenv("PENSTOCK_SOAK_SEED")
	if v == "" {
		return uint64(time.Now().UnixNano())
	}
	n, err := strconv.ParseUint(v, 10, 64)
	if err != nil {
		t.Fatalf("PENSTOCK_SOAK_SEED=%q: %v", v, err)
	}
	return n
}

func TestSoak(t *testing.T) {
	s := &soak{t: t, seed: seed(t), seen: map[string]int{}}
	t.Logf("PENSTOCK_SOAK_SEED=%d", s.seed)
	for i := range s.urls {
		s.urls[i] = s.engine(uint64(i), i == 2).URL
	}
	s.file = harness.ConfigFile(t, s.config("prefix", true))
	s.gateway = harness.Serve(t, "", "--config", s.file)

	s.start = s.state()
	s.run(duration(t) / 4) // until pools and buffers have their size
	before := s.rest()
	s.run(duration(t) * 3 / 4)
	after := s.rest()
	t.Logf("%d requests; at rest before %v and after %v", s.calls.Load(), before, after)
	for _, line := range s.outcomes() {
		t.Log(line)
	}
	s.compare(before, after)
}

// config is one of the configurations that reloads take over.
func (s *soak) config(policy string, withC bool) string {
	c := fmt.Sprintf(shared, policy, s.urls[0], s.urls[1], s.urls[2])
	if withC {
		c += fmt.Sprintf(more, s.urls[3])
	}
	return c
}

// engine is one that fails, half of the time, in any way that there is.
func (s *soak) engine(number uint64, good bool) *faulty.Server {
	faults := slices.DeleteFunc(faulty.Matrix(384<<10), func(f faulty.Fault) bool { return f.Stream == nil })
	var mu sync.Mutex
	r := rand.New(rand.NewPCG(s.seed, number))
	return faulty.Start(s.t, faulty.Serving("m", func(q *faulty.Request) faulty.Script {
		mu.Lock()
		f := faulty.Good()
		if !good && r.IntN(2) == 0 {
			f = faults[r.IntN(len(faults))]
		}
		mu.Unlock()
		if q.Streamed() {
			return f.Stream
		}
		return f.Whole
	}))
}

// run has all clients send for that long, with reloads meanwhile.
func (s *soak) run(d time.Duration) {
	ctx, cancel := context.WithTimeout(s.t.Context(), d)
	defer cancel()
	var wg sync.WaitGroup
	for i := range clients {
		wg.Go(func() {
			c := &client{soak: s, rand: rand.New(rand.NewPCG(s.seed, uint64(100+i)))}
			for ctx.Err() == nil {
				c.act()
				s.calls.Add(1)
			}
		})
	}
	wg.Go(func() { s.reload(ctx) })
	wg.Wait()
}

// reload changes the configuration every second or so: by the file being
// watched, by SIGHUP, or to something that is refused.
func (s *soak) reload(ctx context.Context) {
	r := rand.New(rand.NewPCG(s.seed, 99))
	policies := []string{"prefix", "least_load", "round_robin", "random_two", "session"}
	for {
		select {
		case <-ctx.Done():
			s.write(s.config("prefix", true)) // as at the beginning
			s.gateway.Signal(syscall.SIGHUP)
			return
		case <-time.After(time.Duration(500+r.IntN(1500)) * time.Millisecond):
		}
		text := s.config(policies[r.IntN(len(policies))], r.IntN(2) == 0)
		if r.IntN(5) == 0 {
			text = "models: [{nonsense: 1}]\n"
		}
		s.write(text)
		if r.IntN(2) == 0 {
			s.gateway.Signal(syscall.SIGHUP)
		}
	}
}

func (s *soak) write(text string) {
	if err := os.WriteFile(s.file, []byte(text), 0o600); err != nil {
		s.t.Error(err)
	}
}

func (s *soak) saw(outcome string) {
	s.mu.Lock()
	s.seen[outcome]++
	s.mu.Unlock()
}

func (s *soak) outcomes() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var lines []string
	for what, n := range s.seen {
		lines = append(lines, fmt.Sprintf("%6d %s", n, what))
	}
	slices.Sort(lines)
	slices.Reverse(lines)
	return lines
}

// state is what the gateway uses when nothing runs.
type state struct {
	goroutines, connections, descriptors int
	heap                                 int64 // bytes of living objects, after a collection
}

func (s state) String() string {
	return fmt.Sprintf("%d goroutines, %d connections, %d descriptors, %d KiB of heap", s.goroutines, s.connections, s.descriptors, s.heap>>10)
}

// restTime is how long the gateway has to come to rest: keep_alive, engine_idle
// and lingering connections take some seconds of it.
const restTime = 90 * time.Second

// What may differ from the beginning: a probe under way, a timer.
const (
	moreGoroutines  = 10
	moreDescriptors = 12
	// moreHeap is for pools of buffers, the index and the last requests, which
	// may still have grown after the first part.
	moreHeap = 12 << 20
)

// rest waits until nothing is left of any request, and tells what the gateway
// uses then.
func (s *soak) rest() (now state) {
	s.t.Helper()
	harness.Eventually(s.t, restTime, "everything is given back", func() error {
		if err := harness.AtRest(s.gateway.Admin); err != nil {
			return err
		}
		now = s.state()
		if now.connections > 0 || now.goroutines > s.start.goroutines+moreGoroutines || now.descriptors > s.start.descriptors+moreDescriptors {
			return fmt.Errorf("%v; at the beginning %v", now, s.start)
		}
		return nil
	})
	// The questions themselves leave garbage behind: what lives is in the least.
	for range heapSamples {
		now.heap = min(now.heap, s.state().heap)
	}
	return now
}

const heapSamples = 8

// state asks the gateway, which collects its garbage for the heap profile.
func (s *soak) state() state {
	resp, err := http.Get(s.gateway.Admin + "/debug/pprof/heap?gc=1")
	if err != nil {
		s.t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	resp.Body.Close()
	m, err := harness.ReadMetrics(s.gateway.Admin)
	if err != nil {
		s.t.Fatal(err)
	}
	return state{
		goroutines: int(m.Sum("go_goroutines")), connections: int(m.Sum("penstock_connections")),
		descriptors: int(m.Sum("process_open_fds")), heap: int64(m.Sum("go_memstats_heap_alloc_bytes")),
	}
}

// compare fails if more is in use after than before.
func (s *soak) compare(before, after state) {
	if after.heap > before.heap+moreHeap {
		s.t.Errorf("it uses %v after the soak, %v before", after, before)
	}
	m, err := harness.ReadMetrics(s.gateway.Admin)
	if err != nil {
		s.t.Fatal(err)
	}
	if n := m.Sum("penstock_panics_total"); n > 0 || strings.Contains(s.gateway.Log(), "panic") {
		s.t.Errorf("%v panics", n)
	}
}

package e2e

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"penstock/e2e/harness"
)

// engines starts n local engines that take their time, each with room for all
// that is sent, so that nothing waits in the gateway, and a gateway before them.
func engines(t *testing.T, n int, more string) (gateway *harness.Process, all []*harness.Process) {
	t.Helper()
	var list strings.Builder
	for i := range n {
		e := harness.Engine(t, "--profile", "glm52-dp4", "--max-running", "400", "--kv-tokens", "2000000")
		all = append(all, e)
		fmt.Fprintf(&list, "      - {url: %q, kind: sglang, id: e%d}\n", e.URL, i)
	}
	gateway = harness.Serve(t, "models:\n  - name: penstock-local\n    policy: round_robin\n    engines:\n"+list.String()+"log: {format: json}\n"+more)
	harness.Eventually(t, time.Minute, "all replicas are up", func() error { return replicasUp(t, gateway, n) })
	return gateway, all
}

func replicasUp(t *testing.T, gateway *harness.Process, want int) error {
	n := 0
	for _, up := range metricsOf(t, gateway)["penstock_replica_up"] {
		n += int(up)
	}
	if n != want {
		return fmt.Errorf("%d are", n)
	}
	return nil
}

// streamed is a client that reads one stream to its end.
type streamed struct {
	gateway *harness.Process
	id      string
	tokens  int
	first   chan struct{} // closed at the first event
	reply   reply
}

func newStreamed(gateway *harness.Process, id string, tokens int) *streamed {
	return &streamed{gateway: gateway, id: id, tokens: tokens, first: make(chan struct{})}
}

// run asks and reads, within two minutes.
func (s *streamed) run() {
	began := time.Now()
	defer func() { s.reply.took = time.Since(began) }()
	body := fmt.Sprintf(`{"model":"penstock-local","stream":true,"ignore_eos":true,"max_tokens":%d,"messages":[{"role":"user","content":"%s: where does the water go?"}]}`, s.tokens, s.id)
	req, err := http.NewRequest(http.MethodPost, s.gateway.URL+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		s.reply.err = err
		return
	}
	req.Header.Set("X-Request-Id", s.id)
	resp, err := (&http.Client{Timeout: 2 * time.Minute}).Do(req)
	if err != nil {
		s.reply.err = err
		return
	}
	defer resp.Body.Close()
	s.reply.status = resp.StatusCode
	br := bufio.NewReader(resp.Body)
	if resp.StatusCode == http.StatusOK {
		if _, err := br.Peek(1); err == nil {
			close(s.first)
		}
	}
	s.reply.body, s.reply.err = io.ReadAll(br)
	s.reply.clean, s.reply.code = s.reply.err == nil, errorCode(s.reply.body)
}

// begun says that the client has seen an event.
func (s *streamed) begun() bool {
	select {
	case <-s.first:
		return true
	default:
		return false
	}
}

// whole says that the client was given everything.
func (s *streamed) whole() bool {
	return s.reply.status == 200 && s.reply.clean && strings.HasSuffix(string(s.reply.body), "data: [DONE]\n\n") && s.reply.code == ""
}

// cut says that the client was told of an error in mid-stream.
func (s *streamed) cut(code string) bool {
	return s.reply.status == 200 && !s.reply.clean && s.reply.code == code
}

func (s *streamed) String() string {
	b := s.reply.body
	return fmt.Sprintf("%s: %v, %v, body ending in %q", s.id, s.reply, s.reply.err, b[max(0, len(b)-150):])
}

// startStreams starts n of them, one each few milliseconds.
func startStreams(gateway *harness.Process, n, tokens int, apart time.Duration) (all []*streamed, wait func()) {
	var wg sync.WaitGroup
	for i := range n {
		s := newStreamed(gateway, fmt.Sprintf("s%d", i), tokens)
		all = append(all, s)
		wg.Go(s.run)
		<-time.After(apart)
	}
	return all, wg.Wait
}

func begunOf(all []*streamed) int {
	n := 0
	for _, s := range all {
		if s.begun() {
			n++
		}
	}
	return n
}

func allBegun(t *testing.T, all []*streamed) {
	t.Helper()
	harness.Eventually(t, time.Minute, "every stream has begun", func() error {
		if n := begunOf(all); n < len(all) {
			return fmt.Errorf("%d of %d", n, len(all))
		}
		return nil
	})
}

func TestFaultsAReplicaKilledUnder200Streams(t *testing.T) {
	gateway, es := engines(t, 3, "retry: {budget: 1}\n")
	// A first token takes a quarter of a second: of the last streams none has one.
	all, wait := startStreams(gateway, 200, 60, 3*time.Millisecond)
	begun := begunOf(all)
	es[1].Kill()
	wait()
	var lines map[string]accessLine
	harness.Eventually(t, faultSlack, "every request has its access line", func() error {
		if lines = accessLines(gateway.Log()); len(lines) < len(all) {
			return fmt.Errorf("%d of %d", len(lines), len(all))
		}
		return nil
	})
	whole, told, again := 0, 0, 0
	for _, s := range all {
		switch {
		case s.whole():
			whole++
		case s.cut("upstream_disconnected"):
			told++
		default:
			t.Errorf("neither whole nor told of an error: %v", s)
		}
		l := lines[s.id]
		if len(l.Retries) > 0 {
			again++
			if !s.whole() {
				t.Errorf("tried again after %v, and then: %v", l.Retries, s)
			}
		}
	}
	t.Logf("killed with %d of 200 streams begun: %d whole, %d told of the error, %d of the whole ones tried again elsewhere", begun, whole, told, again)
	if begun < 20 || begun > 195 || told == 0 || again == 0 {
		t.Errorf("the replica was killed with %d streams begun; %d were told, %d tried again: want some of each", begun, told, again)
	}
	harness.Eventually(t, faultSlack, "everything is given back", func() error { return atRest(gateway.Admin) })
}

func TestFaultsAFrozenReplica(t *testing.T) {
	gateway, es := engines(t, 2, "health: {interval: 500ms, timeout: 2s, unhealthy: 2}\ntimeouts: {first_token: 60s, idle: 4s}\n")
	long, waitLong := startStreams(gateway, 10, 4000, 0) // past their first byte when it freezes, and long after
	allBegun(t, long)
	es[1].Signal(syscall.SIGSTOP)
	defer es[1].Signal(syscall.SIGCONT)
	late, waitLate := startStreams(gateway, 20, 10, 0) // every second one is sent to it
	waitLate()
	for _, s := range late {
		if !s.whole() {
			t.Errorf("sent before the freeze was noticed: %v", s)
		}
	}
	harness.Eventually(t, time.Minute, "five streams are told", func() error {
		n := strings.Count(gateway.Log(), `"code":"stream_idle_timeout"`)
		if n != 5 {
			return fmt.Errorf("%d are", n)
		}
		return nil
	})
	es[1].Signal(syscall.SIGCONT)
	harness.Eventually(t, time.Minute, "it is taken back", func() error { return replicasUp(t, gateway, 2) })
	es[0].Kill() // the other five have run long enough
	waitLong()
	idle := 0
	for _, s := range long {
		if s.cut("stream_idle_timeout") {
			idle++
		} else if !s.cut("upstream_disconnected") {
			t.Errorf("got %v", s)
		}
	}
	if idle != 5 {
		t.Errorf("%d streams ended by the idle deadline, want the 5 on the frozen replica", idle)
	}
	harness.Eventually(t, faultSlack, "everything is given back", func() error { return atRest(gateway.Admin) })
}

// keep asks again and again, on one connection and on new ones, until told to
// stop, and reports the statuses that it got.
func keep(t *testing.T, gateway *harness.Process, stop <-chan struct{}) map[string]int {
	seen := map[string]int{}
	for fresh := false; ; fresh = !fresh {
		select {
		case <-stop:
			return seen
		case <-time.After(10 * time.Millisecond):
		}
		client := &http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{DisableKeepAlives: fresh}}
		resp, err := client.Post(gateway.URL+"/v1/chat/completions", "application/json",
			strings.NewReader(`{"model":"penstock-local","max_tokens":1,"messages":[{"role":"user","content":"hi"}]}`))
		if err != nil {
			if errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, io.EOF) {
				seen["gone"]++
				continue
			}
			t.Errorf("a new request: %v", err)
			return seen
		}
		b, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		client.CloseIdleConnections()
		seen[fmt.Sprintf("%d %s close=%v", resp.StatusCode, errorCode(b), resp.Close)]++
	}
}

func TestFaultsTermUnderLoad(t *testing.T) {
	gateway, _ := engines(t, 2, "")
	all, wait := startStreams(gateway, 80, 100, time.Millisecond)
	allBegun(t, all)
	stop := make(chan struct{})
	var seen map[string]int
	var wg sync.WaitGroup
	var stopped atomic.Bool
	began := time.Now()
	wg.Go(func() { gateway.Stop(); stopped.Store(true) }) // TERM; it fails the test unless the exit code is 0
	harness.Eventually(t, faultSlack, "readiness is false", func() error {
		resp, err := http.Get(gateway.URL + "/readyz")
		if err != nil {
			return err
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusServiceUnavailable {
			return errors.New(resp.Status)
		}
		return nil
	})
	wg.Go(func() { seen = keep(t, gateway, stop) })
	wait()
	close(stop)
	wg.Wait()
	for _, s := range all {
		if !s.whole() {
			t.Errorf("it ran when TERM came: %v", s)
		}
	}
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("it took %v to drain streams of a few seconds", took)
	}
	delete(seen, "gone") // after the last stream
	if n := seen["503 draining close=true"]; n == 0 || len(seen) != 1 {
		t.Errorf("new requests got %v, want 503 draining and a close, each of them", seen)
	}
}

func TestFaultsStreamsThatOutlastTheDrain(t *testing.T) {
	gateway, _ := engines(t, 2, "timeouts: {drain: 1s}\n")
	all, wait := startStreams(gateway, 40, 4000, time.Millisecond)
	allBegun(t, all)
	began := time.Now()
	gateway.Stop()
	if took := time.Since(began); took < time.Second || took > faultSlack {
		t.Errorf("ended %v after TERM, want a little more than timeouts.drain, 1s", took)
	}
	wait()
	for _, s := range all {
		if !s.cut("draining") {
			t.Errorf("got %v, want an event draining and a cut connection", s)
		}
	}
}

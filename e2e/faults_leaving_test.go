package e2e

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"penstock/e2e/faulty"
	"penstock/e2e/harness"
)

// othersOpen is how many streams are open while clients leave.
const othersOpen = 1000

// TestFaultsLeavingClients measures from a client's close to the close of its
// engine's connection, in each state in which the gateway waits, with 1,000
// other streams open. On a busy machine any process hears late of anything, so
// the same is measured through one that does nothing but pass bytes on.
func TestFaultsLeavingClients(t *testing.T) {
	if harness.Race {
		t.Skip("the bound is for a build without the race detector")
	}
	engine := faulty.Start(t, faulty.Serving("m", faulty.ByName(faulty.Matrix(bigEvent))))
	gateway := harness.Serve(t, fmt.Sprintf("models: [{name: m, engines: [{url: %q, kind: openai, max_running: 100000}]}]\nlog: {access: false}\n", engine.URL))
	plain := forwarder(t, engine.Addr)
	others := openStreams(t, gateway, othersOpen)
	defer func() {
		for _, w := range others {
			_ = w.Close()
		}
	}()
	for _, c := range []struct {
		name, fault string
		stream      bool
	}{
		{"before headers", "headers-never", true},
		{"before the first event", "first-token-never", true},
		{"between events", "silence-mid-stream", true},
		{"before a whole answer", "headers-never", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			const want = 25 * time.Millisecond
			for try := 1; ; try++ {
				through, passed := leavings(t, [2]string{gateway.URL, plain}, engine, c.fault, c.stream)
				t.Logf("client's close to engine's, p50 and p99 of 100, %d other streams open: %v, %v through the gateway; %v, %v through a plain forwarder",
					othersOpen, through[50], through[98], passed[50], passed[98])
				if through[98] <= want+passed[98] {
					return
				}
				if try == 4 {
					t.Fatalf("p99 %v, want at most %v beyond the %v of a plain forwarder", through[98], want, passed[98])
				}
			}
		})
	}
	for _, w := range others { // they have lost nothing by it
		_ = w.SetReadDeadline(time.Now().Add(time.Millisecond))
		if b, err := w.br.ReadByte(); err == nil || !strings.Contains(err.Error(), "timeout") {
			t.Fatalf("one of the other streams got %q, %v", b, err)
		}
	}
}

// openStreams opens that many streams, each past its first event.
func openStreams(t *testing.T, gateway *harness.Process, n int) []*wire {
	t.Helper()
	wires := make([]*wire, n)
	var wg sync.WaitGroup
	slots := make(chan struct{}, 50)
	for i := range wires {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			w := dialWire(t, gateway)
			w.write(chatRequest("HTTP/1.1", "", faultBody("silence-mid-stream", true)))
			for events := 0; events < 2; {
				line, err := w.br.ReadString('\n')
				if err != nil || strings.Contains(line, `"error"`) {
					t.Errorf("stream %d: %v %s", i, err, line)
					break
				}
				if strings.HasPrefix(line, "data: ") {
					events++
				}
			}
			_, _ = io.CopyN(io.Discard, w.br, int64(w.br.Buffered()))
			wires[i] = w
		})
	}
	wg.Wait()
	return wires
}

// leavings is how long after each of 100 clients' leaving the engine's
// connection is closed, in order, for both ways to the engine.
func leavings(t *testing.T, urls [2]string, engine *faulty.Server, fault string, stream bool) (first, second []time.Duration) {
	t.Helper()
	var took [2][]time.Duration
	for i := range 200 {
		before := engine.Count()
		w := dialWire(t, &harness.Process{URL: urls[i%2]})
		w.write(chatRequest("HTTP/1.1", "", faultBody(fault, stream)))
		for end := time.Now().Add(faultSlack); engine.Count() == before; <-time.After(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal("the engine does not get the request")
			}
		}
		if i%4 < 2 { // half of them leave at once, half when all have long settled
			<-time.After(20 * time.Millisecond)
		}
		left := time.Now()
		_ = w.Close()
		select {
		case at := <-engine.Gone():
			took[i%2] = append(took[i%2], at.Sub(left))
		case <-time.After(faultSlack):
			t.Fatalf("the engine's connection is open %v after the client left", faultSlack)
		}
	}
	slices.Sort(took[0])
	slices.Sort(took[1])
	return took[0], took[1]
}

// forwardTo is the environment variable by which the test binary is made a
// forwarder.
const forwardTo = "PENSTOCK_TEST_FORWARD_TO"

// forwarder starts a process that passes connections on to an address, and
// returns its own as a URL.
func forwarder(t *testing.T, addr string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestForwarder$")
	cmd.Env = append(os.Environ(), forwardTo+"="+addr)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return "http://" + strings.TrimSpace(line)
}

// TestForwarder is the process that forwarder starts, and else nothing.
func TestForwarder(t *testing.T) {
	addr := os.Getenv(forwardTo)
	if addr == "" {
		t.Skip("a helper of TestFaultsLeavingClients")
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	fmt.Println(ln.Addr())
	for {
		c, err := ln.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			up, err := net.Dial("tcp", addr)
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(up, c); _ = up.Close() }()
			_, _ = io.Copy(c, up)
		}()
	}
}

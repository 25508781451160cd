package capacity

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"testing"
	"time"

	"penstock/e2e/harness"
)

const config = `
models:
  - name: m
    policy: least_load
    queue: {max_length: 20000}
    engines: [{url: %q, kind: openai, max_running: 100000}]
log: {access: false}
`

// sizes are the idle and the active streams asked for, and for how long events
// are measured.
func sizes(t *testing.T) (idle, active int, hold time.Duration, full bool) {
	v := os.Getenv("PENSTOCK_CAPACITY")
	if v == "" {
		return 150, 50, 2 * time.Second, false
	}
	if _, err := fmt.Sscanf(v, "%d,%d", &idle, &active); err != nil {
		t.Fatalf("PENSTOCK_CAPACITY=%q: expected IDLE,ACTIVE, such as 8000,1000", v)
	}
	return idle, active, 20 * time.Second, true
}

func TestStreamsThatOneGatewayHolds(t *testing.T) {
	idle, active, hold, full := sizes(t)
	up := startRole(t, "engine", plan{})
	addr := up.line(t)
	gateway := harness.Serve(t, fmt.Sprintf(config, "http://"+addr))
	warm := startRole(t, "client", plan{URL: gateway.URL, Active: 20, Hold: time.Second})
	warm.result(t)
	warm.end()
	before := usageOf(t, gateway)

	client := startRole(t, "client", plan{URL: gateway.URL, Idle: idle, Active: active, Hold: hold})
	if got := client.line(t); got != "open" {
		t.Fatalf("the client says %q, want open", got)
	}
	start := usageOf(t, gateway)
	r := client.result(t)
	end := usageOf(t, gateway)
	n := idle + active
	t.Logf("%d idle and %d active streams: resident %.1f KiB a stream (%d MiB in all), heap and stacks in use %.1f KiB a stream",
		idle, active, perStream(before.resident, end.resident, n), end.resident>>20, perStream(before.inUse, end.inUse, n))
	t.Logf("%d events in %v: %.0f a second, %.1f µs of the gateway's processor each; late by p50 %v, p99 %v, at most %v",
		r.Events, hold, float64(r.Events)/hold.Seconds(), float64((end.cpu-start.cpu).Microseconds())/float64(max(1, r.Events)), r.P50, r.P99, r.Max)
	if r.Failed != 0 || r.Lost != 0 || r.Open != n {
		t.Errorf("%d streams open, %d failed, %d events lost, want %d, none, none", r.Open, r.Failed, r.Lost, n)
	}
	if kib := perStream(before.resident, end.resident, n); full && kib > 150 {
		t.Errorf("%.1f KiB a stream", kib)
	}
	client.end()
	harness.Eventually(t, 30*time.Second, "all are closed when their clients leave", func() error {
		return harness.AtRest(gateway.Admin)
	})
}

func perStream(before, after int64, n int) float64 { return float64(after-before) / 1024 / float64(n) }

// usage is what the gateway uses.
type usage struct {
	resident int64 // bytes
	inUse    int64 // bytes of heap and stacks
	cpu      time.Duration
}

func usageOf(t *testing.T, gateway *harness.Process) usage {
	t.Helper()
	page, err := harness.ReadMetrics(gateway.Admin)
	if err != nil {
		t.Fatal(err)
	}
	u := usage{
		resident: int64(page.Sum("process_resident_memory_bytes")),
		inUse:    int64(page.Sum("go_memstats_heap_inuse_bytes") + page.Sum("go_memstats_stack_inuse_bytes")),
		cpu:      time.Duration(page.Sum("process_cpu_seconds_total") * float64(time.Second)),
	}
	if u.resident == 0 || u.inUse == 0 {
		t.Fatalf("the metrics page tells no memory: %+v", u)
	}
	return u
}

// role is a process of the test binary that plays engine or client.
type role struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
}

func startRole(t *testing.T, name string, p plan) *role {
	t.Helper()
	raw, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestRole$")
	cmd.Env = append(os.Environ(), roleVariable+"="+name, planVariable+"="+string(raw))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	r := &role{cmd, in, bufio.NewScanner(out)}
	t.Cleanup(r.end)
	return r
}

// line is the next one that it writes.
func (r *role) line(t *testing.T) string {
	t.Helper()
	if !r.out.Scan() {
		t.Fatalf("it ended: %v", r.out.Err())
	}
	return r.out.Text()
}

// result is a client's report.
func (r *role) result(t *testing.T) (res result) {
	t.Helper()
	for {
		if err := json.Unmarshal([]byte(r.line(t)), &res); err == nil {
			return res
		}
	}
}

// end has it end, and waits for that.
func (r *role) end() {
	_ = r.in.Close()
	_ = r.cmd.Wait()
}

// Of a soft limit too low for the load nobody would hear before the streams do.
func TestDescriptorsAreRaisedAndReported(t *testing.T) {
	for hard, want := range map[string]string{ // Go stays one below the hard limit
		"6000": `msg="file descriptors" limit=(5999|6000) `, "500": `level=WARN msg="few file descriptors .* limit=(499|500) `,
	} {
		sh := harness.Program(t, "sh")
		cmd := exec.CommandContext(t.Context(), sh, "-c", fmt.Sprintf("ulimit -Sn 256 && ulimit -Hn %s && exec %s serve --listen 127.0.0.1:0 --admin 127.0.0.1:0", hard, harness.Binary(t)))
		stderr, err := cmd.StderrPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		found := make(chan bool, 1)
		go func() {
			for lines := bufio.NewScanner(stderr); lines.Scan(); {
				if regexp.MustCompile(want).MatchString(lines.Text()) {
					found <- true
				}
			}
			close(found)
		}()
		select {
		case ok := <-found:
			if !ok {
				t.Errorf("a hard limit of %s: no line %s", hard, want)
			}
		case <-time.After(time.Minute):
			t.Errorf("a hard limit of %s: no line %s within a minute", hard, want)
		}
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
}

package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"penstock/configs"
)

// childMode makes this test binary an engine, or a gateway with one.
const childMode = "PENSTOCK_TEST_CHILD"

func TestMain(m *testing.M) {
	switch mode := os.Getenv(childMode); mode {
	case "":
		// fasthttp's servers leave these two behind, up to ten seconds after their end.
		goleak.VerifyTestMain(m,
			goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.(*workerPool).Start.func2"),
			goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.updateServerDate.func1"))
	case "many":
		beMany()
	case "gateway":
		beGateway()
	default:
		beEngine(mode)
	}
}

// beEngine is the child: "serve --port N".
func beEngine(mode string) {
	switch mode {
	case "crash":
		for i := range 60 {
			fmt.Println("loading shard", i)
		}
		fmt.Fprintln(os.Stderr, "CUDA out of memory")
		os.Exit(3)
	case "silent":
		<-time.After(time.Hour)
	case "stubborn":
		signal.Ignore(syscall.SIGTERM)
	}
	f := bare(KindSGLang, 1)
	f.boot = os.Getpid()
	mux := http.NewServeMux()
	mux.Handle("/", f)
	mux.HandleFunc("/crash", func(http.ResponseWriter, *http.Request) { os.Exit(1) })
	mux.HandleFunc("/env", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, os.Getenv("CUDA_VISIBLE_DEVICES"), " ", os.Getenv("EXTRA"), " ", strings.Join(os.Args[1:], " "))
	})
	fmt.Println(http.ListenAndServe("127.0.0.1:"+os.Args[3], mux))
	os.Exit(4)
}

// beGateway launches an engine, says its port and waits to be killed.
func beGateway() {
	f := NewFleet(Options{})
	if err := f.Apply(context.Background(), launching(configs.Launch{Env: map[string]string{childMode: "ok"}})); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	if err := f.WaitKnown(context.Background()); err == nil {
		fmt.Println(f.Replicas()[0].URL())
	}
	<-time.After(time.Hour)
}

// launching is a configuration that launches this binary.
func launching(l configs.Launch) *configs.Config {
	self, _ := filepath.Abs(os.Args[0])
	if l.Command == "" {
		l.Command = self + " serve --port {port}"
	}
	l.Replicas = max(l.Replicas, 1)
	if l.StartTimeout == 0 {
		l.StartTimeout = 20 * time.Second
	}
	if l.StopTimeout == 0 {
		l.StopTimeout = 5 * time.Second
	}
	return quick(served("m", configs.Engine{Launch: &l}))
}

func mode(name string) map[string]string { return map[string]string{childMode: name} }

func fetch(t *testing.T, r *Replica, path string) string {
	t.Helper()
	c := &client{base: r.URL(), hc: http.DefaultClient}
	defer http.DefaultClient.CloseIdleConnections()
	b, err := c.get(t.Context(), path)
	if err != nil && path != "/crash" {
		t.Fatal(err)
	}
	return string(b)
}

func TestLaunchedEnginesServeAndAreRestarted(t *testing.T) {
	l := configs.Launch{
		Replicas: 2, Devices: []string{"0", "1", "2", "3"},
		Env: map[string]string{childMode: "ok", "EXTRA": "yes"},
	}
	l.Command = os.Args[0] + " serve --port {port} --index {index} --gpus {devices}"
	f, rec := startFleet(t, launching(l))
	if got := ids(f); got != "launch-0 launch-1" {
		t.Fatalf("replicas: got %s, want launch-0 launch-1", got)
	}
	r := replica(t, f, "launch-1")
	want := "2,3 yes serve --port " + strings.TrimPrefix(r.URL(), "http://127.0.0.1:") + " --index 1 --gpus 2,3"
	if got := fetch(t, r, "/env"); got != want || r.Source() != "launch" {
		t.Errorf("the second child's devices, environment and arguments: got %q, want %q", got, want)
	}
	fetch(t, r, "/crash")
	eventually(t, "the crashed child out", func() bool { return !r.Usable() })
	eventually(t, "the crashed child back", r.Usable)
	if rec.count(Restarted) != 1 || rec.count(Removed) != 0 {
		t.Errorf("events: got %d restarted, %d removed; want 1, 0", rec.count(Restarted), rec.count(Removed))
	}
}

func TestAnotherNumberOfChildrenLeavesTheOthersAlone(t *testing.T) {
	launch := func(n int, devices ...string) *configs.Config {
		return launching(configs.Launch{Replicas: n, Devices: devices, Env: mode("ok")})
	}
	f, _ := startFleet(t, launch(2, "0", "1"))
	first, second := replica(t, f, "launch-0"), replica(t, f, "launch-1")
	apply(t, f, launch(3, "0", "1", "2"))
	eventually(t, "a third child", func() bool { return len(f.Replicas()) == 3 && replica(t, f, "launch-2").Usable() })
	if f.Replicas()[0] != first || f.Replicas()[1] != second || !second.Usable() {
		t.Errorf("a third child: got %s, want the first two as they were", ids(f))
	}
	apply(t, f, launch(1, "0"))
	eventually(t, "one child", func() bool { return len(f.Replicas()) == 1 })
	if f.Replicas()[0] != first || !first.Usable() {
		t.Errorf("one child: got %s, want the first as it was", ids(f))
	}
	c := &client{base: second.URL(), hc: http.DefaultClient}
	eventually(t, "the second gone", func() bool { _, err := c.get(t.Context(), "/model_info"); return isRefused(err) })
	apply(t, f, launch(1, "1")) // another device is another child
	eventually(t, "a new child", func() bool { return len(f.Replicas()) == 1 && f.Replicas()[0] != first && f.Replicas()[0].Usable() })
	http.DefaultClient.CloseIdleConnections()
}

func TestChildIsStoppedWhenItsRequestsHaveEnded(t *testing.T) {
	cfg := launching(configs.Launch{Env: mode("ok")})
	f, _ := startFleet(t, cfg)
	old := f.Replicas()[0]
	work := old.Begin(false)
	apply(t, f, launching(configs.Launch{Env: map[string]string{childMode: "ok", "NEW": "1"}}))
	eventually(t, "the new child", func() bool { return f.Replicas()[0] != old && f.Replicas()[0].Usable() })
	if old.Usable() || fetch(t, old, "/model_info") != "{}" {
		t.Error("the old child: still usable, or gone with a request in flight")
	}
	work.End(true)
	c := &client{base: old.URL(), hc: http.DefaultClient}
	eventually(t, "the old child gone", func() bool { _, err := c.get(t.Context(), "/model_info"); return isRefused(err) })
	http.DefaultClient.CloseIdleConnections()
}

// logged collects a fleet's log.
type logged struct {
	mu sync.Mutex
	bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.Buffer.Write(p)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.Buffer.String()
}

func TestFailingChildShowsItsLastLines(t *testing.T) {
	var log, output logged
	f := NewFleet(Options{Logger: textLogger(&log), Output: &output})
	defer f.Close()
	if err := f.Apply(t.Context(), launching(configs.Launch{Env: mode("crash")})); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the child's end", func() bool { return strings.Contains(log.String(), "CUDA out of memory") })
	text := log.String()
	if n := strings.Count(text, "loading shard"); n != 49 || strings.Contains(text, "loading shard 10\"") {
		t.Errorf("lines shown before the last: got %d, want 49 of 60", n)
	}
	if !strings.Contains(text, "exit status 3") || !strings.Contains(text, "restart_in=1s") {
		t.Errorf("the log lacks the exit status or the pause:\n%s", text[:min(len(text), 800)])
	}
	if !strings.Contains(output.String(), "launch-0: loading shard 0\n") {
		t.Errorf("what the child printed was not passed on: %.200s", output.String())
	}
	eventually(t, "a second attempt, after a longer pause", func() bool { return strings.Contains(log.String(), "restart_in=2s") })
}

func TestSilentChildIsRestarted(t *testing.T) {
	var log logged
	f := NewFleet(Options{Logger: textLogger(&log)})
	defer f.Close()
	if err := f.Apply(t.Context(), launching(configs.Launch{Env: mode("silent"), StartTimeout: 300 * time.Millisecond})); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the end of its start time", func() bool {
		return strings.Contains(log.String(), "did not answer within start_timeout (300ms)")
	})
}

func TestStubbornChildIsKilled(t *testing.T) {
	f, _ := startFleet(t, launching(configs.Launch{Env: mode("stubborn"), StopTimeout: 200 * time.Millisecond}))
	r := f.Replicas()[0]
	begun := time.Now()
	f.Close()
	if d := time.Since(begun); d < 200*time.Millisecond || d > 4*time.Second {
		t.Errorf("Close took %v, want the stop_timeout of 200ms and little more", d)
	}
	c := &client{base: r.URL(), hc: http.DefaultClient}
	if _, err := c.get(t.Context(), "/model_info"); !isRefused(err) {
		t.Errorf("the killed child: got %v, want its port closed", err)
	}
}

func TestPreflightStopsALaunchBeforeAnythingStarts(t *testing.T) {
	started := filepath.Join(t.TempDir(), "started")
	serve := program(t, `case "$*" in *--help*) echo "usage: serve [-h] [--port PORT] [--max-bs-decode N] [--max-bs-prefill N]";; *) touch `+started+`;; esac`)
	f := NewFleet(Options{})
	defer f.Close()
	err := f.Apply(t.Context(), launching(configs.Launch{Command: serve + " --port {port} --max-bs 4", Preflight: true}))
	if err == nil || !strings.Contains(err.Error(), "could be --max-bs-decode or --max-bs-prefill") {
		t.Errorf("Apply: got %v, want the two candidates", err)
	}
	if _, err := os.Stat(started); !errors.Is(err, os.ErrNotExist) {
		t.Error("the command was started")
	}
}

func TestChildDoesNotOutliveAKilledGateway(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the parent-death signal is Linux'")
	}
	gateway := exec.Command(os.Args[0])
	gateway.Env = append(os.Environ(), childMode+"=gateway")
	out, err := gateway.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := gateway.Start(); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 200)
	n, _ := out.Read(buf)
	url := strings.TrimSpace(string(buf[:n]))
	c := &client{base: url, hc: http.DefaultClient}
	defer http.DefaultClient.CloseIdleConnections()
	if _, err := c.get(t.Context(), "/model_info"); err != nil {
		t.Errorf("the child at %q: %v", url, err)
	}
	_ = gateway.Process.Kill()
	_ = gateway.Wait()
	eventually(t, "the child gone", func() bool { _, err := c.get(t.Context(), "/model_info"); return isRefused(err) })
}

func TestPoolsAreNumberedOn(t *testing.T) {
	used := map[string]bool{"local-1": true}
	for _, tt := range []struct {
		id   string
		n    int
		want []string
	}{
		{"", 2, []string{"local-0", "local-2"}},
		{"", 2, []string{"local-3", "local-4"}},
		{"gpu", 1, []string{"gpu"}},
		{"gpu", 2, []string{"gpu-0", "gpu-1"}},
	} {
		if got := poolIDs(tt.id, "local", tt.n, used); !slices.Equal(got, tt.want) {
			t.Errorf("ids of %d with id %q: got %v, want %v", tt.n, tt.id, got, tt.want)
		}
	}
}

func TestPoolsAreNumberedAroundWhatTheFileNames(t *testing.T) {
	a, b := newFake(t, KindSGLang, 1), newFake(t, KindSGLang, 1)
	pool := configs.Engine{Local: &configs.LocalPool{Replicas: 2, TimeScale: 1}}
	for name, tt := range map[string]struct {
		engines []configs.Engine
		want    string
	}{
		"named before": {[]configs.Engine{{URL: a.URL, ID: "local-0"}, pool}, "local-0 local-1 local-2"},
		"named after":  {[]configs.Engine{pool, {URL: a.URL, ID: "local-0"}, {URL: b.URL, ID: "local-2"}}, "local-1 local-3 local-0 local-2"},
	} {
		f := NewFleet(Options{})
		if err := f.Apply(t.Context(), quick(served("m", tt.engines...))); err != nil || ids(f) != tt.want {
			t.Errorf("%s: got %q, %v; want %q", name, ids(f), err, tt.want)
		}
		f.Close()
	}
}

func TestFreePortsDiffer(t *testing.T) {
	used := make(map[string]bool)
	for range 8 {
		if _, err := childPort(0, 0, used); err != nil {
			t.Fatal(err)
		}
	}
	if len(used) != 8 {
		t.Errorf("free ports for 8 children: got %v, want 8 different ones", used)
	}
	if got, _ := childPort(30000, 2, used); got != 30002 {
		t.Errorf("the third port from 30000: got %d", got)
	}
}

func TestCloseDoesNotWaitForAPreflight(t *testing.T) {
	asked := filepath.Join(t.TempDir(), "asked")
	slow := program(t, "touch "+asked+"; sleep 60")
	f := NewFleet(Options{})
	applied := make(chan error, 1)
	go func() {
		applied <- f.Apply(context.Background(), launching(configs.Launch{Command: slow + " --port {port}", Preflight: true}))
	}()
	eventually(t, "the preflight begun", func() bool { _, err := os.Stat(asked); return err == nil })
	begun := time.Now()
	f.Close()
	if err := <-applied; err == nil || time.Since(begun) > 5*time.Second {
		t.Errorf("Apply during Close: got %v after %v, want an error soon", err, time.Since(begun))
	}
}

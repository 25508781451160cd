package harness

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// startTimeout is generous: the machine may be compiling something else.
const startTimeout = 60 * time.Second

// stopTimeout is the default drain of 25 s and a little.
const stopTimeout = 40 * time.Second

// Process is a penstock command that runs until the test ends.
type Process struct {
	URL   string // of the client listener, or of the engine
	Admin string // of the admin listener; "" for an engine
	// Config is the gateway's configuration file; "" where there is none.
	Config string

	t       testing.TB
	cmd     *exec.Cmd
	log     *tail
	done    chan struct{} // closed when it has exited
	stopped sync.Once
}

// Serve starts a gateway. config is its YAML, without listeners; "" means none
// (four local replicas). args are further flags.
func Serve(t testing.TB, config string, args ...string) *Process {
	t.Helper()
	listen, admin := FreeAddr(t), FreeAddr(t)
	line := []string{"serve", "--listen", listen, "--admin", admin}
	file := ""
	if config != "" {
		file = ConfigFile(t, config)
		line = append(line, "--config", file)
	}
	p := start(t, append(line, args...)...)
	p.Config = file
	p.URL, p.Admin = "http://"+listen, "http://"+admin
	p.ready(p.URL + "/readyz")
	return p
}

// Engine starts a local engine as a process of its own.
func Engine(t testing.TB, args ...string) *Process {
	t.Helper()
	return EngineAt(t, FreeAddr(t), args...)
}

// EngineAt starts one on an address: where another was killed, say.
func EngineAt(t testing.TB, listen string, args ...string) *Process {
	t.Helper()
	p := start(t, append([]string{"engine", "--listen", listen}, args...)...)
	p.URL = "http://" + listen
	p.ready(p.URL + "/health")
	return p
}

// ConfigFile writes a configuration into the test's own folder.
func ConfigFile(t testing.TB, config string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "penstock.yaml")
	if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// FreeAddr is a loopback address that nothing listened on a moment ago. Its port
// is below those that the kernel gives to outgoing connections and to listeners
// that ask for any: none of those takes it before the process does.
func FreeAddr(t testing.TB) string {
	t.Helper()
	for range 100 {
		addr := fmt.Sprintf("127.0.0.1:%d", 10000+rand.IntN(22000))
		if ln, err := net.Listen("tcp", addr); err == nil {
			ln.Close()
			return addr
		}
	}
	t.Fatal("no free port among a hundred")
	return ""
}

func start(t testing.TB, args ...string) *Process {
	t.Helper()
	p := &Process{t: t, log: &tail{}, done: make(chan struct{})}
	p.cmd = exec.Command(Binary(t), args...)
	p.cmd.Stdout, p.cmd.Stderr = p.log, p.log
	// Children never survive a test binary that is killed.
	p.cmd.SysProcAttr = childAttr()
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = p.cmd.Wait()
		close(p.done)
	}()
	t.Cleanup(func() {
		p.Stop()
		if t.Failed() {
			t.Logf("penstock %s wrote at last:\n%s", strings.Join(args, " "), lastLines(p.log.String(), 60))
		}
	})
	return p
}

func (p *Process) ready(url string) {
	p.t.Helper()
	gone := errors.New("exited")
	err := poll(startTimeout, func() error {
		select {
		case <-p.done:
			return nil
		default:
			return answers(url)
		}
	})
	select {
	case <-p.done:
		err = gone
	default:
	}
	if err != nil {
		p.t.Fatalf("penstock %s is not ready: %v\n%s", strings.Join(p.cmd.Args[1:], " "), err, p.log.String())
	}
}

// Stop asks the process to end and fails the test if it does not end well.
func (p *Process) Stop() {
	p.stopped.Do(func() {
		_ = p.cmd.Process.Signal(syscall.SIGTERM)
		limit := time.NewTimer(stopTimeout)
		defer limit.Stop()
		select {
		case <-p.done:
			if code := p.cmd.ProcessState.ExitCode(); code != 0 {
				p.t.Errorf("penstock exited with %d (%v) after TERM, want 0", code, p.cmd.ProcessState)
			}
		case <-limit.C:
			p.t.Errorf("penstock did not end within %v of TERM", stopTimeout)
			_ = p.cmd.Process.Kill()
			<-p.done
		}
	})
}

// Kill ends the process at once, as a crash does.
func (p *Process) Kill() {
	p.stopped.Do(func() {
		_ = p.cmd.Process.Kill()
		<-p.done
	})
}

// Signal sends a signal: SIGHUP to reload, SIGSTOP and SIGCONT to freeze and thaw.
func (p *Process) Signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatalf("signal %v: %v", s, err)
	}
}

// lastLines are the last n lines of a text.
func lastLines(text string, n int) string {
	lines := strings.SplitAfter(text, "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "")
}

// Log is what the process has written so far, the last MiB of it.
func (p *Process) Log() string { return p.log.String() }

// PID is the process' id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Run runs a penstock command that ends by itself and returns its output and
// exit code.
func Run(t testing.TB, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), Binary(t), args...)
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	err := cmd.Run()
	if _, exited := errors.AsType[*exec.ExitError](err); err != nil && !exited {
		t.Fatal(fmt.Errorf("%v: %w", cmd.Args, err))
	}
	return out.String(), errOut.String(), cmd.ProcessState.ExitCode()
}

// tail keeps the last part of what is written to it.
type tail struct {
	mu  sync.Mutex
	buf []byte
}

const tailSize = 1 << 20

func (w *tail) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.buf = append(w.buf, b...)
	if extra := len(w.buf) - tailSize; extra > tailSize {
		w.buf = append(w.buf[:0], w.buf[extra:]...)
	}
	return len(b), nil
}

func (w *tail) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return string(w.buf[max(0, len(w.buf)-tailSize):])
}

// Background runs another program until the test ends; what it writes is shown
// when the test fails.
func Background(t testing.TB, program string, args ...string) {
	t.Helper()
	log := &tail{}
	cmd := exec.Command(program, args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = childAttr()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("%s wrote:\n%s", program, log.String())
		}
	})
}

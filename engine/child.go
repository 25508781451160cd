package engine

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"penstock/configs"
)

// Restarts of a child: at once after it has run for a while, else after longer
// and longer.
const (
	firstRestart = time.Second
	lastRestart  = time.Minute
	steadyRun    = time.Minute
	keptLines    = 50
	portRecheck  = 200 * time.Millisecond
)

// child is one engine run as a process of ours.
type child struct {
	id     string
	argv   []string
	env    []string
	port   int
	launch configs.Launch
	log    *slog.Logger
	lines  *lineKeeper

	up    func() bool         // whether it answers
	ended func(reason string) // told when it has ended
}

// newChild makes the index-th child of a launch.
func newChild(l configs.Launch, index, port int, id string, log *slog.Logger, output io.Writer) (*child, error) {
	words, err := l.Words()
	if err != nil {
		return nil, fmt.Errorf("launch.command: %w", err)
	}
	fill := strings.NewReplacer("{port}", strconv.Itoa(port), "{index}", strconv.Itoa(index), "{devices}", devicesOf(l, index))
	for i := range words {
		words[i] = fill.Replace(words[i])
	}
	return &child{
		id: id, argv: words, env: launchEnv(l, index), port: port, launch: l, log: log,
		lines: &lineKeeper{prefix: id + ": ", to: output},
	}, nil
}

// launchEnv is what a child's environment has besides ours.
func launchEnv(l configs.Launch, index int) []string {
	var env []string
	for name, value := range l.Env {
		env = append(env, name+"="+value)
	}
	if len(l.Devices) > 0 {
		env = append(env, "CUDA_VISIBLE_DEVICES="+devicesOf(l, index))
	}
	return env
}

// devicesOf deals the devices out in order, the same number to each child.
func devicesOf(l configs.Launch, index int) string {
	each := len(l.Devices) / max(l.Replicas, 1)
	if each == 0 {
		return ""
	}
	return strings.Join(l.Devices[index*each:(index+1)*each], ",")
}

// run keeps the child running until the context ends, then stops it.
func (c *child) run(ctx context.Context) {
	// The kernel sends the parent-death signal when the thread that forked
	// ends, so this goroutine keeps its own.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	pause := firstRestart
	for ctx.Err() == nil {
		if !c.waitPort(ctx) {
			return
		}
		begun := time.Now()
		err := c.once(ctx)
		if ctx.Err() != nil {
			return
		}
		if time.Since(begun) >= steadyRun {
			pause = firstRestart
		}
		c.report(err, pause)
		sleepFor(ctx, pause)
		pause = min(2*pause, lastRestart)
	}
}

// waitPort waits until the child's port is free: after a reload the one before
// may still be finishing its requests.
func (c *child) waitPort(ctx context.Context) bool {
	addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(c.port))
	for said := false; ; said = true {
		ln, err := net.Listen("tcp", addr)
		if err == nil {
			ln.Close()
			return true
		}
		if !said {
			c.log.Warn("launch waits for its port", "child", c.id, "port", c.port, "error", err)
		}
		if !sleepFor(ctx, portRecheck) {
			return false
		}
	}
}

// once runs it from start to end.
func (c *child) once(ctx context.Context) error {
	cmd := exec.Command(c.argv[0], c.argv[1:]...)
	cmd.Env = append(os.Environ(), c.env...)
	cmd.Stdout, cmd.Stderr = c.lines, c.lines
	cmd.WaitDelay = 2 * time.Second // a grandchild may hold the pipes
	ownGroup(cmd)
	if err := cmd.Start(); err != nil {
		return err
	}
	c.log.Info("engine launched", "child", c.id, "pid", cmd.Process.Pid, "port", c.port)
	done := make(chan struct{})
	var guard sync.WaitGroup
	var late error
	guard.Go(func() { late = c.guard(ctx, cmd.Process.Pid, done) })
	err := cmd.Wait()
	close(done)
	guard.Wait()
	_ = killGroup(cmd.Process.Pid) // what it has left behind
	if ctx.Err() == nil {
		c.ended(fmt.Sprintf("its process ended: %v", cmd.ProcessState))
	}
	if late != nil {
		return late
	}
	if err == nil {
		err = fmt.Errorf("it ended by itself")
	}
	return err
}

// guard stops a running child when the context ends (TERM, then KILL), or when
// it does not answer within its start time.
func (c *child) guard(ctx context.Context, pid int, done <-chan struct{}) error {
	deadline := time.Now().Add(c.launch.StartTimeout)
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	starting := true
	for {
		select {
		case <-done:
			return nil
		case <-ctx.Done():
			c.stop(pid, done)
			return nil
		case now := <-tick.C:
			if !starting {
				continue
			}
			if c.up() {
				starting = false
				tick.Stop()
			} else if now.After(deadline) {
				c.stop(pid, done)
				return fmt.Errorf("it did not answer within start_timeout (%v)", c.launch.StartTimeout)
			}
		}
	}
}

func (c *child) stop(pid int, done <-chan struct{}) {
	_ = endGroup(pid)
	t := time.NewTimer(c.launch.StopTimeout)
	defer t.Stop()
	select {
	case <-done:
	case <-t.C:
		c.log.Warn("engine did not end in time and is killed", "child", c.id, "stop_timeout", c.launch.StopTimeout)
		_ = killGroup(pid)
	}
}

// report shows why a child failed, with its last lines.
func (c *child) report(err error, pause time.Duration) {
	c.log.Error("launched engine failed", "child", c.id, "error", err, "restart_in", pause, "program", c.argv[0], "hint", "its last lines follow; the whole command is launch.command of the configuration")
	for _, line := range c.lines.take() {
		c.log.Error("| "+line, "child", c.id)
	}
}

func sleepFor(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// lineKeeper keeps the last lines written to it and passes them on. It is safe
// for concurrent use.
type lineKeeper struct {
	prefix string
	to     io.Writer // nil: nowhere

	mu   sync.Mutex
	last []string
	part []byte // a line without its end
}

// maxLine bounds one kept line.
const maxLine = 4096

func (k *lineKeeper) Write(p []byte) (int, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	n := len(p)
	for len(p) > 0 {
		i := bytes.IndexAny(p, "\n\r") // progress bars end their lines with \r
		if i < 0 {
			k.part = append(k.part, p...)
			if len(k.part) > maxLine {
				k.end()
			}
			break
		}
		k.part = append(k.part, p[:i]...)
		p = p[i+1:]
		k.end()
	}
	return n, nil
}

func (k *lineKeeper) end() {
	line := string(k.part[:min(len(k.part), maxLine)])
	k.part = k.part[:0]
	if strings.TrimSpace(line) == "" {
		return
	}
	k.last = append(k.last, line)
	if over := len(k.last) - keptLines; over > 0 {
		k.last = append(k.last[:0], k.last[over:]...)
	}
	if k.to != nil {
		_, _ = io.WriteString(k.to, k.prefix+line+"\n")
	}
}

// take returns the kept lines and forgets them.
func (k *lineKeeper) take() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.part) > 0 {
		k.end()
	}
	lines := k.last
	k.last = nil
	return lines
}

package e2e

import (
	"context"
	"io"
	"net"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"penstock/e2e/harness"
)

// redisServer is a real Redis of the test's own, without persistence.
type redisServer struct {
	t      *testing.T
	binary string
	addr   string
	cmd    *exec.Cmd
}

func startRedis(t *testing.T) *redisServer {
	t.Helper()
	s := &redisServer{t: t, binary: harness.Program(t, "redis-server"), addr: harness.FreeAddr(t)}
	s.start()
	t.Cleanup(s.stop)
	return s
}

// start starts it, or starts it again with nothing in it.
func (s *redisServer) start() {
	s.t.Helper()
	_, port, _ := strings.Cut(s.addr, ":")
	s.cmd = exec.Command(s.binary, "--port", port, "--save", "", "--appendonly", "no", "--dir", s.t.TempDir(), "--loglevel", "warning")
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := s.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	harness.Eventually(s.t, 20*time.Second, "redis answers", func() error { return s.client().Ping(s.t.Context()).Err() })
}

// stop ends it as a crash does.
func (s *redisServer) stop() {
	if s.cmd == nil {
		return
	}
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait()
	s.cmd = nil
}

func (s *redisServer) signal(sig syscall.Signal) {
	if err := s.cmd.Process.Signal(sig); err != nil {
		s.t.Fatal(err)
	}
}

// client is for the test's own commands.
func (s *redisServer) client() *redis.Client {
	c := redis.NewClient(&redis.Options{Addr: s.addr})
	s.t.Cleanup(func() { _ = c.Close() })
	return c
}

func (s *redisServer) do(args ...any) {
	s.t.Helper()
	if err := s.client().Do(context.Background(), args...).Err(); err != nil {
		s.t.Fatalf("redis %v: %v", args, err)
	}
}

// slowLink forwards connections to a server and can hold up what is sent to it.
type slowLink struct {
	addr  string
	delay atomic.Int64 // nanoseconds, for each read of the client's
}

func newSlowLink(t *testing.T, target string) *slowLink {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := &slowLink{addr: ln.Addr().String()}
	var open sync.Map
	t.Cleanup(func() {
		ln.Close()
		open.Range(func(c, _ any) bool { return c.(net.Conn).Close() == nil || true })
	})
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			open.Store(c, nil)
			go l.forward(c, target)
		}
	}()
	return l
}

func (l *slowLink) forward(c net.Conn, target string) {
	defer c.Close()
	up, err := net.Dial("tcp", target)
	if err != nil {
		return
	}
	defer up.Close()
	go func() {
		defer c.Close()
		_, _ = io.Copy(c, up)
	}()
	buf := make([]byte, 64<<10)
	for {
		n, err := c.Read(buf)
		if err != nil {
			return
		}
		if d := l.delay.Load(); d > 0 {
			<-time.After(time.Duration(d))
		}
		if _, err := up.Write(buf[:n]); err != nil {
			return
		}
	}
}

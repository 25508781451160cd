package limits

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"penstock/configs"
)

// redisBinary finds a Redis server. Where there is none, CI installs Debian's;
// elsewhere the test is skipped.
var redisBinary = sync.OnceValues(func() (string, error) {
	look := func() (string, error) {
		for _, name := range []string{"redis-server", "valkey-server"} {
			if path, err := exec.LookPath(name); err == nil {
				return path, nil
			}
		}
		return "", exec.ErrNotFound
	}
	if path, err := look(); err == nil || os.Getenv("CI") != "true" {
		return path, err
	}
	if out, err := exec.Command("apt-get", "install", "-y", "redis-server").CombinedOutput(); err != nil {
		return "", fmt.Errorf("apt-get install redis-server: %w: %s", err, out)
	}
	return look()
})

// redisServer is a real Redis of the test's own.
type redisServer struct {
	t    testing.TB
	args []string
	port string
	cmd  *exec.Cmd
}

// startRedis starts a Redis without persistence on a free port.
func startRedis(t testing.TB, args ...string) *redisServer {
	t.Helper()
	binary, err := redisBinary()
	if err != nil && os.Getenv("CI") != "true" {
		t.Skip("no redis-server on PATH: apt-get install redis-server")
	}
	if err != nil {
		t.Fatalf("no redis-server: %v", err)
	}
	s := &redisServer{t: t, port: freePort(t)}
	s.args = append([]string{binary, "--port", s.port, "--save", "", "--appendonly", "no", "--dir", t.TempDir(), "--loglevel", "warning"}, args...)
	s.start()
	t.Cleanup(s.kill)
	return s
}

// freePort is one below those that the kernel gives away by itself.
func freePort(t testing.TB) string {
	for range 100 {
		port := strconv.Itoa(10000 + rand.IntN(12000)) // a cluster needs the one 10000 above, too
		if ln, err := net.Listen("tcp", "127.0.0.1:"+port); err == nil {
			ln.Close()
			return port
		}
	}
	t.Fatal("no free port among a hundred")
	return ""
}

func (s *redisServer) addr() string { return "127.0.0.1:" + s.port }

func (s *redisServer) start() {
	s.t.Helper()
	s.cmd = exec.Command(s.args[0], s.args[1:]...)
	s.cmd.Stderr = os.Stderr
	if err := s.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	eventually(s.t, "redis answers", func() bool {
		c, err := net.DialTimeout("tcp", s.addr(), time.Second)
		if err != nil {
			return false
		}
		return c.Close() == nil
	})
}

func (s *redisServer) kill() {
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

// client is for the test's own looks into Redis.
func (s *redisServer) client() *redis.Client {
	c := redis.NewClient(&redis.Options{Addr: s.addr()})
	s.t.Cleanup(func() { _ = c.Close() })
	return c
}

// eventually polls a condition; it fails the test after ten seconds.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("after 10 s still not: %s", what)
		}
		<-time.After(5 * time.Millisecond)
	}
}

// redisLimiter is a gateway's Limiter on the given Redis.
func redisLimiter(t testing.TB, addr string, change ...func(*Options)) *Limiter {
	t.Helper()
	o := Options{Redis: configs.Redis{URL: "redis://" + addr, Timeout: 50 * time.Millisecond, Prefix: "test", OnError: "local"}}
	for _, c := range change {
		c(&o)
	}
	l, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		_ = l.Close(ctx)
	})
	return l
}

// playedLimiter keeps its buckets in Redis by the time that it is told, and
// settles when the test says so: the worker does not run.
func playedLimiter(t testing.TB, addr, prefix string) *Limiter {
	t.Helper()
	o := Options{Redis: configs.Redis{URL: "redis://" + addr, Timeout: 5 * time.Second, Prefix: prefix}, Gateway: "gw"}
	l, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	if l.redis, err = newRedisStore(l, o); err != nil {
		t.Fatal(err)
	}
	l.redis.played = true
	l.mode.Store(uint32(ModeRedis))
	t.Cleanup(func() { _ = l.redis.client.Close() })
	return l
}

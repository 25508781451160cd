package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

// target is what the load goes to.
type target struct {
	name   string
	whole  string   // address for whole answers
	events string   // address for streams, where it differs: buffering off
	proc   *process // nil: the upstream itself
	admin  string   // of penstock
}

func (t *target) addr(streamed bool) string {
	if streamed {
		return cmp.Or(t.events, t.whole)
	}
	return t.whole
}

// target starts what a name stands for.
func (l *lab) target(ctx context.Context, name string) ([]*target, error) {
	var ts []*target
	var err error
	switch name {
	case "direct":
		return []*target{{name: name, whole: l.upstreams[0]}}, nil
	case "nginx":
		ts, err = l.nginx()
	case "haproxy":
		ts, err = l.haproxy()
	case "floor":
		ts, err = l.floor()
	case "penstock":
		for _, b := range l.builds() {
			t, err := l.penstock(b, b[0], true)
			if err != nil {
				return nil, err
			}
			ts = append(ts, t)
		}
	case "bare":
		var t *target
		t, err = l.penstock(l.builds()[0], name, false)
		ts = []*target{t}
	default:
		ts, err = l.peer(ctx, name)
	}
	if err != nil {
		return nil, err
	}
	for _, t := range ts {
		if err := waitAnswer(ctx, t); err != nil {
			return nil, fmt.Errorf("%w; it wrote at last: %s", err, t.proc.lastWords())
		}
	}
	return ts, nil
}

// builds are the binaries of penstock by name.
func (l *lab) builds() [][2]string {
	var all [][2]string
	for part := range strings.SplitSeq(l.o.penstock, ",") {
		name, path, ok := strings.Cut(part, "=")
		if !ok {
			name, path = "penstock", part
		}
		all = append(all, [2]string{name, path})
	}
	return all
}

// apiKey is the client's, and sent to every target alike.
const apiKey = "sk-bench-0123456789abcdef0123456789abcdef"

// penstock runs with everything on (a key with every limit, access log,
// metrics), or with keys, limits and access log off.
func (l *lab) penstock(build [2]string, name string, full bool) (*target, error) {
	t := &target{name: name, whole: freeAddr(), admin: freeAddr()}
	var b strings.Builder
	fmt.Fprintf(&b, "listen: %s\nadmin: {listen: %s}\nmodels:\n  - name: bench\n    policy: prefix\n    engines:\n", t.whole, t.admin)
	for _, u := range l.upstreams {
		fmt.Fprintf(&b, "      - {url: 'http://%s', kind: openai, max_running: 100000, kv_tokens: 2000000}\n", u)
	}
	if full {
		b.WriteString("keys:\n  - name: bench\n    key: ${BENCH_KEY}\n    limits: {requests_per_minute: 1000000000, tokens_per_minute: 1000000000000, concurrency: 100000}\nlog: {format: json, access: true}\n")
	} else {
		b.WriteString("log: {format: json, access: false}\n")
	}
	fmt.Fprintln(&b, l.o.extra)
	path := l.path(name + ".yaml")
	if err := os.WriteFile(path, []byte(b.String()), 0o600); err != nil {
		return nil, err
	}
	var err error
	t.proc, err = l.spawn([]string{"BENCH_KEY=" + apiKey}, build[1], "serve", "--config", path)
	return t, err
}

// nginx runs two servers: one that buffers answers, as it does by default, and
// one that does not, for streams. It writes no access log.
func (l *lab) nginx() ([]*target, error) {
	whole, events := freeAddr(), freeAddr()
	server := func(addr, more string) string {
		return fmt.Sprintf("server { listen %s; location / { proxy_pass http://up; proxy_http_version 1.1; proxy_set_header Connection ''; %s } }\n", addr, more)
	}
	conf := fmt.Sprintf(`daemon off; worker_processes %d; pid %s; error_log stderr; worker_rlimit_nofile 16384;
events { worker_connections 8192; }
http {
access_log off; client_max_body_size 64m; client_body_buffer_size 1m; keepalive_requests 100000000; proxy_read_timeout 600s;
client_body_temp_path %s; proxy_temp_path %[3]s; fastcgi_temp_path %[3]s; uwsgi_temp_path %[3]s; scgi_temp_path %[3]s;
upstream up { server %s; keepalive 2048; keepalive_requests 100000000; }
%s%s}
`, runtime.NumCPU(), l.path("nginx.pid"), l.path("nginx-tmp"), l.upstreams[0], server(whole, ""), server(events, "proxy_buffering off;"))
	path := l.path("nginx.conf")
	if err := os.WriteFile(path, []byte(conf), 0o644); err != nil {
		return nil, err
	}
	_ = os.Chmod(l.dir, 0o755) // the workers are another user
	binary, err := find("nginx")
	if err != nil {
		return nil, err
	}
	p, err := l.spawn(nil, binary, "-c", path, "-p", l.dir)
	return []*target{{name: "nginx", whole: whole, events: events, proc: p}}, err
}

func (l *lab) haproxy() ([]*target, error) {
	addr := freeAddr()
	conf := fmt.Sprintf(`global
  nbthread %d
  maxconn 8000
defaults
  mode http
  timeout connect 2s
  timeout client 600s
  timeout server 600s
  option http-no-delay
frontend in
  bind %s
  default_backend up
backend up
  http-reuse always
  server s1 %s
`, runtime.NumCPU(), addr, l.upstreams[0])
	path := l.path("haproxy.cfg")
	if err := os.WriteFile(path, []byte(conf), 0o644); err != nil {
		return nil, err
	}
	binary, err := find("haproxy")
	if err != nil {
		return nil, err
	}
	p, err := l.spawn(nil, binary, "-db", "-f", path)
	return []*target{{name: "haproxy", whole: addr, proc: p}}, err
}

func (l *lab) floor() ([]*target, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	addr := freeAddr()
	p, err := l.spawn(nil, self, "-floor", addr, "-to", l.upstreams[0])
	return []*target{{name: "floor", whole: addr, proc: p}}, err
}

// find looks where distributions put servers too.
func find(name string) (string, error) {
	if path, err := exec.LookPath(name); err == nil {
		return path, nil
	}
	for _, dir := range []string{"/usr/sbin", "/usr/local/sbin"} {
		path := filepath.Join(dir, name)
		if _, err := os.Stat(path); err == nil {
			return path, nil
		}
	}
	return "", errors.New("not installed; e2e/bench/run.sh installs it")
}

func freeAddr() string {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err) // no loopback: nothing can be measured
	}
	defer ln.Close()
	return ln.Addr().String()
}

// startTimeout is that of the slowest target, a Python process.
const startTimeout = 90 * time.Second

func waitFor(ctx context.Context, addr string) error {
	return poll(ctx, func() error {
		c, err := net.DialTimeout("tcp", addr, time.Second)
		if err == nil {
			_ = c.Close()
		}
		return err
	})
}

// waitAnswer waits until the target answers as the upstream does.
// errEnded is what no waiting helps against.
var errEnded = errors.New("the process ended")

func waitAnswer(ctx context.Context, t *target) error {
	return poll(ctx, func() error {
		c, err := dial(t.whole)
		if err != nil {
			if t.proc.ended() {
				return errEnded
			}
			return err
		}
		defer c.close()
		_, err = c.whole(newBody(shape{}).next(0))
		return err
	})
}

func poll(ctx context.Context, try func() error) error {
	var err error
	for end := time.Now().Add(startTimeout); time.Now().Before(end) && ctx.Err() == nil; {
		if err = try(); err == nil || errors.Is(err, errEnded) {
			return err
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
		}
	}
	return cmp.Or(ctx.Err(), err)
}

package relay

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"sync"
	"time"
)

// Upstream is the connections to one engine URL. It may be used by any number
// of goroutines at once.
//
// It is a pool of its own, and not fasthttp's HostClient, for three reasons: a
// dial of HostClient cannot be given up when the client leaves, its idle
// connections live up to twice as long as they are told to (beyond the engine's
// own 5 s), and its connections cannot be held in a struct.
type Upstream struct {
	relay  *Relay
	addr   string // host:port
	host   string // the Host header
	prefix string // path before every path
	auth   string // the Authorization header, or empty
	tls    *tls.Config
	dial   func(ctx context.Context, network, addr string) (net.Conn, error)

	mu     sync.Mutex
	idle   []*conn // the last one used last
	open   int     // idle and in use
	sweep  *time.Timer
	closed bool
}

// UpstreamOptions are one engine's.
type UpstreamOptions struct {
	// URL is http:// or https://, a host, a port (or the scheme's) and
	// optionally a path that precedes every path.
	URL string
	// TLS is how an https engine is verified and answered. nil: the system's roots.
	TLS *tls.Config
	// Key is sent as a bearer token, in place of the client's. Empty: none is sent.
	Key string
	// Dial replaces net.Dialer, for tests. TLS is spoken over what it returns.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
}

var errClosed = errors.New("the engine was removed")

// NewUpstream makes the connections to one engine; none is opened yet.
func (r *Relay) NewUpstream(o UpstreamOptions) (*Upstream, error) {
	u, err := url.Parse(o.URL)
	if err != nil {
		return nil, fmt.Errorf("engine URL: %w", err)
	}
	if (u.Scheme != "http" && u.Scheme != "https") || u.Hostname() == "" {
		return nil, fmt.Errorf("engine URL %q: expected http://host:port or https://host:port", o.URL)
	}
	up := &Upstream{relay: r, host: u.Host, prefix: strings.TrimRight(u.EscapedPath(), "/"), dial: o.Dial}
	port := u.Port()
	if u.Scheme == "https" {
		up.tls = tlsConfig(o.TLS, u.Hostname())
		port = withDefault(port, "443")
	}
	up.addr = net.JoinHostPort(u.Hostname(), withDefault(port, "80"))
	if o.Key != "" {
		up.auth = "Bearer " + o.Key
	}
	if up.dial == nil {
		d := &net.Dialer{KeepAlive: 15 * time.Second}
		up.dial = d.DialContext
	}
	up.sweep = time.AfterFunc(time.Hour, up.closeOld)
	up.sweep.Stop()
	return up, nil
}

func withDefault(s, d string) string {
	if s == "" {
		return d
	}
	return s
}

// tlsConfig is c, or an empty one, for a server of that name, speaking HTTP/1.1.
func tlsConfig(c *tls.Config, server string) *tls.Config {
	if c == nil {
		c = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	c = c.Clone()
	if c.ServerName == "" {
		c.ServerName = server
	}
	c.NextProtos = []string{"http/1.1"}
	return c
}

// Addr is the engine's host:port, for logs.
func (u *Upstream) Addr() string { return u.addr }

// Conns is how many connections are open, and how many of these are idle.
func (u *Upstream) Conns() (open, idle int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.open, len(u.idle)
}

// CloseIdle closes the idle connections.
func (u *Upstream) CloseIdle() {
	u.mu.Lock()
	old := u.idle
	u.idle = nil
	u.open -= len(old)
	u.sweep.Stop()
	u.mu.Unlock()
	closeAll(old)
}

// Close closes the idle connections, and those in use when they are done.
// Every further Do fails.
func (u *Upstream) Close() {
	u.mu.Lock()
	u.closed = true
	u.mu.Unlock()
	u.CloseIdle()
}

func closeAll(conns []*conn) {
	for _, c := range conns {
		c.kill()
	}
}

// acquire is a connection that the call is attached to: the idle one that was
// used last, or, where there is none or fresh is asked for, a new one. It ends
// with release.
func (u *Upstream) acquire(call *Call, fresh bool, now time.Time) (*conn, error) {
	for !fresh {
		c, err := u.popIdle(now)
		if err != nil {
			return nil, err
		}
		if c == nil {
			break
		}
		if c.stale(now) {
			u.discard(c)
			continue
		}
		if !call.attach(c) {
			u.discard(c)
			return nil, call.Cause()
		}
		return c, nil
	}
	return u.connect(call, now)
}

func (u *Upstream) popIdle(now time.Time) (*conn, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.closed {
		return nil, errClosed
	}
	n := len(u.idle)
	if n == 0 {
		return nil, nil
	}
	c := u.idle[n-1]
	if now.Sub(c.lastUsed) > u.relay.opts.MaxIdle {
		return nil, nil // they all are older; the sweep closes them
	}
	u.idle[n-1] = nil
	u.idle = u.idle[:n-1]
	return c, nil
}

// connect dials, within the call's connect and total deadlines, and ends at
// once when the call is cancelled.
func (u *Upstream) connect(call *Call, now time.Time) (*conn, error) {
	u.mu.Lock()
	switch {
	case u.closed:
		u.mu.Unlock()
		return nil, errClosed
	case u.open >= u.relay.opts.MaxConns:
		n := u.open
		u.mu.Unlock()
		return nil, fmt.Errorf("all %d connections to %s are in use", n, u.addr)
	}
	u.open++
	u.mu.Unlock()

	c, err := u.dialConn(call, now)
	if err == nil && !call.attach(c) {
		c.kill()
		err = call.Cause()
	}
	if err != nil {
		u.forget()
		return nil, err
	}
	return c, nil
}

func (u *Upstream) dialConn(call *Call, now time.Time) (*conn, error) {
	ctx, cancel := context.WithCancel(context.Background())
	if limit := call.total().sooner(deadline(now, call.Timeouts.Connect), LimitConnect); !limit.at.IsZero() {
		ctx, cancel = context.WithDeadline(context.Background(), limit.at)
	}
	defer cancel()
	if !call.attach(closerFunc(cancel)) {
		return nil, call.Cause()
	}
	defer call.detach()
	raw, err := u.dial(ctx, "tcp", u.addr)
	if err != nil {
		return nil, err
	}
	c := newConn(raw)
	if u.tls != nil {
		t := tls.Client(raw, u.tls)
		if err := t.HandshakeContext(ctx); err != nil {
			_ = raw.Close()
			return nil, err
		}
		c.Conn, c.secure = t, true
	}
	return c, nil
}

type closerFunc context.CancelFunc

func (f closerFunc) Close() error { f(); return nil }

// release gives a connection back: into the pool if reusable, else closed. The
// caller has detached it from its call.
func (u *Upstream) release(c *conn, reusable bool, now time.Time) {
	if !reusable {
		u.discard(c)
		return
	}
	u.put(c, now)
}

func (u *Upstream) put(c *conn, now time.Time) {
	c.lastUsed = now
	u.mu.Lock()
	if u.closed {
		u.mu.Unlock()
		u.discard(c)
		return
	}
	u.idle = append(u.idle, c)
	if len(u.idle) == 1 {
		u.sweep.Reset(u.relay.opts.MaxIdle)
	}
	u.mu.Unlock()
}

func (u *Upstream) discard(c *conn) {
	c.kill()
	u.forget()
}

// forget counts one connection less.
func (u *Upstream) forget() {
	u.mu.Lock()
	u.open--
	u.mu.Unlock()
}

// closeOld closes what has been idle for too long, and comes again for the rest.
func (u *Upstream) closeOld() {
	now := time.Now()
	u.mu.Lock()
	n := 0
	for n < len(u.idle) && now.Sub(u.idle[n].lastUsed) >= u.relay.opts.MaxIdle {
		n++
	}
	old := append([]*conn(nil), u.idle[:n]...)
	rest := copy(u.idle, u.idle[n:])
	clear(u.idle[rest:])
	u.idle = u.idle[:rest]
	u.open -= n
	if rest > 0 && !u.closed {
		u.sweep.Reset(u.relay.opts.MaxIdle - now.Sub(u.idle[0].lastUsed))
	}
	u.mu.Unlock()
	closeAll(old)
}

package relay

import (
	"net"
	"sync"
	"syscall"
	"time"
)

// sweepInterval is how often new watches are armed. A request that is answered
// between two sweeps costs no system call; a client that leaves is noticed at
// the next one, and at once from then on.
const sweepInterval = 5 * time.Millisecond

// Watch notices that the client of one request has left. A client that has
// closed its sending half counts as gone.
//
// fasthttp does not read from a connection while its handler runs, so it never
// learns of it. On Linux the socket is put into an epoll set of the watcher's
// own, for EPOLLRDHUP alone: bytes that the client sends (a pipelined request)
// do not hide its leaving, and neither a goroutine nor a deadline is taken per
// request. Elsewhere a goroutine waits for the socket and peeks. Over TLS the
// socket is watched; a close_notify without the end of the connection is not seen.
type Watch struct {
	w      *watcher
	client Leaver

	mu    sync.Mutex // held while ClientLeft runs, so that Stop waits for it
	state watchState
	conn  net.Conn
	raw   syscall.RawConn // its socket
	poll  polled          // what the platform keeps while armed
}

type watchState uint8

const (
	watchNew watchState = iota
	watchArmed
	watchGone
	watchStopped
)

// watcher arms watches and, on Linux, hears of clients that have left.
type watcher struct {
	interval time.Duration
	platform platform

	mu      sync.Mutex
	fresh   []*Watch // came since the last sweep
	running bool     // the sweeper is
	closed  bool
	done    sync.WaitGroup
}

func newWatcher(interval time.Duration) *watcher { return &watcher{interval: interval} }

// Leaver is told that a client has left.
type Leaver interface {
	// ClientLeft must not block, nor call Stop.
	ClientLeft()
}

// Watch begins w, which must be new: it calls ClientLeft once, from another
// goroutine, if the client of conn leaves before Stop is called. A connection
// without a socket is not watched.
func (r *Relay) Watch(w *Watch, conn net.Conn, client Leaver) {
	w.w, w.client, w.conn, w.raw = r.watcher, client, conn, rawConn(conn)
	if w.raw == nil {
		w.state = watchStopped
		return
	}
	r.watcher.add(w)
}

// Stop ends the watch, if it has begun, and must be called before the server reads from the
// connection again. It waits for ClientLeft if that is running, and reports whether
// the client has gone. It may be called again.
func (w *Watch) Stop() (gone bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch w.state {
	case watchGone:
		return true
	case watchArmed:
		w.w.disarm(w)
	}
	w.state = watchStopped
	return false
}

// Gone reports whether the client has gone.
func (w *Watch) Gone() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.state == watchGone
}

// arm begins to watch, unless Stop was called before.
func (w *Watch) arm() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.state == watchNew && w.w.arm(w) {
		w.state = watchArmed
	}
}

// fire reports the client's leaving, unless Stop was called before.
func (w *Watch) fire() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.state != watchArmed {
		return
	}
	w.w.disarm(w)
	w.state = watchGone
	w.client.ClientLeft()
}

func (s *watcher) add(w *Watch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	s.fresh = append(s.fresh, w)
	if !s.running {
		s.running = true
		s.done.Go(s.sweep)
	}
}

// sweep arms what has come since, until nothing more comes.
func (s *watcher) sweep() {
	t := time.NewTicker(s.interval)
	defer t.Stop()
	var due []*Watch
	for range t.C {
		s.mu.Lock()
		due, s.fresh = s.fresh, due[:0]
		if len(due) == 0 || s.closed {
			s.running = false
			s.mu.Unlock()
			return
		}
		s.mu.Unlock()
		for i, w := range due {
			w.arm()
			due[i] = nil
		}
	}
}

func (s *watcher) close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.platform.close()
	s.done.Wait()
}

// rawConn finds the socket under a connection, through TLS and wrappers.
func rawConn(c net.Conn) syscall.RawConn {
	for c != nil {
		if sc, ok := c.(syscall.Conn); ok {
			if raw, err := sc.SyscallConn(); err == nil {
				return raw
			}
		}
		u, ok := c.(interface{ NetConn() net.Conn })
		if !ok {
			return nil
		}
		c = u.NetConn()
	}
	return nil
}

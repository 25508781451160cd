package local

import (
	"net"
	"strings"
	"sync"
	"syscall"
	"time"
)

// sweepEvery is how often waiting clients are looked at; one that leaves is
// noticed within this time.
const sweepEvery = 20 * time.Millisecond

// live are the exchanges in progress. While there are any, one timer
// looks every sweepEvery, with one system call for all, whether their clients
// are still there.
type live struct {
	mu     sync.Mutex
	all    map[*exchange]struct{}
	armed  bool
	timer  *time.Timer
	fds    []pollFd
	swept  []*exchange
	closed bool
}

func newLive() *live { return &live{all: make(map[*exchange]struct{})} }

// add registers an exchange and watches its connection, until remove.
func (l *live) add(x *exchange, conn net.Conn) {
	x.fd, x.watched = socket(conn)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all[x] = struct{}{}
	if !l.armed && !l.closed {
		l.armed = true
		if l.timer == nil {
			l.timer = time.AfterFunc(sweepEvery, l.sweep)
		} else {
			l.timer.Reset(sweepEvery)
		}
	}
}

func (l *live) remove(x *exchange) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.all, x)
}

// sweep polls all sockets. The lock is held, so none of them is closed by the
// server and used again meanwhile.
func (l *live) sweep() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fds, l.swept = l.fds[:0], l.swept[:0]
	for x := range l.all {
		if x.watched {
			l.fds = append(l.fds, newPollFd(x.fd))
			l.swept = append(l.swept, x)
		}
	}
	if len(l.fds) > 0 && gone(l.fds) > 0 {
		for i, x := range l.swept {
			if isGone(l.fds[i]) {
				x.watched = false
				x.leave()
			}
		}
	}
	clear(l.swept)
	if l.armed = len(l.all) > 0 && !l.closed; l.armed {
		l.timer.Reset(sweepEvery)
	}
}

// find returns the exchanges whose id begins with rid, or all.
func (l *live) find(rid string, all bool) (found []*exchange) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for x := range l.all {
		if all || strings.HasPrefix(x.rid, rid) {
			found = append(found, x)
		}
	}
	return found
}

func (l *live) len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.all)
}

func (l *live) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	if l.timer != nil {
		l.timer.Stop()
	}
}

// socket is the connection's file descriptor, if it has one.
func socket(c net.Conn) (fd uintptr, ok bool) {
	sc, ok := c.(syscall.Conn)
	if !ok {
		return 0, false
	}
	rc, err := sc.SyscallConn()
	if err != nil {
		return 0, false
	}
	err = rc.Control(func(f uintptr) { fd = f })
	return fd, err == nil
}

//go:build linux && !portablewatch

package relay

import (
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// polled is what an armed watch is known by in the epoll set.
type polled struct{ id uint64 }

// platform is the epoll set. It is itself waited for by Go's own poller, so the
// one goroutine that reads it holds no thread. It is made when it is first needed.
type platform struct {
	mu     sync.Mutex
	file   *os.File // the epoll set; nil: none yet
	fd     int
	nextID uint64
	byID   map[uint64]*Watch
	closed bool
}

// arm puts the watch's socket into the set. It reports false where that fails,
// as with a socket that is closed already.
func (s *watcher) arm(w *Watch) bool {
	p := &s.platform
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.open(s) {
		return false
	}
	p.nextID++
	id := p.nextID
	// One-shot: the half-closed socket would be reported for ever otherwise.
	ev := unix.EpollEvent{Events: unix.EPOLLRDHUP | unix.EPOLLONESHOT, Fd: int32(uint32(id)), Pad: int32(uint32(id >> 32))}
	ok := false
	err := w.raw.Control(func(fd uintptr) {
		ok = unix.EpollCtl(p.fd, unix.EPOLL_CTL_ADD, int(fd), &ev) == nil
	})
	if err != nil || !ok {
		return false
	}
	p.byID[id] = w
	w.poll.id = id
	return true
}

// disarm takes the watch's socket out of the set. Control keeps the socket from
// being closed, and its number from being given to another, meanwhile.
func (s *watcher) disarm(w *Watch) {
	p := &s.platform
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.byID, w.poll.id)
	if p.closed {
		return
	}
	_ = w.raw.Control(func(fd uintptr) {
		_ = unix.EpollCtl(p.fd, unix.EPOLL_CTL_DEL, int(fd), nil)
	})
}

// open makes the set and starts its reader, once. The caller holds mu.
func (p *platform) open(s *watcher) bool {
	if p.closed || p.file != nil {
		return p.file != nil
	}
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return false
	}
	if err := unix.SetNonblock(fd, true); err != nil { // else os.File does not poll it
		_ = unix.Close(fd)
		return false
	}
	p.fd, p.file, p.byID = fd, os.NewFile(uintptr(fd), "epoll"), map[uint64]*Watch{}
	raw, err := p.file.SyscallConn()
	if err != nil {
		p.closeFile()
		return false
	}
	s.done.Go(func() { p.read(raw) })
	return true
}

// read reports the clients that leave, until the set is closed.
func (p *platform) read(raw syscall.RawConn) {
	events := make([]unix.EpollEvent, 128)
	for {
		var n int
		err := raw.Read(func(fd uintptr) bool {
			n, _ = unix.EpollWait(int(fd), events, 0) // an error, EINTR, reads as nothing yet
			return n > 0
		})
		if err != nil {
			return
		}
		for _, ev := range events[:max(n, 0)] {
			id := uint64(uint32(ev.Fd)) | uint64(uint32(ev.Pad))<<32
			p.mu.Lock()
			w := p.byID[id]
			p.mu.Unlock()
			if w != nil {
				w.fire()
			}
		}
	}
}

func (p *platform) closeFile() {
	_ = p.file.Close()
	p.file = nil
}

func (p *platform) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	if p.file != nil {
		p.closeFile()
	}
}

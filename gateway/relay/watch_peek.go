// The tag portablewatch takes this file on Linux too, where it can be tested.
//go:build unix && (!linux || portablewatch)

package relay

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"
)

// polled is what an armed watch waits with.
type polled struct{ returned chan struct{} }

type platform struct{}

func (platform) close() {}

// arm starts a goroutine that waits for the socket to become readable and
// peeks. Bytes that the client sends meanwhile hide its leaving.
func (s *watcher) arm(w *Watch) bool {
	_ = w.conn.SetReadDeadline(time.Time{}) // the server's is still armed
	returned := make(chan struct{})
	w.poll.returned = returned
	s.done.Go(func() {
		gone := false
		err := w.raw.Read(func(fd uintptr) bool {
			var b [1]byte
			n, _, err := unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
			gone = n == 0 && err == nil || errors.Is(err, unix.ECONNRESET)
			return gone || n > 0
		})
		close(returned)
		if err == nil && gone {
			w.fire()
		}
	})
	return true
}

// disarm wakes the goroutine and leaves the connection as it was.
func (s *watcher) disarm(w *Watch) {
	_ = w.conn.SetReadDeadline(time.Unix(1, 0))
	<-w.poll.returned
	_ = w.conn.SetReadDeadline(time.Time{})
}

//go:build unix

package relay

import (
	"errors"
	"net"

	"golang.org/x/sys/unix"
)

// quiet reports whether an idle connection has neither been closed by its peer
// nor sent anything. One without a socket counts as quiet.
func quiet(c net.Conn) bool {
	raw := rawConn(c)
	if raw == nil {
		return true
	}
	idle := false
	err := raw.Control(func(fd uintptr) {
		var b [1]byte
		_, _, e := unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		idle = errors.Is(e, unix.EAGAIN)
	})
	return err == nil && idle
}

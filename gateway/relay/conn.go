package relay

import (
	"net"
	"time"
)

// conn is one connection to an engine. But for Close it belongs to one
// exchange at a time.
type conn struct {
	net.Conn          // what is read and written: the socket, or TLS over it
	sock     net.Conn // the socket
	secure   bool

	lastUsed time.Time // when it was put into the pool; zero: it has served none yet
	readAt   time.Time // the read deadline that is armed; zero: none
	writeAt  time.Time // the write deadline that is armed
}

func newConn(sock net.Conn) *conn { return &conn{Conn: sock, sock: sock} }

// Close closes the socket, for Call.Cancel. TLS is not said goodbye to, since
// that can block; the engine sees the end of the connection all the same.
func (c *conn) Close() error { return c.sock.Close() }

// kill closes the connection.
func (c *conn) kill() { _ = c.sock.Close() }

func (c *conn) reused() bool { return !c.lastUsed.IsZero() }

// probeAfter is the idle time from which a connection is looked at before it
// is used: hot ones cannot have met the engine's own idle time-out.
const probeAfter = time.Second

// stale reports whether the engine has closed the idle connection, or sent
// something unasked.
func (c *conn) stale(now time.Time) bool {
	return now.Sub(c.lastUsed) > probeAfter && !quiet(c.sock)
}

// armRead makes reads fail at that instant, or somewhat before: moving a
// deadline costs as much as a small write, so one that is armed already and
// lies ahead is left. Whoever meets it compares with the clock and calls
// rearmRead. A zero instant is never.
func (c *conn) armRead(at, now time.Time) error {
	if at.Equal(c.readAt) {
		return nil
	}
	if !c.readAt.IsZero() && c.readAt.After(now.Add(time.Second)) && (at.IsZero() || c.readAt.Before(at)) {
		return nil
	}
	return c.rearmRead(at)
}

// rearmRead makes reads fail at that instant.
func (c *conn) rearmRead(at time.Time) error {
	c.readAt = at
	return c.Conn.SetReadDeadline(at)
}

// armWrite makes writes fail at that instant, or within the last half of the
// time until then where such a deadline is armed already.
func (c *conn) armWrite(at, now time.Time) error {
	if at.Equal(c.writeAt) {
		return nil
	}
	if !at.IsZero() && c.writeAt.After(now.Add(at.Sub(now)/2)) && c.writeAt.Before(at) {
		return nil
	}
	c.writeAt = at
	return c.Conn.SetWriteDeadline(at)
}

package gateway

import (
	"net"
	"sync/atomic"
	"syscall"
	"time"
)

// Lingering is how long is read and discarded after an answer that was sent
// before the whole request was read: closing with unread data resets the
// connection, and the client would lose the answer.
const (
	lingerTime    = 30 * time.Second // in all
	lingerSilence = 5 * time.Second  // without a byte
)

// listener wraps accepted connections, so that a client that does not read is
// cut off, and one that was refused early is closed without losing its answer.
type listener struct {
	net.Listener
	writeTimeout func() time.Duration
}

func (l listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	nc := &conn{Conn: c, timeout: l.writeTimeout}
	if sc, ok := c.(syscall.Conn); ok {
		nc.raw, _ = sc.SyscallConn() // an error leaves it nil: such a connection is not watched
	}
	return nc, nil
}

// conn is one client connection. It has a write deadline of its own: every
// answer, streamed or whole, moves it on as long as the client reads.
type conn struct {
	net.Conn
	raw      syscall.RawConn      // its socket; nil: it has none
	timeout  func() time.Duration // 0: none
	deadline time.Time            // the write deadline that is armed
	own      atomic.Bool          // somebody else has set one
	linger   atomic.Bool
}

// writePiece is the most that one deadline covers.
const writePiece = 64 << 10

// Write writes p, in pieces of which each must be taken in time.
func (c *conn) Write(p []byte) (n int, err error) {
	for {
		end := min(n+writePiece, len(p))
		if err := c.arm(); err != nil {
			return n, err
		}
		m, err := c.Conn.Write(p[n:end])
		n += m
		if err != nil || n == len(p) {
			return n, err
		}
	}
}

// arm moves the write deadline when an eighth of it is used: moving it costs as
// much as a small write.
func (c *conn) arm() error {
	d := c.timeout()
	if d <= 0 || c.own.Load() {
		return nil
	}
	now := time.Now()
	if left := c.deadline.Sub(now); left > d-d/8 && left <= d {
		return nil
	}
	c.deadline = now.Add(d)
	return c.Conn.SetWriteDeadline(c.deadline)
}

// SetWriteDeadline is for TLS, which bounds its farewell. That there be none is
// not for others to say.
func (c *conn) SetWriteDeadline(t time.Time) error {
	if t.IsZero() {
		return nil
	}
	c.own.Store(true)
	return c.Conn.SetWriteDeadline(t)
}

// NetConn and SyscallConn let the disconnect watch reach the socket.
func (c *conn) NetConn() net.Conn { return c.Conn }

func (c *conn) SyscallConn() (syscall.RawConn, error) {
	if c.raw == nil {
		return nil, syscall.EINVAL
	}
	return c.raw, nil
}

// Close closes the connection; one marked for lingering first says that
// nothing more will come and discards what the client still sends.
func (c *conn) Close() error {
	if c.linger.Swap(false) {
		if w, ok := c.Conn.(interface{ CloseWrite() error }); ok && w.CloseWrite() == nil {
			c.discard()
		}
	}
	return c.Conn.Close()
}

// discard reads until the client closes, or for as long as lingering may take.
func (c *conn) discard() {
	buf := make([]byte, 32<<10)
	end := time.Now().Add(lingerTime)
	for now := time.Now(); now.Before(end); now = time.Now() {
		if c.Conn.SetReadDeadline(now.Add(min(lingerSilence, end.Sub(now)))) != nil {
			return
		}
		if _, err := c.Conn.Read(buf); err != nil {
			return
		}
	}
}

// lingerOn marks the connection under nc, if it is one of ours, for lingering.
func lingerOn(nc net.Conn) {
	if c := ours(nc); c != nil {
		c.linger.Store(true)
	}
}

// resetOnClose has the connection under nc end in an error for its client.
func resetOnClose(nc net.Conn) {
	if c := ours(nc); c != nil {
		if t, ok := c.Conn.(*net.TCPConn); ok {
			_ = t.SetLinger(0)
		}
	}
}

// ours finds the conn under nc; nil: there is none.
func ours(nc net.Conn) *conn {
	for nc != nil {
		if c, ok := nc.(*conn); ok {
			return c
		}
		u, ok := nc.(interface{ NetConn() net.Conn })
		if !ok {
			return nil
		}
		nc = u.NetConn()
	}
	return nil
}

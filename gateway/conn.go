package gateway

import (
	"io"
	"net"
	"sync/atomic"
	"syscall"
	"time"
)

// Lingering bounds what is read and discarded after an answer that was sent
// before the whole request was read: closing with unread data resets the
// connection, and the client would lose the answer.
const (
	lingerBytes = 8 << 20
	lingerTime  = 2 * time.Second
)

// listener wraps accepted connections, so that one that was refused early can
// be closed without losing the answer on its way.
type listener struct {
	net.Listener
}

func (l listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &conn{Conn: c}, nil
}

// conn is one client connection.
type conn struct {
	net.Conn
	linger atomic.Bool
}

// NetConn and SyscallConn let the disconnect watch reach the socket.
func (c *conn) NetConn() net.Conn { return c.Conn }

func (c *conn) SyscallConn() (syscall.RawConn, error) {
	sc, ok := c.Conn.(syscall.Conn)
	if !ok {
		return nil, syscall.EINVAL
	}
	return sc.SyscallConn()
}

// Close closes the connection; one marked for lingering first says that
// nothing more will come and discards what the client still sends.
func (c *conn) Close() error {
	if c.linger.Swap(false) {
		if w, ok := c.Conn.(interface{ CloseWrite() error }); ok && w.CloseWrite() == nil {
			_ = c.Conn.SetReadDeadline(time.Now().Add(lingerTime))
			_, _ = io.CopyN(io.Discard, c.Conn, lingerBytes)
		}
	}
	return c.Conn.Close()
}

// lingerOn marks the connection under nc, if it is one of ours, for lingering.
func lingerOn(nc net.Conn) {
	for nc != nil {
		if c, ok := nc.(*conn); ok {
			c.linger.Store(true)
			return
		}
		u, ok := nc.(interface{ NetConn() net.Conn })
		if !ok {
			return
		}
		nc = u.NetConn()
	}
}

package local

import (
	"net"
	"sync"

	"github.com/valyala/fasthttp"
)

// door is a listener that can be shut and opened again: while it is shut a TCP
// address refuses connections, as that of a dead process does.
type door struct {
	mu     sync.Mutex
	cond   *sync.Cond
	ln     net.Listener
	addr   net.Addr
	shut   bool
	closed bool
	inside bool // Accept waits in the listener
}

func newDoor() *door {
	d := &door{}
	d.cond = sync.NewCond(&d.mu)
	return d
}

// open lets connections of ln in.
func (d *door) open(ln net.Listener) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ln, d.addr = ln, ln.Addr()
	if d.shut || d.closed {
		d.drop()
	}
}

// drop closes the listening socket. Only TCP can be opened again.
func (d *door) drop() {
	if d.ln != nil && (d.closed || d.addr.Network() == "tcp") {
		d.ln.Close()
		d.ln = nil
	}
}

// refuse shuts or opens the door.
func (d *door) refuse(shut bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.shut == shut || d.closed {
		return
	}
	d.shut = shut
	if shut {
		d.drop()
		for d.ln == nil && d.inside { // the socket lives until Accept has left it
			d.cond.Wait()
		}
	} else if d.ln == nil && d.addr != nil {
		d.reopen()
	}
	d.cond.Broadcast()
}

func (d *door) reopen() {
	if ln, err := net.Listen("tcp", d.addr.String()); err == nil {
		d.ln = ln
	} else {
		d.closed = true // the address is gone: Accept says so
	}
}

// Accept waits for a connection while the door is open.
func (d *door) Accept() (net.Conn, error) {
	for {
		ln, err := d.current()
		if err != nil {
			return nil, err
		}
		c, err := ln.Accept()
		d.mu.Lock()
		d.inside = false
		d.cond.Broadcast()
		shut, closed := d.shut, d.closed
		d.mu.Unlock()
		switch {
		case err == nil && !shut:
			return c, nil
		case err == nil:
			c.Close()
		case closed || !shut && ln == d.now():
			return nil, err
		}
	}
}

// current waits until there is a listener, and enters it.
func (d *door) current() (net.Listener, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for d.ln == nil && !d.closed {
		d.cond.Wait()
	}
	if d.closed {
		return nil, net.ErrClosed
	}
	d.inside = true
	return d.ln, nil
}

func (d *door) now() net.Listener {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.ln
}

// Close shuts the door for good.
func (d *door) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	d.drop()
	d.cond.Broadcast()
	return nil
}

// Addr is the listener's address.
func (d *door) Addr() net.Addr {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.addr
}

// conns are the open connections, so that they can be cut.
type conns struct {
	mu     sync.Mutex
	open   map[net.Conn]struct{}
	none   *sync.Cond
	closed bool // no more may come
}

func newConns() *conns {
	c := &conns{open: make(map[net.Conn]struct{})}
	c.none = sync.NewCond(&c.mu)
	return c
}

// note is fasthttp's ConnState hook.
func (c *conns) note(conn net.Conn, state fasthttp.ConnState) {
	switch state {
	case fasthttp.StateNew:
		c.mu.Lock()
		c.open[conn] = struct{}{}
		if c.closed {
			cut(conn)
		}
		c.mu.Unlock()
	case fasthttp.StateClosed, fasthttp.StateHijacked:
		c.mu.Lock()
		delete(c.open, conn)
		c.none.Broadcast()
		c.mu.Unlock()
	}
}

// closeAll cuts all connections but one, which may be nil.
func (c *conns) closeAll(but net.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for conn := range c.open {
		if conn != but {
			cut(conn)
		}
	}
}

// close cuts all connections, and those that come later.
func (c *conns) close() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.closeAll(nil)
}

// wait returns when no connection is open.
func (c *conns) wait() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.open) > 0 {
		c.none.Wait()
	}
}

// cut resets a connection, as a process that dies does.
func cut(c net.Conn) {
	if tcp, ok := c.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	c.Close()
}

package faulty

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Script is what happens on a connection once a request has been read. The
// connection is closed when it returns, unless it called KeepAlive.
type Script func(c *Conn)

// Server is the engine. Its zero value is not usable; see Start.
type Server struct {
	URL  string
	Addr string

	choose func(r *Request) Script
	ln     net.Listener
	wg     sync.WaitGroup
	seen   chan struct{}
	wait   atomic.Int64 // of Meet, in nanoseconds

	mu       sync.Mutex
	conns    map[net.Conn]struct{}
	accepted int
	requests []Request
	gone     chan time.Time
}

// Request is what the engine was sent.
type Request struct {
	Method, Path string
	Header       map[string]string // by lower-case name; the last of several
	Body         []byte
	// Conn counts the connections, from 1; Seq the requests on this one.
	Conn, Seq int
}

// Start starts an engine that answers each request by the script that choose
// gives. It is stopped when the test ends; scripts that wait are woken.
func Start(tb testing.TB, choose func(r *Request) Script) *Server {
	tb.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	s := &Server{
		URL: "http://" + ln.Addr().String(), Addr: ln.Addr().String(), choose: choose, ln: ln,
		conns: map[net.Conn]struct{}{}, gone: make(chan time.Time, 1<<16), seen: make(chan struct{}, 1),
	}
	s.SetPatience(50 * time.Millisecond)
	s.wg.Go(s.accept)
	tb.Cleanup(s.Close)
	return s
}

// Always is a choice of one script.
func Always(s Script) func(*Request) Script { return func(*Request) Script { return s } }

// InOrder gives the scripts one after another, then the last one again.
func InOrder(scripts ...Script) func(*Request) Script {
	var mu sync.Mutex
	n := 0
	return func(*Request) Script {
		mu.Lock()
		defer mu.Unlock()
		s := scripts[min(n, len(scripts)-1)]
		n++
		return s
	}
}

// Close stops the engine: new connections are refused, open ones closed.
func (s *Server) Close() {
	_ = s.ln.Close()
	s.mu.Lock()
	for c := range s.conns {
		_ = c.Close()
	}
	s.mu.Unlock()
	s.wg.Wait()
}

// Seen lets the script that waits in Meet, or the next one to, go on.
func (s *Server) Seen() {
	select {
	case s.seen <- struct{}{}:
	default:
	}
}

// SetPatience sets how long Conn.Meet waits at most. Default 50ms.
func (s *Server) SetPatience(d time.Duration) { s.wait.Store(int64(d)) }

// Gone tells when a script that waited saw its peer close the connection.
func (s *Server) Gone() <-chan time.Time { return s.gone }

// Accepted is how many connections have come.
func (s *Server) Accepted() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.accepted
}

// Open is how many connections are open.
func (s *Server) Open() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.conns)
}

// Count is how many requests have been read so far.
func (s *Server) Count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.requests)
}

// Requests is what has been read so far.
func (s *Server) Requests() []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Request(nil), s.requests...)
}

func (s *Server) accept() {
	for {
		nc, err := s.ln.Accept()
		if err != nil {
			return
		}
		s.mu.Lock()
		s.conns[nc] = struct{}{}
		s.accepted++
		n := s.accepted
		s.mu.Unlock()
		s.wg.Go(func() { s.serve(nc, n) })
	}
}

func (s *Server) serve(nc net.Conn, number int) {
	defer func() {
		_ = nc.Close()
		s.mu.Lock()
		delete(s.conns, nc)
		s.mu.Unlock()
	}()
	br := bufio.NewReader(nc)
	for seq := 1; ; seq++ {
		r, err := readRequest(br)
		if err != nil {
			return
		}
		r.Conn, r.Seq = number, seq
		s.mu.Lock()
		s.requests = append(s.requests, *r)
		s.mu.Unlock()
		c := &Conn{Request: r, net: nc, br: br, server: s}
		s.choose(r)(c)
		if !c.keep {
			return
		}
	}
}

func readRequest(br *bufio.Reader) (*Request, error) {
	line, err := br.ReadString('\n')
	if err != nil {
		return nil, err
	}
	f := strings.Fields(line)
	if len(f) != 3 {
		return nil, fmt.Errorf("request line %q", line)
	}
	r := &Request{Method: f[0], Path: f[1], Header: map[string]string{}}
	for {
		line, err := br.ReadString('\n')
		if err != nil {
			return nil, err
		}
		name, value, ok := strings.Cut(strings.TrimRight(line, "\r\n"), ":")
		if !ok {
			break
		}
		r.Header[strings.ToLower(name)] = strings.TrimSpace(value)
	}
	if n, err := strconv.Atoi(r.Header["content-length"]); err == nil {
		r.Body = make([]byte, n)
		if _, err := io.ReadFull(br, r.Body); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// Streamed reports whether the request asks for a stream.
func (r *Request) Streamed() bool {
	return bytes.Contains(r.Body, []byte(`"stream":true`)) || bytes.Contains(r.Body, []byte(`"stream": true`))
}

// Conn is a connection on which a request has been read.
type Conn struct {
	*Request

	net    net.Conn
	br     *bufio.Reader
	server *Server
	keep   bool
	left   bool // its peer has closed it, and Gone was told
}

// gone tells Server.Gone, once.
func (c *Conn) gone() {
	if !c.left {
		c.left = true
		c.server.gone <- time.Now()
	}
}

// Raw writes bytes as they are.
func (c *Conn) Raw(s string) {
	if _, err := io.WriteString(c.net, s); err != nil {
		c.gone()
	}
}

// Head writes a status line and headers, each "Name: value".
func (c *Conn) Head(status int, headers ...string) {
	c.Raw(fmt.Sprintf("HTTP/1.1 %d Status\r\nserver: faulty\r\n%s\r\n", status, lines(headers)))
}

func lines(headers []string) string {
	var b strings.Builder
	for _, h := range headers {
		b.WriteString(h + "\r\n")
	}
	return b.String()
}

// Whole writes a whole answer with its length, and keeps the connection.
func (c *Conn) Whole(status int, contentType, body string, headers ...string) {
	h := append([]string{"content-type: " + contentType, fmt.Sprintf("content-length: %d", len(body))}, headers...)
	c.Raw(fmt.Sprintf("HTTP/1.1 %d Status\r\nserver: faulty\r\n%s\r\n%s", status, lines(h), body))
	c.KeepAlive()
}

// Stream writes the headers of a chunked stream of events.
func (c *Conn) Stream() {
	c.Head(200, "content-type: text/event-stream; charset=utf-8", "transfer-encoding: chunked")
}

// Chunk writes one chunk.
func (c *Conn) Chunk(s string) { c.Raw(fmt.Sprintf("%x\r\n%s\r\n", len(s), s)) }

// Event writes one event with that data as a chunk.
func (c *Conn) Event(data string) { c.Chunk("data: " + data + "\n\n") }

// End writes the last chunk, and keeps the connection.
func (c *Conn) End() {
	c.Raw("0\r\n\r\n")
	c.KeepAlive()
}

// Meet waits until the client has seen what was written so far, so that what
// follows comes after the first byte to it: until Server.Seen is called, or for
// as long as the server has patience.
func (c *Conn) Meet() {
	select {
	case <-c.server.seen:
		return
	default:
	}
	for end := time.Now().Add(time.Duration(c.server.wait.Load())); time.Now().Before(end); {
		if c.Pause(time.Millisecond) {
			return
		}
		select {
		case <-c.server.seen:
			return
		default:
		}
	}
}

// KeepAlive leaves the connection open for another request.
func (c *Conn) KeepAlive() { c.keep = true }

// Reset ends the connection with RST.
func (c *Conn) Reset() {
	if t, ok := c.net.(*net.TCPConn); ok {
		_ = t.SetLinger(0)
	}
	_ = c.net.Close()
}

// Wait waits until the peer closes the connection (see Server.Gone) or the test ends.
func (c *Conn) Wait() {
	for {
		if _, err := c.br.ReadByte(); err != nil {
			c.gone()
			return
		}
	}
}

// Pause waits that long, or until the peer closes the connection, of which it
// reports true.
func (c *Conn) Pause(d time.Duration) (closed bool) {
	if c.left {
		return true
	}
	_ = c.net.SetReadDeadline(time.Now().Add(d))
	defer func() { _ = c.net.SetReadDeadline(time.Time{}) }()
	_, err := c.br.Peek(1)
	ne, ok := errors.AsType[net.Error](err)
	if err == nil || (ok && ne.Timeout()) {
		return false
	}
	c.gone()
	return true
}

package gateway

import (
	"bytes"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"penstock/e2e/faulty"
)

// tcpPair is both ends of a connection with small buffers.
func tcpPair(t *testing.T) (server, client *net.TCPConn) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	c, err := smallReader().Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	s, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = c.Close(), s.Close() })
	server, client = s.(*net.TCPConn), c.(*net.TCPConn)
	if err := server.SetWriteBuffer(4 << 10); err != nil {
		t.Fatal(err)
	}
	return server, client
}

// smallReader dials connections whose kernel takes little that is not read.
func smallReader() *net.Dialer {
	return &net.Dialer{Control: func(_, _ string, raw syscall.RawConn) error {
		return raw.Control(func(fd uintptr) {
			_ = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, 4<<10)
		})
	}}
}

func TestTheWriteDeadlineIsForEachPieceAndNotForTheWhole(t *testing.T) {
	const timeout = time.Second
	body := make([]byte, 10*writePiece)
	_, _ = rand.Read(body)
	server, client := tcpPair(t)
	c := &conn{Conn: server, timeout: func() time.Duration { return timeout }}
	written := make(chan error, 1)
	begun := time.Now()
	go func() {
		_, err := c.Write(body)
		written <- err
	}()
	got := make([]byte, len(body))
	for at := 0; at < len(got); { // each piece well within the deadline, all of them beyond it
		<-time.After(15 * time.Millisecond)
		n, err := client.Read(got[at:min(len(got), at+8<<10)])
		if err != nil {
			t.Fatal(err)
		}
		at += n
	}
	if err := <-written; err != nil || !bytes.Equal(got, body) {
		t.Errorf("a slow reader: write error %v, all bytes there %v", err, bytes.Equal(got, body))
	}
	if took := time.Since(begun); took < timeout {
		t.Errorf("read within %v: the test shows nothing", took)
	}
	n, err := c.Write(make([]byte, 8<<20))
	if !errors.Is(err, os.ErrDeadlineExceeded) || n == 8<<20 {
		t.Errorf("a client that does not read: wrote %d bytes, %v, want a deadline exceeded", n, err)
	}
}

func TestAClientThatDoesNotReadItsStreamIsCutOff(t *testing.T) {
	endless := faulty.Always(func(c *faulty.Conn) {
		c.Stream()
		for ev := faulty.Chunk(strings.Repeat("x", 10_000)); !c.Pause(0); {
			c.Event(ev)
		}
	})
	s := faulty.Start(t, engineOf(endless))
	g := startGateway(t, strings.Replace(oneFaulty, "idle: 20s", "idle: 20s, write: 300ms", 1), s.URL)
	c, err := smallReader().Dial("tcp", strings.TrimPrefix(g.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	body := chatBody + `,"stream":true}`
	_, _ = io.WriteString(c, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"+auth+"\r\nContent-Length: "+strconv.Itoa(len(body))+"\r\n\r\n"+body)
	eventually(t, "an access line of status 499", func() bool { return strings.Contains(g.log.String(), `"status":499`) })
	g.atRest(t)
}

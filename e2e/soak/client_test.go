package soak

import (
	"bufio"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"time"
)

// client is one that behaves at random.
type client struct {
	soak *soak
	rand *rand.Rand
}

// clientTime bounds one request: beyond it the gateway hangs. It is well above
// timeouts.request and the queue's max_wait, for a busy machine.
const clientTime = 40 * time.Second

// act does one thing, on a connection of its own.
func (c *client) act() {
	conn, err := net.DialTimeout("tcp", strings.TrimPrefix(c.soak.gateway.URL, "http://"), clientTime)
	if err != nil {
		c.soak.t.Errorf("dial: %v", err)
		return
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(clientTime))
	switch n := c.rand.IntN(20); {
	case n == 0:
		c.nonsense(conn)
	case n == 1:
		c.halfARequest(conn)
	case n < 6:
		c.leave(conn)
	default:
		c.ask(conn, n < 9)
	}
}

func (c *client) request() (text string, stream bool) {
	key := "key"
	if c.rand.IntN(3) == 0 {
		key = "one"
	}
	stream = c.rand.IntN(2) == 0
	prompt := strings.Repeat(fmt.Sprintf("Where does the water of river %d go? ", c.rand.IntN(40)), 1+c.rand.IntN(60))
	body := fmt.Sprintf(`{"model":"m","stream":%t,"max_tokens":16,"messages":[{"role":"user","content":%q}]}`, stream, prompt)
	return fmt.Sprintf("POST /v1/chat/completions HTTP/1.1\r\nHost: g\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", key, len(body), body), stream
}

// ask sends some requests on one connection and reads their answers, slowly or not.
func (c *client) ask(conn net.Conn, slow bool) {
	var in io.Reader = conn
	if slow {
		in = drowsy{conn}
	}
	br := bufio.NewReaderSize(in, 4<<10)
	for range 1 + c.rand.IntN(3) {
		text, stream := c.request()
		if _, err := io.WriteString(conn, text); err != nil {
			c.soak.t.Errorf("writing: %v", err)
			return
		}
		resp, err := http.ReadResponse(br, nil)
		if err != nil {
			c.soak.t.Errorf("no answer: %v", err)
			return
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		c.judge(resp.StatusCode, stream, string(body), err)
		if err != nil || resp.Close {
			return
		}
	}
}

// judge fails on what must never be: silence, or half an answer that looks whole.
func (c *client) judge(status int, stream bool, body string, err error) {
	told := strings.Contains(body, `"error"`)
	whole := !stream && strings.HasSuffix(strings.TrimSpace(body), "}") || strings.HasSuffix(body, "data: [DONE]\n\n")
	switch {
	case status != 200 && err == nil:
		c.soak.saw(fmt.Sprint(status))
	case status == 200 && err == nil && (whole || strings.HasPrefix(body, "\x1f\x8b")):
		c.soak.saw("200, whole")
	case status == 200 && err != nil && (told || !stream):
		c.soak.saw("200, cut off")
	default:
		c.soak.t.Errorf("status %d, stream %v, %v, body ending in %q", status, stream, err, body[max(0, len(body)-200):])
	}
}

// leave goes away at some moment after its request.
func (c *client) leave(conn net.Conn) {
	text, _ := c.request()
	_, _ = io.WriteString(conn, text)
	_ = conn.SetReadDeadline(time.Now().Add(time.Duration(c.rand.IntN(300)) * time.Millisecond))
	_, _ = io.CopyN(io.Discard, conn, int64(c.rand.IntN(2000)))
	c.soak.saw("left")
}

// halfARequest stops in the middle of one, and leaves or waits for the answer.
func (c *client) halfARequest(conn net.Conn) {
	text, _ := c.request()
	_, _ = io.WriteString(conn, text[:c.rand.IntN(len(text))])
	if c.rand.IntN(2) == 0 {
		c.soak.saw("left in its request")
		return
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		c.soak.t.Errorf("half a request: no answer: %v", err)
		return
	}
	resp.Body.Close()
	c.soak.saw(fmt.Sprintf("half a request: %d", resp.StatusCode))
}

func (c *client) nonsense(conn net.Conn) {
	b := make([]byte, 1+c.rand.IntN(3000))
	for i := range b {
		b[i] = byte(c.rand.Uint32())
	}
	_, _ = conn.Write(b)
	c.soak.saw("nonsense")
}

// drowsy reads little at a time, and pauses before.
type drowsy struct{ io.Reader }

func (d drowsy) Read(p []byte) (int, error) {
	<-time.After(time.Millisecond)
	return d.Reader.Read(p[:min(len(p), 2<<10)])
}

package e2e

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"penstock/e2e/faulty"
	"penstock/e2e/harness"
)

// reply is what a client saw of an answer.
type reply struct {
	status     int
	code       string // of an error: the answer's, or that of a stream's last event
	clean      bool   // the body ended as its framing says
	retryAfter string
	body       []byte
	err        error
	took       time.Duration
}

func (r reply) String() string {
	switch {
	case r.status == 0:
		return fmt.Sprintf("no answer (%v)", r.err)
	case r.clean:
		return fmt.Sprintf("%d %s", r.status, r.code)
	}
	return fmt.Sprintf("%d, cut off, %s", r.status, r.code)
}

// dialSmall connects with a small receive buffer, so that the kernel does not
// read in place of a slow client.
func dialSmall(t testing.TB, url string) net.Conn {
	t.Helper()
	d := net.Dialer{Timeout: 30 * time.Second, Control: func(_, _ string, raw syscall.RawConn) error {
		return raw.Control(func(fd uintptr) {
			_ = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, 16<<10)
		})
	}}
	c, err := d.Dial("tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// drowsy reads little at a time, and pauses before.
type drowsy struct{ io.Reader }

func (d drowsy) Read(p []byte) (int, error) {
	<-time.After(2 * time.Millisecond)
	return d.Reader.Read(p[:min(len(p), 8<<10)])
}

// ask sends the cell's request and behaves as its client does.
func (c *cell) ask(t *testing.T, gateway *harness.Process, id string) (r reply) {
	began := time.Now()
	defer func() { r.took = time.Since(began) }()
	conn := dialSmall(t, gateway.URL)
	defer conn.Close()
	_ = conn.SetDeadline(began.Add(faultRequest + faultSlack))
	body := c.body()
	fmt.Fprintf(conn, "POST /v1/chat/completions HTTP/1.1\r\nHost: gateway\r\nContent-Type: application/json\r\n"+
		"Authorization: Bearer %s\r\nX-Request-Id: %s\r\nContent-Length: %d\r\n\r\n%s", c.name, id, len(body), body)
	var in io.Reader = conn
	switch c.client {
	case slow:
		<-time.After(100 * time.Millisecond)
		in = drowsy{conn}
	case leaves:
		c.leave(t, conn)
		return r
	}
	resp, err := http.ReadResponse(bufio.NewReader(in), nil)
	if err != nil {
		r.err = err
		return r
	}
	defer resp.Body.Close()
	r.status, r.retryAfter = resp.StatusCode, resp.Header.Get("Retry-After")
	first := make([]byte, 1)
	n, err := resp.Body.Read(first)
	if c.sent() { // else it is the good engine's answer
		c.server.Seen()
	}
	rest, err2 := io.ReadAll(resp.Body)
	r.body = append(first[:n], rest...)
	r.err = errors.Join(noEOF(err), err2)
	r.clean = r.err == nil
	r.code = errorCode(r.body)
	return r
}

func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// leave goes away once the engine is answering, or has the request and will not.
func (c *cell) leave(t *testing.T, conn net.Conn) {
	begins := c.stream && (c.fault.Name == "half-event-then-silence" || c.fault.Name == "silence-mid-stream" || c.fault.Name == "byte-per-second")
	if begins {
		first := make([]byte, 1)
		if _, err := conn.Read(first); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		c.server.Seen()
		return
	}
	if c.fault.Name == "refused" {
		return
	}
	harness.Eventually(t, faultSlack, c.name+": the engine has the request", func() error {
		if !c.sent() {
			return errors.New("it has not")
		}
		return nil
	})
}

// sent says that the faulty engine has been sent the request.
func (c *cell) sent() bool {
	return slices.ContainsFunc(c.server.Requests(), func(r faulty.Request) bool { return r.Method == http.MethodPost })
}

var codeField = regexp.MustCompile(`"code":\s*"?(\w+)"?`)

// errorCode is the code of the error that a body is, or that its last event is.
func errorCode(body []byte) string {
	text := strings.TrimSpace(string(body))
	if at := strings.LastIndex(text, "\n\n"); at >= 0 {
		text = text[at:]
	}
	if !strings.Contains(text, `"error"`) {
		return ""
	}
	// 400-flat has its type as well as its code; SDKs show the type.
	if strings.Contains(text, `"BadRequestError"`) {
		return "BadRequestError"
	}
	if m := codeField.FindStringSubmatch(text); m != nil {
		return m[1]
	}
	return "unknown"
}

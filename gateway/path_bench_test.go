package gateway

import (
	"bytes"
	"context"
	"io"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"penstock/gateway/relay"
)

// BenchmarkPath is the way of a request through the gateway without sockets:
// what its own code and fasthttp's cost, and no system call. Compare builds by
// it: it scatters by a few percent where BenchmarkRequest scatters by ten.
func BenchmarkPath(b *testing.B) {
	for _, full := range []bool{true, false} {
		config := benchConfig
		if !full {
			config = "models: [{name: m, engines: [{url: $1, kind: openai}]}]\nlog: {access: false}\n"
		}
		b.Run("full="+strconv.FormatBool(full), func(b *testing.B) {
			g := startGateway(b, config, benchUpstream(b))
			g.lines = discardLines{}
			g.linePool.New = func() any { return &lineFields{json: true} }
			g.direct(b)
			body := `{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat("The water stands high. ", 5) + `"}],"max_tokens":16}`
			req := []byte("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nUser-Agent: bench\r\nAccept: */*\r\nAuthorization: Bearer secret-K\r\nContent-Type: application/json\r\nContent-Length: " +
				strconv.Itoa(len(body)) + "\r\n\r\n" + body)
			b.ReportAllocs()
			b.ResetTimer()
			c := &memClient{request: req, left: b.N}
			if err := g.http.ServeConn(&conn{Conn: c, timeout: g.writeTimeout}); err != nil {
				b.Fatal(err)
			}
			if c.answers != b.N {
				b.Fatalf("%d answers with status 200 to %d requests", c.answers, b.N)
			}
		})
	}
}

// direct has the gateway's engine answered in memory.
func (h *harness) direct(b *testing.B) {
	answer := benchAnswer()
	answer = append([]byte("HTTP/1.1 200 OK\r\nDate: Tue, 01 Dec 2026 00:00:00 GMT\r\nContent-Type: application/json\r\nContent-Length: "+strconv.Itoa(len(answer))+"\r\n\r\n"), answer...)
	for _, r := range h.fleet.Replicas() {
		up, err := h.relay.NewUpstream(relay.UpstreamOptions{URL: r.Conn().URL, Dial: func(context.Context, string, string) (net.Conn, error) {
			return &memEngine{answer: answer}, nil
		}})
		if err != nil {
			b.Fatal(err)
		}
		h.pools.live.Store(r.Conn(), up)
	}
}

type discardLines struct{}

func (discardLines) LineFormat() string { return "json" }
func (discardLines) TakeLine([]byte)    {}

// noDeadlines is the rest of a net.Conn.
type noDeadlines struct{ net.Conn }

func (noDeadlines) Close() error                     { return nil }
func (noDeadlines) LocalAddr() net.Addr              { return &net.TCPAddr{} }
func (noDeadlines) RemoteAddr() net.Addr             { return &net.TCPAddr{} }
func (noDeadlines) SetDeadline(time.Time) error      { return nil }
func (noDeadlines) SetReadDeadline(time.Time) error  { return nil }
func (noDeadlines) SetWriteDeadline(time.Time) error { return nil }

// memClient is a client that sends the same request again and again.
type memClient struct {
	noDeadlines
	request []byte
	left    int
	answers int
}

func (c *memClient) Read(p []byte) (int, error) {
	if c.left == 0 {
		return 0, io.EOF
	}
	c.left--
	return copy(p, c.request), nil
}

func (c *memClient) Write(p []byte) (int, error) {
	if bytes.HasPrefix(p, []byte("HTTP/1.1 200")) {
		c.answers++
	}
	return len(p), nil
}

// memEngine answers whatever it gets.
type memEngine struct {
	noDeadlines
	answer []byte
	due    []byte // of it
}

func (c *memEngine) Write(p []byte) (int, error) {
	c.due = c.answer
	return len(p), nil
}

func (c *memEngine) Read(p []byte) (int, error) {
	n := copy(p, c.due)
	c.due = c.due[n:]
	return n, nil
}

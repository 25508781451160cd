package gateway

import (
	"bufio"
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/valyala/fasthttp"
)

// BenchmarkRequest is a whole request through a gateway with a limited key, over
// loopback, to an upstream that answers at once: what one costs in time and
// allocations, of the client and the upstream (fasthttp's own: none) too.
func BenchmarkRequest(b *testing.B) {
	for _, size := range []int{0, 32 << 10, 400 << 10} {
		b.Run(fmt.Sprintf("%d KB", size>>10), func(b *testing.B) {
			g := startGateway(b, benchConfig, benchUpstream(b))
			body := `{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat("The water stands high. ", 1+size/23) + `"}],"max_tokens":16}`
			req := []byte(fmt.Sprintf("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer secret-K\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body))
			b.ReportAllocs()
			b.SetParallelism(8)
			b.RunParallel(func(pb *testing.PB) { exchange(b, pb, g.url, req) })
		})
	}
}

// exchange sends the same request again and again on one connection.
func exchange(b *testing.B, pb *testing.PB, url string, req []byte) {
	conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		b.Error(err)
		return
	}
	defer conn.Close()
	var resp fasthttp.Response
	rd := bufio.NewReader(conn)
	for pb.Next() {
		if _, err := conn.Write(req); err != nil {
			b.Error(err)
			return
		}
		if err := resp.Read(rd); err != nil || resp.StatusCode() != 200 {
			b.Errorf("got %d, %v", resp.StatusCode(), err)
			return
		}
	}
}

const benchConfig = `
models: [{name: m, engines: [{url: $1, kind: openai}]}]
keys: [{name: k, key: "${K}", limits: {requests_per_minute: 1000000000, tokens_per_minute: 1000000000000, concurrency: 100000}}]
log: {access: true}
`

// benchAnswer is a chat completion of about 1 KB.
func benchAnswer() []byte {
	return []byte(`{"id":"1","object":"chat.completion","model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"` +
		strings.Repeat("water ", 120) + `"},"finish_reason":"stop"}],"usage":{"prompt_tokens":64,"completion_tokens":150,"total_tokens":214}}`)
}

// benchUpstream answers every chat at once.
func benchUpstream(b *testing.B) string {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	answer := benchAnswer()
	s := &fasthttp.Server{NoDefaultServerHeader: true, MaxRequestBodySize: 64 << 20, Handler: func(ctx *fasthttp.RequestCtx) {
		ctx.SetContentType("application/json")
		if string(ctx.Path()) == "/v1/models" {
			ctx.SetBodyString(`{"object":"list","data":[{"id":"m","object":"model"}]}`)
			return
		}
		ctx.SetBody(answer)
	}}
	go func() { _ = s.Serve(ln) }()
	b.Cleanup(func() { _ = ln.Close() })
	return "http://" + ln.Addr().String()
}

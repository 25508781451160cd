package main

import (
	"bytes"
	"context"
	"io"
	"net"
	"strconv"
	"time"

	"github.com/valyala/fasthttp"
)

// The request tells the upstream what to answer, in fields that every proxy
// passes on: max_tokens is the number of events, seed the microseconds between
// two of them.

// serveUpstream answers as fast as can be, until ctx ends.
func serveUpstream(ctx context.Context, addr string) error {
	ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	s := &fasthttp.Server{
		Handler: upstreamHandler(wholeAnswer()), MaxRequestBodySize: 64 << 20, NoDefaultServerHeader: true, Concurrency: 1 << 20,
	}
	go func() {
		<-ctx.Done()
		_ = ln.Close()
	}()
	if err := s.Serve(ln); err != nil && ctx.Err() == nil {
		return err
	}
	return nil
}

// wholeAnswer is a chat completion of 1 KB.
func wholeAnswer() []byte {
	b := []byte(`{"id":"chatcmpl-0123456789abcdef","object":"chat.completion","created":1767225600,"model":"bench","choices":[{"index":0,"message":{"role":"assistant","content":"`)
	tail := `"},"logprobs":null,"finish_reason":"stop"}],"usage":{"prompt_tokens":64,"completion_tokens":150,"total_tokens":214,"prompt_tokens_details":{"cached_tokens":32}}}`
	b = append(b, bytes.Repeat([]byte("water "), (1024-len(b)-len(tail))/6)...)
	b = append(b, bytes.Repeat([]byte("."), 1024-len(b)-len(tail))...)
	return append(b, tail...)
}

func upstreamHandler(answer []byte) fasthttp.RequestHandler {
	return func(ctx *fasthttp.RequestCtx) {
		switch string(ctx.Path()) {
		case "/v1/models":
			ctx.SetContentType("application/json")
			ctx.SetBodyString(`{"object":"list","data":[{"id":"bench","object":"model","created":1767225600,"owned_by":"bench","max_model_len":1000000}]}`)
		case "/v1/chat/completions":
			tail := ctx.PostBody()
			if len(tail) > searched { // routers that write the body anew may move fields; a long one is not searched for them
				tail = tail[len(tail)-searched:]
			}
			ctx.SetContentType("application/json")
			if !bytes.Contains(tail, []byte(`"stream":true`)) {
				ctx.SetBody(answer)
				return
			}
			ctx.SetContentType("text/event-stream")
			ctx.SetBodyStream(&events{
				left: max(number(tail, `"max_tokens":`), number(tail, `"max_completion_tokens":`)), pace: time.Duration(number(tail, `"seed":`)) * time.Microsecond,
				usage: bytes.Contains(tail, []byte(`"include_usage":true`)),
			}, -1)
		case "/health", "/health_generate":
			ctx.SetBodyString("OK")
		default:
			ctx.SetContentType("application/json")
			ctx.Error(`{"error":{"message":"not here"}}`, fasthttp.StatusNotFound)
		}
	}
}

// searched is how much of a request's end is searched for what to answer.
const searched = 2 << 10

func number(b []byte, name string) int {
	i := bytes.LastIndex(b, []byte(name))
	if i < 0 {
		return 0
	}
	n := 0
	for _, c := range b[i+len(name):] {
		if c < '0' || c > '9' {
			break
		}
		n = 10*n + int(c-'0')
	}
	return n
}

// events is a stream of chat chunks. Each bears the time at which it was sent,
// in ns, and is one write, as from an engine.
type events struct {
	left  int
	pace  time.Duration
	usage bool
}

const (
	eventHead = `data: {"id":"chatcmpl-0123456789abcdef","object":"chat.completion.chunk","created":1767225600,"model":"bench","choices":[{"index":0,"delta":{"content":" water"},"logprobs":null,"finish_reason":null}],"t":`
	eventDone = "data: [DONE]\n\n"
	usageTail = `data: {"id":"chatcmpl-0123456789abcdef","object":"chat.completion.chunk","created":1767225600,"model":"bench","choices":[],"usage":{"prompt_tokens":64,"completion_tokens":128,"total_tokens":192}}` + "\n\n"
)

// SupportsBodyWriteTo tells fasthttp to call WriteTo.
func (e *events) SupportsBodyWriteTo() bool { return true }

func (e *events) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

// WriteTo writes the stream, each event at its time.
func (e *events) WriteTo(w io.Writer) (int64, error) {
	var total int64
	write := func(b []byte) error {
		n, err := w.Write(b)
		total += int64(n)
		return err
	}
	start, buf := time.Now(), make([]byte, 0, 512)
	for i := range e.left {
		if e.pace > 0 && i > 0 {
			time.Sleep(time.Until(start.Add(time.Duration(i) * e.pace)))
		}
		buf = strconv.AppendInt(append(buf[:0], eventHead...), time.Now().UnixNano(), 10)
		if err := write(append(buf, "}\n\n"...)); err != nil {
			return total, err
		}
	}
	if e.usage {
		if err := write([]byte(usageTail)); err != nil {
			return total, err
		}
	}
	return total, write([]byte(eventDone))
}

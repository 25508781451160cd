package gateway

import (
	"bytes"
	"io"
	"net"

	"github.com/valyala/fasthttp"
)

// endWithConnection writes an answer of unknown length to a client of HTTP/1.0,
// which knows no chunks: its end is the connection's.
func endWithConnection(ctx *fasthttp.RequestCtx) {
	resp := &ctx.Response
	body, ok := resp.BodyStream().(io.WriterTo)
	if !ok || ctx.IsHead() || resp.Header.ContentLength() >= 0 {
		return
	}
	resp.Header.Del(fasthttp.HeaderTransferEncoding)
	resp.Header.SetConnectionClose()
	head := resp.Header.AppendBytes(nil)
	stream := bytes.HasPrefix(resp.Header.ContentType(), []byte("text/event-stream"))
	ctx.HijackSetNoResponse(true)
	ctx.Hijack(func(c net.Conn) { // what it calls contains its own panics
		defer func() { _ = resp.CloseBodyStream() }()
		if _, err := c.Write(head); err != nil {
			return
		}
		if _, err := body.WriteTo(c); err != nil && !stream {
			resetOnClose(ctx.Conn()) // a stream has said so in an event, a body cannot
		}
	})
}

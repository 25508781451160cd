package main

import (
	"context"
	"net"
	"time"

	"github.com/valyala/fasthttp"
)

// serveFloor relays whole answers with fasthttp and does nothing else: no view
// of the body, no limits, no log, no deadlines. It says what this way of
// relaying costs at least.
func serveFloor(ctx context.Context, addr, upstream string) error {
	ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	hc := &fasthttp.HostClient{Addr: upstream, MaxConns: 1 << 16, MaxIdleConnDuration: 4 * time.Second, NoDefaultUserAgentHeader: true, MaxResponseBodySize: 1 << 20}
	s := &fasthttp.Server{
		MaxRequestBodySize: 64 << 20, NoDefaultServerHeader: true, Concurrency: 1 << 20,
		Handler: func(ctx *fasthttp.RequestCtx) {
			ctx.Request.Header.SetHost(upstream)
			if err := hc.Do(&ctx.Request, &ctx.Response); err != nil {
				ctx.Error(err.Error(), fasthttp.StatusBadGateway)
			}
		},
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

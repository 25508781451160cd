package local

import (
	"fmt"
	"strings"
	"testing"

	"github.com/valyala/fasthttp"
)

// Client and server share the process, so the figures are for both.
func BenchmarkServer(b *testing.B) {
	long := func(n int) string { return strings.Repeat("The gate opens and the water falls. ", n/36) }
	for _, bc := range []struct {
		name, path, body string
	}{
		{"chat_40_tokens", "/v1/chat/completions", `{` + hello + `,"max_tokens":40,"temperature":0,"ignore_eos":true}`},
		{"chat_40_sampled", "/v1/chat/completions", `{` + hello + `,"max_tokens":40,"ignore_eos":true}`},
		{"stream_128_events", "/v1/chat/completions", `{` + hello + `,"max_tokens":128,"temperature":0,"ignore_eos":true,"stream":true}`},
		{"prompt_32KB", "/v1/chat/completions", fmt.Sprintf(`{"messages":[{"role":"user","content":%q}],"max_tokens":1}`, long(32<<10))},
		{"prompt_400KB", "/v1/chat/completions", fmt.Sprintf(`{"messages":[{"role":"user","content":%q}],"max_tokens":1}`, long(400<<10))},
		{"score_2048_tokens", "/v1/completions", fmt.Sprintf(`{"prompt":%q,"max_tokens":0,"echo":true,"logprobs":1}`, long(8<<10))},
	} {
		b.Run(bc.name, func(b *testing.B) {
			_, base := start(b, Options{})
			c := &fasthttp.Client{}
			defer c.CloseIdleConnections()
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				req, resp := fasthttp.AcquireRequest(), fasthttp.AcquireResponse()
				req.SetRequestURI(base + bc.path)
				req.Header.SetMethod("POST")
				req.Header.SetContentType("application/json")
				req.SetBodyString(bc.body)
				for pb.Next() {
					if err := c.Do(req, resp); err != nil || resp.StatusCode() != 200 {
						b.Errorf("%s: %v %d %.200s", bc.name, err, resp.StatusCode(), resp.Body())
						return
					}
				}
			})
		})
	}
}

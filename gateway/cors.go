package gateway

import (
	"slices"
	"strconv"

	"github.com/valyala/fasthttp"
)

// crossOrigin answers a browser's preflight where cors.origins is configured;
// it reports whether it did.
func (s *Server) crossOrigin(r *request) bool {
	ctx := r.ctx
	if !ctx.IsOptions() || !r.originAllowed() || len(ctx.Request.Header.Peek("Access-Control-Request-Method")) == 0 {
		return false
	}
	h := &ctx.Response.Header
	ctx.SetStatusCode(fasthttp.StatusNoContent)
	h.Set("Access-Control-Allow-Methods", "GET, POST, DELETE, OPTIONS")
	if asked := ctx.Request.Header.Peek("Access-Control-Request-Headers"); len(asked) > 0 {
		h.SetBytesV("Access-Control-Allow-Headers", asked)
	}
	h.Set("Access-Control-Max-Age", strconv.Itoa(int(r.snap.cfg.CORS.MaxAge.Seconds())))
	r.corsHeaders()
	return true
}

// originAllowed says whether the request comes from a page that may read the answer.
func (r *request) originAllowed() bool {
	origins := r.snap.cfg.CORS.Origins
	if len(origins) == 0 {
		return false
	}
	o := string(r.ctx.Request.Header.Peek(fasthttp.HeaderOrigin))
	return o != "" && (slices.Contains(origins, o) || slices.Contains(origins, "*"))
}

// corsHeaders let such a page read the answer and our headers.
func (r *request) corsHeaders() {
	if !r.originAllowed() {
		return
	}
	h := &r.ctx.Response.Header
	h.SetBytesV("Access-Control-Allow-Origin", r.ctx.Request.Header.Peek(fasthttp.HeaderOrigin))
	h.Set("Vary", "Origin")
	h.Set("Access-Control-Expose-Headers", "x-request-id, x-penstock-queue-ms, x-penstock-limits-mode, retry-after, retry-after-ms, x-should-retry, "+
		"x-ratelimit-limit-requests, x-ratelimit-remaining-requests, x-ratelimit-reset-requests, "+
		"x-ratelimit-limit-tokens, x-ratelimit-remaining-tokens, x-ratelimit-reset-tokens, ratelimit, ratelimit-policy")
}

package local

import (
	"errors"
	"strconv"

	"github.com/valyala/fasthttp"
)

// route is what answers a path. An error becomes the kind's error body.
type route struct {
	method string // "" for any
	serve  func(*Server, *fasthttp.RequestCtx) error
	only   Kind // "" for both
}

// routes are all paths but those of faults.
func routes() map[string]route {
	return map[string]route{
		"/v1/chat/completions": {"POST", (*Server).serveChat, ""},
		"/v1/completions":      {"POST", (*Server).serveCompletion, ""},
		"/v1/embeddings":       {"POST", (*Server).serveEmbeddings, ""},
		"/generate":            {"", (*Server).serveGenerate, SGLang},
		"/tokenize":            {"POST", (*Server).serveTokenize, ""},
		"/detokenize":          {"POST", (*Server).serveDetokenize, ""},
		"/v1/tokenize":         {"POST", (*Server).serveTokenize, SGLang},
		"/v1/detokenize":       {"POST", (*Server).serveDetokenize, SGLang},
		"/tokenizer_info":      {"GET", (*Server).serveTokenizerInfo, ""},

		"/v1/models":       {"GET", (*Server).serveModels, ""},
		"/health":          {"GET", serveHealth, ""},
		"/health_generate": {"GET", serveHealth, SGLang},
		"/ping":            {"", serveHealth, VLLM},
		"/version":         {"GET", (*Server).serveVersion, VLLM},
		"/load":            {"GET", (*Server).serveLoad, VLLM},
		"/v1/loads":        {"GET", (*Server).serveLoads, SGLang},
		"/get_load":        {"GET", (*Server).serveGetLoad, SGLang},
		"/server_info":     {"GET", (*Server).serveServerInfo, SGLang},
		"/get_server_info": {"GET", (*Server).serveServerInfo, SGLang},
		"/model_info":      {"GET", (*Server).serveModelInfo, SGLang},
		"/get_model_info":  {"GET", (*Server).serveModelInfo, SGLang},
		"/metrics":         {"GET", (*Server).serveMetrics, ""},

		"/flush_cache":        {"", (*Server).serveFlush, SGLang},
		"/abort_request":      {"POST", (*Server).serveAbort, SGLang},
		"/reset_prefix_cache": {"POST", (*Server).serveReset, VLLM},
	}
}

func (s *Server) handle(ctx *fasthttp.RequestCtx) {
	path := string(ctx.Path())
	if path == "/fault" {
		s.serveFault(ctx)
		return
	}
	if thaw := s.frozen(); thaw != nil {
		select {
		case <-thaw:
		case <-s.closing:
			cut(ctx.Conn())
			return
		}
	}
	r, ok := s.routes[path]
	method := string(ctx.Method())
	switch {
	case !ok || r.only != "" && r.only != s.opts.Kind:
		detail(ctx, fasthttp.StatusNotFound, "Not Found")
	case r.method != "" && r.method != method && !(r.method == "GET" && method == "HEAD"):
		detail(ctx, fasthttp.StatusMethodNotAllowed, "Method Not Allowed")
	default:
		if err := r.serve(s, ctx); err != nil {
			s.fail(ctx, err)
		}
	}
}

// detail answers as the framework under both engines does.
func detail(ctx *fasthttp.RequestCtx, status int, text string) {
	ctx.SetStatusCode(status)
	ctx.SetContentType("application/json")
	ctx.SetBodyString(`{"detail":"` + text + `"}`)
}

func answer(ctx *fasthttp.RequestCtx, body []byte) {
	ctx.SetContentType("application/json")
	ctx.SetBody(body)
}

// fail answers with an error, or with nothing at all where nobody reads it.
func (s *Server) fail(ctx *fasthttp.RequestCtx, err error) {
	if errors.Is(err, errLeft) {
		ctx.SetConnectionClose()
		cut(ctx.Conn())
		return
	}
	e, ok := errors.AsType[*apiError](err)
	if !ok {
		e = badRequest("", "%v", err)
	}
	writeError(ctx, s.opts.Kind, e)
}

func (s *Server) serveChat(ctx *fasthttp.RequestCtx) error {
	c, err := s.parse(ctx.PostBody(), true)
	if err != nil {
		return err
	}
	return s.answerCall(ctx, c)
}

func (s *Server) serveCompletion(ctx *fasthttp.RequestCtx) error {
	c, err := s.parse(ctx.PostBody(), false)
	if err != nil {
		return err
	}
	return s.answerCall(ctx, c)
}

// answerCall generates what a call asks for.
func (s *Server) answerCall(ctx *fasthttp.RequestCtx, c *call) error {
	ctx.Request.ReleaseBody(64 << 10) // all of it has been copied
	if err := s.readRank(ctx, c); err != nil {
		return err
	}
	id, rid := s.newID(ctx, c)
	x := s.newExchange(c, id, rid)
	x.fault = s.fault()
	if answered, err := x.suffer(ctx); answered || err != nil {
		return err
	}
	s.live.add(x, ctx.Conn())
	if err := x.begin(); err != nil {
		x.end()
		if c.stream && s.opts.Kind == SGLang {
			return s.streamError(ctx, err) // SGLang has sent its 200 by then
		}
		return err
	}
	if c.stream {
		ctx.SetContentType("text/event-stream; charset=utf-8")
		ctx.Response.SetBodyStream(newStream(x), -1)
		return nil
	}
	defer x.end()
	if err := x.finish(); err != nil {
		return err
	}
	b := x.whole(s.buffers.get())
	answer(ctx, b)
	s.buffers.put(b)
	return nil
}

// suffer applies the fault that hits a request before it begins. It tells
// whether the request has been answered.
func (x *exchange) suffer(ctx *fasthttp.RequestCtx) (answered bool, err error) {
	f, s := x.fault, x.srv
	if f == nil {
		return false, nil
	}
	switch f.Kind {
	case Fault503:
		return true, &apiError{status: 503, kind: "ServiceUnavailableError", message: "fault: 503", retryAfter: f.RetryAfter}
	case Fault429:
		return true, &apiError{status: 429, kind: "TooManyRequestsError", message: "fault: 429", retryAfter: f.RetryAfter}
	case Fault503InStream:
		err := &apiError{status: 503, kind: "SERVICE_UNAVAILABLE", message: "fault: 503 inside a stream"}
		if x.call.stream {
			return true, s.streamError(ctx, err)
		}
		return true, err
	case FaultFreeze:
		s.live.add(x, ctx.Conn())
		defer x.end()
		select {
		case <-x.left:
		case <-s.closing:
		}
		return true, errLeft
	case FaultDie:
		if !x.call.stream || f.After == 0 {
			return true, errLeft
		}
	}
	return false, nil
}

// streamError answers 200 and then, inside the stream, the error.
func (s *Server) streamError(ctx *fasthttp.RequestCtx, err error) error {
	e, ok := errors.AsType[*apiError](err)
	if !ok {
		return err
	}
	if e.kind == "503" {
		e.kind = "SERVICE_UNAVAILABLE"
	}
	ctx.SetContentType("text/event-stream; charset=utf-8")
	ctx.SetBody(append(appendStreamError(nil, s.opts.Kind, e), "data: [DONE]\n\n"...))
	return nil
}

// newID makes a request's ids: the one in the answer, and the one that
// /abort_request takes. vLLM takes over x-request-id, SGLang the body's rid.
func (s *Server) newID(ctx *fasthttp.RequestCtx, c *call) (id, rid string) {
	if c.rid != "" {
		return c.rid, c.rid
	}
	n := s.ids.Add(1)*0x9E3779B97F4A7C15 ^ s.seed
	var b [32]byte
	for i := range b {
		b[i] = hex[n>>(i*4%64)&15]
		if i == 15 {
			n = n*0xD6E8FEB86659FD93 ^ n>>32
		}
	}
	rid = string(b[:])
	if s.opts.Kind == SGLang {
		return rid, rid
	}
	rid = rid[:16]
	if own := ctx.Request.Header.Peek("X-Request-Id"); len(own) > 0 {
		rid = string(own)
	}
	if c.chat {
		return "chatcmpl-" + rid, rid
	}
	return "cmpl-" + rid, rid
}

// readRank reads the data-parallel rank from the header, as the kind does.
func (s *Server) readRank(ctx *fasthttp.RequestCtx, c *call) error {
	if h := ctx.Request.Header.Peek("X-Data-Parallel-Rank"); len(h) > 0 && c.native == nil {
		n, err := strconv.Atoi(string(h))
		switch {
		case err == nil:
			c.rank, c.ranked = n, true
		case s.opts.Kind == SGLang:
			return badRequest("", "Invalid X-Data-Parallel-Rank header: must be an integer, got %q", h)
		}
	}
	if c.ranked && (c.rank < 0 || c.rank >= s.opts.DP) {
		if s.opts.Kind == VLLM {
			return badRequest("", "data_parallel_rank %d is out of range [0, %d).", c.rank, s.opts.DP)
		}
		return badRequest("", "routed_dp_rank=%d out of range [0, %d)", c.rank, s.opts.DP)
	}
	return nil
}

func (s *Server) serveFault(ctx *fasthttp.RequestCtx) {
	body, err := s.faultAdmin(string(ctx.Method()), ctx.PostBody(), ctx.Conn())
	if err != nil {
		writeError(ctx, s.opts.Kind, badRequest("", "%v", err))
		return
	}
	answer(ctx, body)
}

func (s *Server) serveFlush(ctx *fasthttp.RequestCtx) error {
	for _, r := range s.ranks {
		if !r.Flush(true) {
			ctx.SetStatusCode(fasthttp.StatusBadRequest)
			ctx.SetBodyString("Cache flush failed: requests are running or waiting.\n")
			return nil
		}
	}
	ctx.SetBodyString("Cache flushed.\nPlease check backend logs for more details. (When there are running or waiting requests, the operation will not be performed.)\n")
	return nil
}

func (s *Server) serveReset(*fasthttp.RequestCtx) error {
	s.Flush()
	return nil
}

func serveHealth(*Server, *fasthttp.RequestCtx) error { return nil }

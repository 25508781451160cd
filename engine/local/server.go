package local

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/valyala/fasthttp"

	"penstock/engine/local/lm"
	"penstock/engine/local/sched"
)

// Server is one embedded engine behind one port. Its methods may be called
// from any goroutine.
type Server struct {
	opts    Options
	model   *lm.Model
	http    *fasthttp.Server
	started time.Time
	ids     atomic.Uint64
	seed    uint64

	mu    sync.Mutex // guards the caches until the scheduler does
	cache []*sched.Cache
	next  atomic.Uint64
}

// New makes an engine; Serve opens it.
func New(o Options) (*Server, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("local engine: %w", err)
	}
	s := &Server{opts: o, model: lm.Shared(), started: time.Now(), seed: uint64(time.Now().UnixNano())}
	for range o.DP {
		s.cache = append(s.cache, sched.NewCache(o.KVTokens, o.PageSize))
	}
	s.http = &fasthttp.Server{
		Handler:                       s.handle,
		Name:                          "penstock-local",
		MaxRequestBodySize:            1 << 30,
		ReadBufferSize:                16 << 10,
		ReduceMemoryUsage:             true,
		IdleTimeout:                   5 * time.Second, // as both engines do
		NoDefaultDate:                 true,
		DisableHeaderNamesNormalizing: false,
		SecureErrorLogMessage:         true,
		CloseOnShutdown:               true,
		Logger:                        discard{},
	}
	return s, nil
}

type discard struct{}

func (discard) Printf(string, ...any) {}

// Serve answers on ln until Close or Shutdown, which make it return nil.
func (s *Server) Serve(ln net.Listener) error { return s.http.Serve(ln) }

// Shutdown stops accepting, lets running requests finish until ctx ends, then
// cuts them off.
func (s *Server) Shutdown(ctx context.Context) error { return s.http.ShutdownWithContext(ctx) }

// Close cuts everything off.
func (s *Server) Close() error {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_ = s.http.ShutdownWithContext(ctx)
	return nil
}

func (s *Server) handle(ctx *fasthttp.RequestCtx) {
	path := string(ctx.Path())
	switch path {
	case "/v1/chat/completions":
		s.generate(ctx, true)
	case "/v1/completions":
		s.generate(ctx, false)
	case "/v1/models":
		s.models(ctx)
	case "/health", "/health_generate", "/ping":
		ctx.SetStatusCode(fasthttp.StatusOK)
	default:
		ctx.SetStatusCode(fasthttp.StatusNotFound)
		ctx.SetContentType("application/json")
		ctx.SetBodyString(`{"detail":"Not Found"}`)
	}
}

func (s *Server) generate(ctx *fasthttp.RequestCtx, chat bool) {
	c, err := s.parse(ctx.PostBody(), chat)
	if err == nil {
		err = s.readRank(ctx, c)
	}
	if err != nil {
		writeError(ctx, s.opts.Kind, asAPIError(err))
		return
	}
	x := s.newExchange(c, s.newID(ctx, chat))
	x.run()
	if c.stream {
		ctx.SetContentType("text/event-stream; charset=utf-8")
		ctx.Response.SetBodyStream(newStream(x), -1)
		return
	}
	ctx.SetContentType("application/json")
	ctx.SetBody(x.whole(nil))
}

// run generates everything at once.
func (x *exchange) run() {
	s := x.srv
	rank := x.call.rank
	if rank < 0 {
		rank = int(s.next.Add(1)-1) % s.opts.DP
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.cache[rank]
	for _, g := range x.gens {
		at, n := k.Pin(g.prompt[:len(g.prompt)-1])
		g.cached = n
		need := len(g.prompt) - n
		k.Reserve(need)
		at, stored := k.Store(at, n, g.prompt)
		for x.call.maxTokens != 0 {
			if _, done := g.Next(); done {
				break
			}
		}
		if x.call.maxTokens == 0 {
			g.reason = "length"
		}
		k.Unpin(at)
		k.Release(need - (stored - n))
	}
}

func asAPIError(err error) *apiError {
	if e, ok := err.(*apiError); ok {
		return e
	}
	return badRequest("", "%v", err)
}

// newID makes a request id; vLLM takes over x-request-id.
func (s *Server) newID(ctx *fasthttp.RequestCtx, chat bool) string {
	id := strconv.FormatUint(s.ids.Add(1)*0x9E3779B97F4A7C15^s.seed, 16)
	if s.opts.Kind == SGLang {
		return fmt.Sprintf("%032s", id)
	}
	if own := ctx.Request.Header.Peek("X-Request-Id"); len(own) > 0 {
		id = string(own)
	}
	if chat {
		return "chatcmpl-" + id
	}
	return "cmpl-" + id
}

// readRank reads the data-parallel rank from the header, as the kind does.
func (s *Server) readRank(ctx *fasthttp.RequestCtx, c *call) error {
	if h := string(ctx.Request.Header.Peek("X-Data-Parallel-Rank")); h != "" {
		n, err := strconv.Atoi(h)
		switch {
		case err == nil:
			c.rank = n
		case s.opts.Kind == SGLang:
			return badRequest("", "Invalid X-Data-Parallel-Rank header: must be an integer, got %q", h)
		}
	}
	if c.rank < -1 || c.rank >= s.opts.DP {
		if s.opts.Kind == VLLM {
			return badRequest("", "data_parallel_rank %d is out of range [0, %d).", c.rank, s.opts.DP)
		}
		return badRequest("", "routed_dp_rank=%d out of range [0, %d)", c.rank, s.opts.DP)
	}
	return nil
}

func (s *Server) models(ctx *fasthttp.RequestCtx) {
	b := append([]byte(nil), `{"object":"list","data":[{"id":`...)
	b = appendString(b, s.opts.Model)
	b = append(b, `,"object":"model","created":`...)
	b = appendInt(b, s.started.Unix())
	b = append(b, `,"owned_by":`...)
	b = appendString(b, string(s.opts.Kind))
	b = append(b, `,"root":`...)
	b = appendString(b, s.opts.Model)
	b = append(b, `,"parent":null,"max_model_len":`...)
	b = appendInt(b, s.opts.ContextLen)
	b = append(b, "}]}"...)
	ctx.SetContentType("application/json")
	ctx.SetBody(b)
}

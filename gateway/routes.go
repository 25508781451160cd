package gateway

import (
	"bytes"
	"slices"
	"strings"

	"github.com/valyala/fasthttp"

	"penstock/gateway/body"
)

// route is what one path means.
type route struct {
	path     string
	methods  []string
	endpoint body.Endpoint
	shape    shape
	serve    func(*Server, *request)

	counted       bool // in metrics and the access log
	whileDraining bool
}

// routes is every path of the client listener but those with an id in them.
func routes() []route {
	gen := (*Server).generate
	post := []string{fasthttp.MethodPost}
	get := []string{fasthttp.MethodGet, fasthttp.MethodHead}
	getOrPost := []string{fasthttp.MethodGet, fasthttp.MethodPost, fasthttp.MethodHead}
	return []route{
		{path: "/v1/chat/completions", methods: post, endpoint: body.Chat, shape: shapeOpenAI, serve: gen},
		{path: "/v1/completions", methods: post, endpoint: body.Completions, shape: shapeOpenAI, serve: gen},
		{path: "/v1/embeddings", methods: post, endpoint: body.Embeddings, shape: shapeOpenAI, serve: gen},
		{path: "/v1/responses", methods: post, endpoint: body.Responses, shape: shapeResponses, serve: gen},
		{path: "/v1/messages", methods: post, endpoint: body.Messages, shape: shapeAnthropic, serve: gen},
		{path: "/generate", methods: post, endpoint: body.Generate, shape: shapeOpenAI, serve: gen},

		{path: "/v1/rerank", methods: post, endpoint: body.Rerank, shape: shapeOpenAI, serve: gen},
		{path: "/v2/rerank", methods: post, endpoint: body.Rerank, shape: shapeOpenAI, serve: gen},
		{path: "/rerank", methods: post, endpoint: body.Rerank, shape: shapeOpenAI, serve: gen},
		{path: "/v1/score", methods: post, endpoint: body.Score, shape: shapeOpenAI, serve: gen},
		{path: "/score", methods: post, endpoint: body.Score, shape: shapeOpenAI, serve: gen},
		{path: "/classify", methods: post, endpoint: body.Pooling, shape: shapeOpenAI, serve: gen},
		{path: "/pooling", methods: post, endpoint: body.Pooling, shape: shapeOpenAI, serve: gen},
		{path: "/v1/audio/speech", methods: post, endpoint: body.Other, shape: shapeOpenAI, serve: gen},
		{path: "/v1/audio/transcriptions", methods: post, endpoint: body.Audio, shape: shapeOpenAI, serve: gen},
		{path: "/v1/audio/translations", methods: post, endpoint: body.Audio, shape: shapeOpenAI, serve: gen},
		{path: "/v1/messages/count_tokens", methods: post, endpoint: body.Other, shape: shapeAnthropic, serve: gen},
		{path: "/tokenize", methods: post, endpoint: body.Tokenize, shape: shapeOpenAI, serve: gen},
		{path: "/detokenize", methods: post, endpoint: body.Detokenize, shape: shapeOpenAI, serve: gen},
		{path: "/v1/tokenize", methods: post, endpoint: body.Tokenize, shape: shapeOpenAI, serve: gen},
		{path: "/v1/detokenize", methods: post, endpoint: body.Detokenize, shape: shapeOpenAI, serve: gen},

		{path: "/v1/models", methods: get, endpoint: body.Other, shape: shapeOpenAI, serve: (*Server).listModels},
		{path: "/tokenizer_info", methods: get, endpoint: body.Other, shape: shapeOpenAI, serve: (*Server).passToAny},
		{path: "/server_info", methods: get, endpoint: body.Other, shape: shapeOpenAI, serve: (*Server).passToAny},
		{path: "/get_server_info", methods: get, endpoint: body.Other, shape: shapeOpenAI, serve: (*Server).passToAny},
		{path: "/model_info", methods: get, endpoint: body.Other, shape: shapeOpenAI, serve: (*Server).passToAny},
		{path: "/get_model_info", methods: get, endpoint: body.Other, shape: shapeOpenAI, serve: (*Server).passToAny},
		{path: "/version", methods: get, endpoint: body.Other, shape: shapeOpenAI, serve: (*Server).passToAny},
		{path: "/flush_cache", methods: getOrPost, endpoint: body.Other, shape: shapeOpenAI, serve: (*Server).flushCaches},
		{path: "/health", methods: get, endpoint: body.Other, shape: shapeOpenAI, serve: (*Server).ready},
		{path: "/readyz", methods: get, endpoint: body.Other, shape: shapeOpenAI, serve: (*Server).ready},
		{path: "/healthz", methods: get, endpoint: body.Other, shape: shapeOpenAI, serve: (*Server).alive},
	}
}

// Paths that end in an id.
const (
	modelsPrefix    = "/v1/models/"
	responsesPrefix = "/v1/responses/"
)

// addRoutes makes the routes ready to be looked up.
func (s *Server) addRoutes() {
	all := routes()
	for i := range all {
		rt := &all[i]
		rt.counted = rt.path != "/health" && rt.path != "/healthz" && rt.path != "/readyz"
		rt.whileDraining = !rt.counted
		s.routes[rt.path] = rt
	}
	s.modelRoute, s.responseRoute = routesWithIDs()
}

// routesWithIDs are those of paths that end in an id.
func routesWithIDs() (model, response *route) {
	model = &route{
		path: modelsPrefix + "{id}", methods: []string{fasthttp.MethodGet, fasthttp.MethodHead}, serve: (*Server).oneModel, counted: true,
	}
	response = &route{
		path: responsesPrefix + "{id}", methods: []string{fasthttp.MethodGet, fasthttp.MethodHead, fasthttp.MethodPost, fasthttp.MethodDelete},
		shape: shapeResponses, serve: (*Server).oneResponse, counted: true,
	}
	return model, response
}

// findRoute is the route of the request, or the error that says what is wrong with its path or method.
func (s *Server) findRoute(ctx *fasthttp.RequestCtx) (*route, error) {
	path := ctx.Path()
	rt, ok := s.routes[string(path)]
	if !ok {
		if rt, ok = s.routeWithID(ctx); !ok {
			return &route{shape: shapeOf(path), path: "unknown", counted: true}, unknownURL(ctx, s.routes)
		}
	}
	if !slices.Contains(rt.methods, string(ctx.Method())) {
		allow := strings.Join(rt.methods, ", ")
		return rt, &Error{
			Status: fasthttp.StatusMethodNotAllowed, Type: typeInvalid, Code: "method_not_allowed", Allow: allow,
			Message: "Method " + string(ctx.Method()) + " is not allowed on " + string(path) + ". It takes " + allow + ".",
		}
	}
	return rt, nil
}

// routeWithID finds the routes that end in an id, which may hold slashes, escaped or not.
func (s *Server) routeWithID(ctx *fasthttp.RequestCtx) (*route, bool) {
	path := ctx.URI().PathOriginal()
	switch {
	case bytes.HasPrefix(path, []byte(modelsPrefix)) && len(path) > len(modelsPrefix):
		return s.modelRoute, true
	case bytes.HasPrefix(path, []byte(responsesPrefix)) && len(path) > len(responsesPrefix):
		return s.responseRoute, true
	}
	return nil, false
}

// shapeOf is the shape of errors for a path that has no route.
func shapeOf(path []byte) shape {
	if bytes.HasPrefix(path, []byte("/v1/messages")) {
		return shapeAnthropic
	}
	return shapeOpenAI
}

// unknownURL names the path and, where a known one differs by its /v1 alone, that one.
func unknownURL(ctx *fasthttp.RequestCtx, known map[string]*route) *Error {
	path := string(ctx.Path())
	e := &Error{
		Status: fasthttp.StatusNotFound, Type: typeInvalid, Code: "unknown_url",
		Message: "Unknown request URL: " + string(ctx.Method()) + " " + path + ".",
	}
	for _, guess := range []string{"/v1" + path, strings.TrimPrefix(path, "/v1"), strings.TrimRight(path, "/")} {
		if _, ok := known[guess]; ok && guess != path {
			e.Message += " Did you mean " + guess + "?"
			break
		}
	}
	return e
}

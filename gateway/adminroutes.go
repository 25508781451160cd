package gateway

import (
	"crypto/subtle"
	"net/http"
	"net/http/pprof"
	"strings"
)

// adminHandler serves one path of the operators' listener.
type adminHandler func(*Server, http.ResponseWriter, *http.Request)

// adminRoute is one path of the operators' listener.
type adminRoute struct {
	pattern string // as http.ServeMux reads it
	serve   adminHandler
	change  bool // needs admin.key where one is configured

	// paths are what the pattern stands for, where it does not say so itself.
	paths []string
}

// adminRoutes is every path of the operators' listener.
func adminRoutes() []adminRoute {
	return append(pageRoutes(), []adminRoute{
		{pattern: "GET /metrics", serve: (*Server).adminMetrics},
		{pattern: "GET /healthz", serve: (*Server).adminAlive},
		{pattern: "GET /readyz", serve: (*Server).adminReady},
		{pattern: "GET /replicas", serve: (*Server).adminReplicas},
		{pattern: "POST /replicas", serve: (*Server).adminAdd, change: true},
		{pattern: "DELETE /replicas/{id...}", serve: (*Server).adminRemove, change: true},
		{
			pattern: "POST /replicas/{id...}", serve: (*Server).adminDrain, change: true, // an id may hold slashes
			paths: []string{"/replicas/{id}/drain", "/replicas/{id}/undrain"},
		},
		{pattern: "GET /limits", serve: (*Server).adminLimits},
		{pattern: "POST /limits/{key}/reset", serve: (*Server).adminReset, change: true},
		{pattern: "GET /config", serve: (*Server).adminConfig},
		{pattern: "POST /reload", serve: (*Server).adminReload, change: true},
		{pattern: "GET /requests", serve: (*Server).adminRequests},
		{pattern: "GET /requests/{id}", serve: (*Server).adminRequest},
		{pattern: "GET /debug/pprof/{$}", serve: profiler(pprof.Index), change: true},
		{pattern: "GET /debug/pprof/{profile}", serve: profiler(pprof.Index), change: true},
		{pattern: "GET /debug/pprof/cmdline", serve: profiler(pprof.Cmdline), change: true},
		{pattern: "GET /debug/pprof/profile", serve: profiler(pprof.Profile), change: true},
		{pattern: "GET /debug/pprof/symbol", serve: profiler(pprof.Symbol), change: true},
		{pattern: "POST /debug/pprof/symbol", serve: profiler(pprof.Symbol), change: true},
		{pattern: "GET /debug/pprof/trace", serve: profiler(pprof.Trace), change: true},
	}...)
}

// profiler is one of Go's own profiling pages.
func profiler(h http.HandlerFunc) adminHandler {
	return func(_ *Server, w http.ResponseWriter, r *http.Request) { h(w, r) }
}

// Admin is the handler of the operators' listener: reading is open to whoever
// reaches the listener, every change needs admin.key where one is configured.
func (s *Server) Admin() http.Handler {
	mux := http.NewServeMux()
	for _, rt := range adminRoutes() {
		h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { rt.serve(s, w, r) })
		if rt.change {
			h = s.change(h)
		}
		mux.Handle(rt.pattern, h)
	}
	// A page of another site must not act with this browser's reach.
	guard := http.NewCrossOriginProtection()
	guard.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		s.writeError(w, &Error{Status: http.StatusForbidden, Type: typeInvalid, Code: "cross_origin", Message: "A page of another site may not do this."})
	}))
	return guard.Handler(s.named(mux))
}

// change lets through who presents the admin key, where one is configured.
func (s *Server) change(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		want := []byte(s.snapshot.Load().cfg.Admin.Key)
		got := []byte(strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "))
		if len(want) > 0 && subtle.ConstantTimeCompare(got, want) != 1 {
			s.writeError(w, &Error{Status: http.StatusUnauthorized, Type: typeInvalid, Code: "invalid_api_key", Message: "This needs the admin key (admin.key), as \"Authorization: Bearer KEY\"."})
			return
		}
		next(w, r)
	}
}

// named answers what no pattern takes as the client listener does: with an
// error that names the path, or the methods that it takes.
func (s *Server) named(mux *http.ServeMux) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h, pattern := mux.Handler(r)
		if pattern != "" {
			mux.ServeHTTP(w, r)
			return
		}
		v := &verdict{header: http.Header{}}
		h.ServeHTTP(v, r)
		switch v.status {
		case http.StatusNotFound:
			s.writeError(w, &Error{
				Status: http.StatusNotFound, Type: typeInvalid, Code: "unknown_url",
				Message: "Unknown request URL: " + r.Method + " " + clip(r.URL.Path, 200) + ".",
			})
		case http.StatusMethodNotAllowed:
			allow := v.header.Get("Allow")
			s.writeError(w, &Error{
				Status: http.StatusMethodNotAllowed, Type: typeInvalid, Code: "method_not_allowed", Allow: allow,
				Message: "Method " + r.Method + " is not allowed on " + clip(r.URL.Path, 200) + ". It takes " + allow + ".",
			})
		default: // sent on to the path without its double slashes
			h.ServeHTTP(w, r)
		}
	})
}

// verdict takes what a ServeMux says of a request that it has no handler for.
type verdict struct {
	header http.Header
	status int
}

func (v *verdict) Header() http.Header         { return v.header }
func (v *verdict) WriteHeader(status int)      { v.status = status }
func (v *verdict) Write(p []byte) (int, error) { return len(p), nil }

func (s *Server) adminMetrics(w http.ResponseWriter, r *http.Request) {
	if s.options.Page == nil {
		http.NotFound(w, r)
		return
	}
	s.options.Page.ServeHTTP(w, r)
}

func (s *Server) adminAlive(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, readiness{Status: "ok"})
}

package gateway

import (
	"embed"
	"net/http"
	"time"
)

// The status page, in reading order: statuspage.go (its paths),
// statuspage_feed.go (one update a second for all who watch),
// statuspage_state.go (what an update holds), statuspage_history.go (the
// chart), statuspage_trouble.go and statuspage_advice.go (plain words),
// statuspage_tally.go (what is counted for it), page/ (what the browser runs).

//go:embed page/*.html page/*.css page/*.js page/*.svg
var pageFiles embed.FS

// pagePolicy lets the page load nothing but its own files, and talk to nobody
// but this listener.
const pagePolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// pageRoutes are the status page's paths. Whoever reaches the listener may read
// it; its actions are the admin API's, and need admin.key.
func pageRoutes() []adminRoute {
	all := []adminRoute{
		{pattern: "GET /{$}", serve: servePage("index.html", "text/html; charset=utf-8")},
		{pattern: "GET /page/style.css", serve: servePage("style.css", "text/css; charset=utf-8")},
		{pattern: "GET /page/icon.svg", serve: servePage("icon.svg", "image/svg+xml")},
		{pattern: "GET /events", serve: (*Server).adminEvents},
	}
	for _, name := range []string{"script.js", "charts.js", "elements.js"} {
		all = append(all, adminRoute{pattern: "GET /page/" + name, serve: servePage(name, "text/javascript; charset=utf-8")})
	}
	return all
}

func servePage(name, contentType string) adminHandler {
	b, err := pageFiles.ReadFile("page/" + name)
	if err != nil { // the file is embedded
		panic(err)
	}
	return func(_ *Server, w http.ResponseWriter, _ *http.Request) {
		h := w.Header()
		h.Set("Content-Type", contentType)
		h.Set("Content-Security-Policy", pagePolicy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cache-Control", "no-cache") // a new version's files belong together
		_, _ = w.Write(b)
	}
}

// watcherTimeout bounds one write to a page that does not read.
const watcherTimeout = 10 * time.Second

// adminEvents sends the status page's updates as server-sent events: history,
// once, then status every second.
func (s *Server) adminEvents(w http.ResponseWriter, r *http.Request) {
	b, updates, leave, ok := s.feed.watch()
	if !ok {
		s.writeError(w, serverError(http.StatusServiceUnavailable, "too_many_watchers", "Too many status pages are open, or the gateway ends."))
		return
	}
	defer leave()
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no") // nginx would hold updates back
	if r.Method == http.MethodHead { // there is no body that could go on
		return
	}
	rc := http.NewResponseController(w)
	for more := true; more; {
		_ = rc.SetWriteDeadline(time.Now().Add(watcherTimeout))
		if _, err := w.Write(b); err != nil {
			return
		}
		if err := rc.Flush(); err != nil {
			return
		}
		select {
		case <-r.Context().Done():
			return
		case b, more = <-updates:
		}
	}
}

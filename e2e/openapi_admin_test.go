package e2e

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"penstock/e2e/harness"
	"penstock/e2e/scripted"
)

// admin asks the operators' listener for all but replicas and the status page.
func (c *contract) admin(g *harness.Process) {
	const reset, one = "POST /limits/{key}/reset", "GET /requests/{id}"
	for _, q := range []ask{
		{operation: "GET /healthz", status: 200},
		{operation: "GET /readyz", status: 200},
		{operation: "GET /metrics", status: 200},
		{operation: "GET /metrics", headers: []string{"Accept", "application/openmetrics-text"}, status: 200},
		{operation: "GET /limits", status: 200},
		{operation: reset, path: "/limits/few/reset", headers: operator(), status: 200},
		{operation: reset, path: "/limits/nobody/reset", headers: operator(), status: 404, code: "not_found"},
		{operation: reset, path: "/limits/few/reset", status: 401, code: "invalid_api_key"},
		{operation: "GET /config", status: 200},
		{operation: "GET /config", headers: []string{"Accept", "application/json"}, status: 200},
		{operation: "POST /reload", headers: operator(), status: 200},
		{operation: "POST /reload", headers: as("any"), status: 401, code: "invalid_api_key"},
		{operation: "GET /requests", status: 200},
		{operation: "GET /requests", path: "/requests?errors=1", status: 200},
		{operation: one, path: "/requests/mine", status: 200},
		{operation: one, path: "/requests/none", status: 404, code: "not_found"},
		{operation: "GET /debug/pprof/", headers: operator(), status: 200},
		{operation: "GET /debug/pprof/{profile}", path: "/debug/pprof/goroutine?debug=1", headers: operator(), status: 200},
		{operation: "GET /debug/pprof/{profile}", path: "/debug/pprof/heap", headers: operator(), status: 200},
		{operation: "GET /debug/pprof/{profile}", path: "/debug/pprof/none", headers: operator(), status: 404},
		{operation: "GET /debug/pprof/profile", path: "/debug/pprof/profile?seconds=1", headers: operator(), status: 200},
		{operation: "GET /debug/pprof/trace", path: "/debug/pprof/trace?seconds=0.1", headers: operator(), status: 200},
		{operation: "GET /debug/pprof/cmdline", headers: operator(), status: 200},
		{operation: "GET /debug/pprof/symbol", headers: operator(), status: 200},
		{operation: "POST /debug/pprof/symbol", body: "0x1", headers: operator(), status: 200},
		{operation: "GET /debug/pprof/{profile}", path: "/debug/pprof/heap", status: 401, code: "invalid_api_key"},
		{operation: "GET /debug/pprof/cmdline", status: 401, code: "invalid_api_key"},
	} {
		c.send(g.Admin, q)
	}
	c.general("an unknown path", "AdminUnknownURL", do(c.t, "GET", g.Admin+"/replica", ""))
	c.general("an unknown action", "AdminNotFound", do(c.t, "POST", g.Admin+"/replicas/one/restart", "", operator()...))
	wrong := do(c.t, "DELETE", g.Admin+"/limits", "", operator()...)
	c.general("a wrong method", "AdminMethodNotAllowed", wrong)
	if wrong.status != http.StatusMethodNotAllowed || wrong.header.Get("Allow") != "GET, HEAD" {
		c.t.Errorf("DELETE /limits: got %d, Allow %q; want 405 and GET, HEAD", wrong.status, wrong.header.Get("Allow"))
	}
	other := do(c.t, "POST", g.Admin+"/reload", "", append(operator(), "Sec-Fetch-Site", "cross-site")...)
	if other.status != http.StatusForbidden {
		c.t.Errorf("from a page of another site: got %d, want 403", other.status)
	}
	c.general("from a page of another site", "CrossOrigin", other)
	c.badReload(g)
}

// badReload reloads a file with a mistake, and then the one before.
func (c *contract) badReload(g *harness.Process) {
	text := readFile(c.t, g.Config)
	write(c.t, g.Config, append(text, "nonsense: 1\n"...))
	c.send(g.Admin, ask{operation: "POST /reload", headers: operator(), status: 400, code: "invalid_config"})
	write(c.t, g.Config, text)
	c.send(g.Admin, ask{operation: "POST /reload", headers: operator(), status: 200})
}

// replicas adds, drains and removes some.
func (c *contract) replicas(g *harness.Process, up *scripted.Upstream) {
	const add, remove, drain, undrain = "POST /replicas", "DELETE /replicas/{id}", "POST /replicas/{id}/drain", "POST /replicas/{id}/undrain"
	const gone = `{"model":"second","url":"http://127.0.0.1:1","id":"gone/0","kind":"openai"}`
	for _, q := range []ask{
		{operation: "GET /replicas", status: 200},
		{operation: add, body: gone, status: 401, code: "invalid_api_key"},
		{operation: add, body: gone, status: 201},
		{operation: add, body: `{"model":"second","url":"` + up.URL + `","id":"more","roles":["chat"],"max_running":8,"kv_tokens":4096}`, status: 201},
		{operation: "GET /replicas", status: 200},
		{operation: add, body: gone, status: 409, code: "conflict"},
		{operation: add, body: `{"model":"nobody","url":"http://127.0.0.1:1"}`, status: 404, code: "not_found"},
		{operation: add, body: `{"model":"second"}`, status: 400, code: "invalid_value"},
		{operation: add, body: `{"model":"second","address":"x"}`, status: 400, code: "invalid_json"},
		{operation: add, body: `{"model":"` + strings.Repeat("x", 2<<20) + `"}`, status: 413, code: "request_too_large"},
		{operation: drain, path: "/replicas/gone/0/drain", status: 200},
		{operation: undrain, path: "/replicas/gone/0/undrain", status: 200},
		{operation: drain, path: "/replicas/gone/0/drain", status: 401, code: "invalid_api_key"},
		{operation: undrain, path: "/replicas/none/undrain", status: 404, code: "not_found"},
		{operation: remove, path: "/replicas/gone/0", status: 401, code: "invalid_api_key"},
		{operation: remove, path: "/replicas/gone/0", status: 200},
		{operation: remove, path: "/replicas/gone/0", status: 404, code: "not_found"},
		{operation: remove, path: "/replicas/one", status: 409, code: "conflict"},
	} {
		if q.status != http.StatusUnauthorized {
			q.headers = operator()
		}
		c.send(g.Admin, q)
	}
}

// page reads the status page, its files and its updates, and asks for more
// updates than are given.
func (c *contract) page(g *harness.Process) {
	for _, path := range []string{"/", "/page/style.css", "/page/icon.svg", "/page/script.js", "/page/charts.js", "/page/elements.js"} {
		c.send(g.Admin, ask{operation: "GET " + path, status: 200})
	}
	ctx, leave := context.WithCancel(c.t.Context())
	defer leave()
	c.updates(watch(c.t, ctx, g.Admin+"/events", "status", 2))
	for range 63 {
		watch(c.t, ctx, g.Admin+"/events", "status", 0)
	}
	c.check(ask{operation: "GET /events", status: 503, code: "too_many_watchers"}, watch(c.t, ctx, g.Admin+"/events", "status", 0))
	leave()
	harness.Eventually(c.t, 5*time.Second, "the places of those who left", func() error {
		return answersWith(g.Admin+"/events", http.StatusOK)
	})
}

// updates holds the events of a status page against their schemas.
func (c *contract) updates(a answer) {
	c.t.Helper()
	c.answered("GET /events", a)
	for name, schema := range map[string]string{"history": "History", "status": "Status"} {
		events := sentEvents(a.body, name)
		if len(events) == 0 {
			c.t.Errorf("no event %s in %.300s", name, a.body)
		}
		for _, data := range events {
			c.valid("event "+name, schema, data)
		}
	}
}

// heads asks each path that takes GET for its headers alone.
func (c *contract) heads(g *harness.Process) {
	for path, item := range c.doc.Paths.Map() {
		if item.Get == nil || path == "/debug/pprof/profile" || path == "/debug/pprof/trace" { // those take their time
			continue
		}
		for _, listener := range c.listeners(item) {
			base, key := g.URL, as("any")
			if listener == adminPort {
				base, key = g.Admin, operator()
			}
			a := do(c.t, "HEAD", base+strings.NewReplacer("{id}", "none", "{profile}", "heap").Replace(path), "", key...)
			if len(a.body) > 0 || a.status == http.StatusMethodNotAllowed {
				c.t.Errorf("HEAD %s: got %d with a body of %d bytes", path, a.status, len(a.body))
			}
			a.body = nil
			c.answered("GET "+path, a)
		}
	}
}

func write(t *testing.T, path string, text []byte) {
	t.Helper()
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
}

// answersWith asks for a status alone: the answer may have no end.
func answersWith(url string, status int) error {
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Get(url)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != status {
		return fmt.Errorf("status %d", resp.StatusCode)
	}
	return nil
}

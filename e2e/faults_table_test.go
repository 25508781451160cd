package e2e

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"penstock/e2e/harness"
)

var update = flag.Bool("update", false, "write the tables in docs anew")

// checkDocs compares a table with the one between the marks of that name in
// docs/operations.md, or writes it there.
func checkDocs(t *testing.T, name, table string) {
	t.Helper()
	path := filepath.Join(harness.Root(), "docs", "operations.md")
	begin, end := "<!-- "+name+": begin; written by e2e, go test ./e2e -run Fault -update -->\n", "<!-- "+name+": end -->\n"
	text := string(readFile(t, path))
	before, rest, ok := strings.Cut(text, begin)
	old, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("docs/operations.md has no %q … %q", begin, end)
	}
	if old == table {
		return
	}
	if *update {
		if err := os.WriteFile(path, []byte(before+begin+table+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	was := strings.Split(old, "\n")
	for i, line := range strings.Split(table, "\n") {
		if i >= len(was) || was[i] != line {
			t.Errorf("docs/operations.md is out of date (-update writes it anew)\nseen:       %s\ndocumented: %s", line, lineAt(was, i))
		}
	}
}

func lineAt(lines []string, i int) string {
	if i < len(lines) {
		return lines[i]
	}
	return ""
}

// faultTexts say what each fault is, in a stream and in a whole answer.
var faultTexts = map[string][2]string{
	"refused":                 {"refuses the connection", ""},
	"reset-before-headers":    {"resets the connection before its headers", ""},
	"reset-after-headers":     {"resets the connection after its headers", ""},
	"reset-mid-event":         {"resets the connection in the middle of an event", "resets the connection in mid-body"},
	"close-without-marker":    {"ends the stream well-formed, but without `[DONE]`", "closes before Content-Length is reached"},
	"close-without-length":    {"closes a stream that only the close can end, without `[DONE]`", "closes in the middle of JSON that only the close can end"},
	"half-event-then-silence": {"sends half an event, then nothing", "sends half a body, then nothing"},
	"headers-never":           {"accepts, and never answers", ""},
	"first-token-never":       {"sends headers, and never an event", "sends headers, and never a body"},
	"silence-mid-stream":      {"falls silent after two events", "falls silent in mid-body"},
	"byte-per-second":         {"sends one byte a second of an event", "sends one byte a second"},
	"500":                     {"answers 500", ""},
	"502-html":                {"answers 502 with a page", ""},
	"503-json":                {"answers 503", ""},
	"503-in-stream":           {"answers 200, and 503 as the first event", "answers 503 in SGLang's flat form"},
	"429-retry-after":         {"answers 429 with `Retry-After: 7`", ""},
	"400-flat":                {"answers 400 in SGLang's flat form", ""},
	"16mb-event":              {"sends an event larger than `max_event`", "sends a body larger than `max_event`"},
	"chunked-garbage":         {"breaks the chunked framing in mid-stream", "breaks the chunked framing"},
	"not-http":                {"answers something that is not HTTP", ""},
	"wrong-content-type":      {"answers JSON instead of a stream", "answers 200 with a page"},
	"gzip":                    {"compresses the stream, unasked", "compresses the body, unasked"},
	"trailing-data":           {"sends an event after `[DONE]`", "sends blanks after the JSON"},
}

// table is the matrix as docs/operations.md shows it.
func (m *matrix) table() string {
	var b strings.Builder
	b.WriteString("| the engine … | asked for a | the client gets | within | another replica | breaker counts | charged | `reason` |\n|---|---|---|---|---|---|---|---|\n")
	m.each(stays, func(c *cell) {
		kind, text := "whole answer", faultTexts[c.fault.Name][1]
		if c.stream || text == "" {
			text = faultTexts[c.fault.Name][0]
		}
		if c.stream {
			kind = "stream"
		}
		e := m.find(c, elsewhere)
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s | %s | %s |\n",
			text, kind, clientGets(c.got[0]), within(c.got[0].code), another(e), counts(e), c.after.charged(), code(c.after.failures))
	})
	return b.String()
}

func code(s string) string {
	if s == "" {
		return ""
	}
	return "`" + s + "`"
}

func clientGets(r reply) string {
	after := ""
	if r.retryAfter != "" {
		after = ", `Retry-After: " + r.retryAfter + "`"
	}
	switch {
	case r.status == 200 && r.clean:
		return "all of it"
	case r.status == 200:
		return "what came, then an event " + code(r.code) + " and a cut connection"
	case r.code == "BadRequestError":
		return "400 as the engine wrote it"
	}
	return fmt.Sprintf("%d %s%s", r.status, code(r.code), after)
}

func within(code string) string {
	switch code {
	case "first_token_timeout":
		return "`timeouts.first_token`"
	case "stream_idle_timeout":
		return "`timeouts.idle`"
	case "upstream_timeout":
		return "`timeouts.request`"
	}
	return "at once"
}

// another is what a good replica beside the faulty one is good for.
func another(c *cell) string {
	retried := len(c.after.lines[0].Retries)+len(c.after.lines[1].Retries) > 0
	if retried {
		return "answers instead"
	}
	return "is not tried"
}

func counts(c *cell) string {
	switch c.after.state {
	case "open", "unhealthy": // a connection that is refused has the engine probed at once
		return "a failure"
	}
	return "nothing"
}

package scripted

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Model is the name that the upstream serves: with a slash, as on a model hub.
const Model = "org/scripted"

// Upstream is a running one. Tests in other languages ask it over HTTP:
// GET /_last is the last request, GET /_open how many are being answered.
type Upstream struct {
	URL string

	open  atomic.Int64
	total atomic.Int64
	mu    sync.Mutex
	last  Seen
	busy  map[string]int // refusals left, by script
}

// Seen is a request as it arrived.
type Seen struct {
	Method  string            `json:"method"`
	Path    string            `json:"path"` // as escaped
	Headers map[string]string `json:"headers"`
	Body    string            `json:"body"`
}

// Start runs one until the test ends.
func Start(t testing.TB) *Upstream {
	t.Helper()
	u := &Upstream{busy: map[string]int{}}
	server := httptest.NewServer(u)
	u.URL = server.URL
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	return u
}

// Last is the last request to a route of OpenAI's.
func (u *Upstream) Last() Seen {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.last
}

// Open is how many requests are being answered.
func (u *Upstream) Open() int { return int(u.open.Load()) }

// Total is how many requests to a route of OpenAI's have come.
func (u *Upstream) Total() int { return int(u.total.Load()) }

// ServeHTTP routes.
func (u *Upstream) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/health", "/healthz":
		return
	case "/_last":
		writeJSON(w, u.Last())
		return
	case "/_open":
		fmt.Fprint(w, u.Open())
		return
	case "/v1/models":
		writeJSON(w, modelList())
		return
	}
	u.open.Add(1)
	defer u.open.Add(-1)
	u.total.Add(1)
	c, err := u.read(w, r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if !u.trouble(c) {
		c.answer()
	}
}

// call is one request being answered.
type call struct {
	w      http.ResponseWriter
	r      *http.Request
	body   request
	raw    string
	script string // the word after "script:", or ""
	arg    string // the next word
	text   string // the last user text
}

// request is what the upstream reads of a body.
type request struct {
	Model              string            `json:"model"`
	Stream             bool              `json:"stream"`
	StreamOptions      streamOptions     `json:"stream_options"`
	Messages           []message         `json:"messages"`
	Prompt             json.RawMessage   `json:"prompt"`
	Input              json.RawMessage   `json:"input"`
	Tools              []json.RawMessage `json:"tools"`
	ResponseFormat     json.RawMessage   `json:"response_format"`
	EncodingFormat     string            `json:"encoding_format"`
	PreviousResponseID string            `json:"previous_response_id"`
}

type streamOptions struct {
	IncludeUsage bool `json:"include_usage"`
}

type message struct {
	Role    string          `json:"role"`
	Content json.RawMessage `json:"content"`
}

func (u *Upstream) read(w http.ResponseWriter, r *http.Request) (*call, error) {
	raw, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	seen := Seen{Method: r.Method, Path: r.URL.EscapedPath(), Headers: map[string]string{}, Body: string(raw)}
	for name := range r.Header {
		seen.Headers[strings.ToLower(name)] = r.Header.Get(name)
	}
	u.mu.Lock()
	u.last = seen
	u.mu.Unlock()
	c := &call{w: w, r: r, raw: string(raw)}
	if len(raw) > 0 {
		if err := json.Unmarshal(raw, &c.body); err != nil {
			return nil, err
		}
	}
	c.text = c.body.lastText()
	if rest, ok := strings.CutPrefix(c.text, "script:"); ok {
		c.script, c.arg, _ = strings.Cut(rest, " ")
	}
	return c, nil
}

func (b *request) lastText() string {
	for _, m := range slices.Backward(b.Messages) {
		if m.Role == "user" {
			return textOf(m.Content)
		}
	}
	if len(b.Prompt) > 0 {
		return textOf(b.Prompt)
	}
	return textOf(b.Input)
}

// textOf is the text of a content: a string, or parts of which some are text.
func textOf(raw json.RawMessage) string {
	var text string
	if json.Unmarshal(raw, &text) == nil {
		return text
	}
	var parts []struct {
		Text string `json:"text"`
	}
	if json.Unmarshal(raw, &parts) == nil {
		for _, p := range parts {
			text += p.Text
		}
	}
	return text
}

func (c *call) answer() {
	switch {
	case strings.HasSuffix(c.r.URL.Path, "/chat/completions"):
		c.chat()
	case strings.HasSuffix(c.r.URL.Path, "/completions"):
		c.completion()
	case strings.HasSuffix(c.r.URL.Path, "/embeddings"):
		c.embeddings()
	case strings.Contains(c.r.URL.Path, "/v1/responses"):
		c.responses()
	case strings.HasSuffix(c.r.URL.Path, "/v1/messages"):
		c.messages()
	case strings.HasSuffix(c.r.URL.Path, "/rerank"):
		writeJSON(c.w, map[string]any{"model": Model, "results": []any{map[string]any{"index": 0, "relevance_score": 0.5}}})
	default:
		http.NotFound(c.w, c.r)
	}
}

// events writes server-sent events, each flushed at once.
func (c *call) events(values ...any) {
	c.w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	for _, v := range values {
		c.event("", v)
	}
}

func (c *call) event(name string, v any) {
	if name != "" {
		fmt.Fprintf(c.w, "event: %s\n", name)
	}
	text, ok := v.(string)
	if !ok {
		raw, err := json.Marshal(v)
		if err != nil {
			panic(err) // a script that cannot be encoded is a bug of this package
		}
		text = string(raw)
	}
	fmt.Fprintf(c.w, "data: %s\n\n", text)
	c.flush()
}

func (c *call) flush() { _ = http.NewResponseController(c.w).Flush() }

// pause waits, or returns false when the client has gone.
func (c *call) pause(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-c.r.Context().Done():
		return false
	}
}

func writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v)
}

package e2e

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"penstock/e2e/harness"
)

const badInputConfig = `
max_body: 1MiB
timeouts: {read_body: 1s, read_headers: 1s}
models:
  - name: penstock-local
    engines: [{local: {replicas: 1, profile: instant}}]
`

func TestBadInputIsNamed(t *testing.T) {
	gateway := harness.Serve(t, badInputConfig)
	const chat, completions = "/v1/chat/completions", "/v1/completions"
	deep := strings.Repeat("[", 200) + strings.Repeat("]", 200)
	for _, c := range []struct {
		name, method, path, body string
		status                   int
		code, param, says        string
	}{
		{"bad JSON", "POST", chat, `{"model": "penstock-local", "messages": [}`, 400, "invalid_json", "", "JSON"},
		{"truncated JSON", "POST", chat, `{"model": "penstock-local", "messages": [`, 400, "invalid_json", "", "JSON"},
		{"empty body", "POST", chat, ``, 400, "invalid_json", "", "JSON"},
		{"not an object", "POST", chat, `[1]`, 400, "invalid_json", "", "object"},
		{"too deep", "POST", chat, `{"model":"penstock-local","messages":[{"role":"user","content":"x"}],"x":` + deep + `}`, 400, "invalid_json", "", ""},
		{"model of wrong type", "POST", chat, `{"model": 7, "messages": [{"role":"user","content":"x"}]}`, 400, "invalid_value", "model", "string"},
		{"messages of wrong type", "POST", chat, `{"model":"penstock-local","messages":"x"}`, 400, "invalid_value", "messages", "array"},
		{"no messages", "POST", chat, `{"model":"penstock-local"}`, 400, "missing_required_parameter", "messages", ""},
		{"empty messages", "POST", chat, `{"model":"penstock-local","messages":[]}`, 400, "invalid_value", "messages", "empty"},
		{"stream of wrong type", "POST", chat, `{"model":"penstock-local","messages":[{"role":"user","content":"x"}],"stream":"yes"}`, 400, "invalid_value", "stream", "boolean"},
		{"model given twice", "POST", chat, `{"model":"a","model":"penstock-local","messages":[{"role":"user","content":"x"}]}`, 400, "invalid_value", "model", "more than once"},
		{"negative max_tokens", "POST", completions, `{"model":"penstock-local","prompt":"x","max_tokens":-1}`, 400, "invalid_value", "max_tokens", "-1"},
		{"max_tokens of wrong type", "POST", completions, `{"model":"penstock-local","prompt":"x","max_tokens":"7"}`, 400, "invalid_value", "max_tokens", "integer"},
		{"no prompt", "POST", completions, `{"model":"penstock-local"}`, 400, "missing_required_parameter", "prompt", ""},
		{"empty prompt", "POST", completions, `{"model":"penstock-local","prompt":""}`, 400, "invalid_value", "prompt", "empty"},
		{"unknown model", "POST", chat, `{"model":"nobody","messages":[{"role":"user","content":"x"}]}`, 404, "model_not_found", "model", "nobody"},
		{"unknown path", "POST", "/v1/chat/completion", `{}`, 404, "unknown_url", "", "/v1/chat/completion"},
		{"path without /v1", "POST", "/chat/completions", `{}`, 404, "unknown_url", "", "id you mean /v1/chat/completions"},
		{"wrong method", "GET", chat, ``, 405, "method_not_allowed", "", "POST"},
		{"unknown model retrieved", "GET", "/v1/models/nobody", ``, 404, "model_not_found", "model", "nobody"},
		{"too large", "POST", chat, `{"x":"` + strings.Repeat("x", 2<<20) + `"}`, 413, "request_too_large", "", "1MiB"},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := do(t, c.method, gateway.URL+c.path, c.body)
			e := decode[apiError](t, a.body).Error
			if a.status != c.status || e.Code == nil || *e.Code != c.code {
				t.Errorf("%.200s: got %d %s, want %d %s", c.body, a.status, a.body, c.status, c.code)
			}
			if got := deref(e.Param); got != c.param {
				t.Errorf("%.200s: param %q, want %q", c.body, got, c.param)
			}
			if !strings.Contains(e.Message, c.says) {
				t.Errorf("%.200s: message %q does not say %q", c.body, e.Message, c.says)
			}
			if a.header.Get("x-request-id") == "" {
				t.Errorf("no x-request-id in %v", a.header)
			}
			if c.status == http.StatusMethodNotAllowed && a.header.Get("Allow") == "" {
				t.Error("no Allow header")
			}
		})
	}
}

func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// rawResponse writes bytes that a client library would not send, and reads the
// answer's head. What follows of it must come within 10 s of the beginning.
func rawResponse(t *testing.T, base, request string) *http.Response {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(base, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Write([]byte(request)); err != nil {
		t.Logf("write: %v (the answer may have come first)", err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatalf("after %.100q: %v", request, err)
	}
	return resp
}

// raw is the status and the beginning of the body of an answer to such bytes.
func raw(t *testing.T, gateway *harness.Process, request string) string {
	t.Helper()
	resp := rawResponse(t, gateway.URL, request)
	defer resp.Body.Close()
	body := make([]byte, 4096)
	n, _ := resp.Body.Read(body)
	return fmt.Sprintf("%d %s", resp.StatusCode, body[:n])
}

func TestBadBytesAreNamed(t *testing.T) {
	gateway := harness.Serve(t, badInputConfig)
	const head = "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
	for _, c := range []struct{ name, request, want string }{
		{"headers too large", head + "X-Much: " + strings.Repeat("x", 64<<10) + "\r\n\r\n", "431 headers_too_large"},
		{"a body that stalls", head + "Content-Length: 100\r\n\r\n{", "408 request_timeout"},
		{"a body announced too large is refused before it is read", head + "Content-Length: 104857600\r\n\r\n", "413 request_too_large"},
		{"a chunked body too large", head + "Transfer-Encoding: chunked\r\n\r\n200000\r\n" + strings.Repeat("x", 0x200000) + "\r\n0\r\n\r\n", "413 request_too_large"},
		{"two lengths", head + "Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}", "400 "},
		{"length and chunks", head + "Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", "400 "},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := raw(t, gateway, c.request)
			status, code, _ := strings.Cut(c.want, " ")
			if !strings.HasPrefix(got, status+" ") || !strings.Contains(got, code) {
				t.Errorf("got %s, want %s", got, c.want)
			}
		})
	}
}

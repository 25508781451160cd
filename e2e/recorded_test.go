package e2e

import (
	"bufio"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"penstock/e2e/harness"
)

// recorded is a request of a real client: lm-eval, vllm bench, sglang.bench_serving, guidellm.
type recorded struct {
	Method  string            `json:"method"`
	Path    string            `json:"path"`
	Headers map[string]string `json:"headers"`
	Body    string            `json:"body"`
	Status  int               `json:"status"` // what the engine answered when it was recorded
}

func readRecorded(t *testing.T, path string) []recorded {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var all []recorded
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		all = append(all, decode[recorded](t, lines.Bytes()))
	}
	if err := lines.Err(); err != nil || len(all) == 0 {
		t.Fatalf("%s: %d requests, %v", path, len(all), err)
	}
	return all
}

// TestRecordedClientsAreServed sends what bench and eval clients sent to an
// engine, header by header, through the gateway.
func TestRecordedClientsAreServed(t *testing.T) {
	gateway := harness.Serve(t, "models: [{name: tiny, engines: [{local: {replicas: 2, profile: instant}}]}]")
	files, err := filepath.Glob("testdata/clients/*.jsonl")
	if err != nil || len(files) == 0 {
		t.Fatalf("no recordings: %v, %v", files, err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".jsonl"), func(t *testing.T) {
			for _, r := range readRecorded(t, file) {
				replay(t, gateway, r)
			}
		})
	}
}

func replay(t *testing.T, gateway *harness.Process, r recorded) {
	t.Helper()
	var headers []string
	for name, value := range r.Headers {
		headers = append(headers, name, value)
	}
	body := foldTokens(t, r.Body)
	a := do(t, r.Method, gateway.URL+r.Path, body, headers...)
	switch {
	case r.Path == "/metrics":
		// The clients do without an engine's metrics; the gateway's own are on its admin listener.
		if a.status != http.StatusNotFound {
			t.Errorf("GET /metrics: %d, want 404", a.status)
		}
	case r.Path == "/tokenizer_info":
		// Optional for lm-eval: either it is there and says what lm-eval reads, or 404.
		if a.status != http.StatusNotFound && a.status != http.StatusOK {
			t.Errorf("GET /tokenizer_info: %d %s", a.status, a.body)
		}
	case a.status != r.Status:
		t.Errorf("%s %s: got %d %.300s, recorded %d; body %.300s", r.Method, r.Path, a.status, a.body, r.Status, body)
	case strings.Contains(body, `"stream": true`) || strings.Contains(body, `"stream":true`):
		checkStream(t, r, string(a.body))
	case strings.Contains(body, `"echo": true`):
		checkEcho(t, a.body)
	}
}

func checkStream(t *testing.T, r recorded, text string) {
	t.Helper()
	if !strings.HasSuffix(text, "data: [DONE]\n\n") {
		t.Errorf("%s: the stream ends in %q", r.Path, text[max(0, len(text)-100):])
	}
	// Spaces differ between clients; both forms ask for usage.
	asked := strings.Contains(strings.ReplaceAll(r.Body, " ", ""), `"include_usage":true`)
	if got := strings.Contains(text, `"completion_tokens"`); got != asked {
		t.Errorf("%s: usage in the stream: %v, asked for: %v", r.Path, got, asked)
	}
}

func checkEcho(t *testing.T, body []byte) {
	t.Helper()
	got := decode[struct {
		Choices []struct {
			Logprobs struct {
				Tokens   []string   `json:"tokens"`
				Logprobs []*float64 `json:"token_logprobs"`
			}
		}
	}](t, body)
	if len(got.Choices) == 0 {
		t.Errorf("no choices in %.300s", body)
	}
	for i, c := range got.Choices {
		if len(c.Logprobs.Tokens) == 0 || len(c.Logprobs.Tokens) != len(c.Logprobs.Logprobs) || c.Logprobs.Logprobs[0] != nil {
			t.Errorf("choice %d: %d tokens, %d log-probabilities, the first must be null", i, len(c.Logprobs.Tokens), len(c.Logprobs.Logprobs))
			continue
		}
		for j, p := range c.Logprobs.Logprobs[1:] {
			if p == nil || *p > 0 {
				t.Errorf("choice %d, token %d: no log-probability", i, j+1)
				break
			}
		}
	}
}

// foldTokens brings token ids of the recorded engine's vocabulary into the
// local engine's smaller one.
func foldTokens(t *testing.T, body string) string {
	t.Helper()
	var fields map[string]json.RawMessage
	if json.Unmarshal([]byte(body), &fields) != nil {
		return body
	}
	var prompts [][]int
	if json.Unmarshal(fields["prompt"], &prompts) != nil {
		return body
	}
	for _, prompt := range prompts {
		for i := range prompt {
			prompt[i] %= 256
		}
	}
	return strings.Replace(body, string(fields["prompt"]), string(encode(t, prompts)), 1)
}

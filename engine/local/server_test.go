package local

import (
	"bytes"
	"encoding/json"
	"flag"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	flag.Parse()
	if flag.Lookup("test.bench").Value.String() != "" {
		os.Exit(m.Run()) // fasthttp's client leaves goroutines behind for seconds
	}
	// fasthttp's worker pool sweeps every ten seconds and sees only then that it
	// was stopped; its clock for the Date header never stops.
	goleak.VerifyTestMain(m,
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.(*workerPool).Start.func2"),
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.updateServerDate.func1"))
}

// client keeps no idle connections, which would outlive a test.
var client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 30 * time.Second}

// start serves o on a loopback port until the test ends.
func start(t testing.TB, o Options) (*Server, string) {
	t.Helper()
	s, err := New(o)
	if err != nil {
		t.Fatalf("New(%+v): %v", o, err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("listen: %v", err)
	}
	done := make(chan error, 1)
	go func() { done <- s.Serve(ln) }()
	t.Cleanup(func() {
		s.Close()
		if err := <-done; err != nil {
			t.Errorf("Serve: got %v, want nil", err)
		}
	})
	return s, "http://" + ln.Addr().String()
}

// call sends one request and returns status and body.
func request(t testing.TB, method, url, body string, headers ...string) (int, http.Header, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, bytes.NewReader([]byte(body)))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatalf("%s %s: %v", method, url, err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("%s %s: reading: %v", method, url, err)
	}
	return resp.StatusCode, resp.Header, string(b)
}

func post(t testing.TB, url, body string, headers ...string) (int, string) {
	t.Helper()
	status, _, b := request(t, "POST", url, body, headers...)
	return status, b
}

// reply is what the tests read of an answer, chat or completion, whole or chunk.
type reply struct {
	ID      string
	Object  string
	Model   string
	Choices []struct {
		Index   int
		Text    string
		Message struct{ Content string }
		Delta   struct {
			Role    string
			Content string
		}
		FinishReason   string   `json:"finish_reason"`
		MatchedStop    any      `json:"matched_stop"`
		StopReason     any      `json:"stop_reason"`
		TokenIDs       []uint32 `json:"token_ids"`
		PromptTokenIDs []uint32 `json:"prompt_token_ids"`
		PromptLogprobs []map[string]struct {
			Logprob float64
			Rank    int
			Token   string `json:"decoded_token"`
		} `json:"prompt_logprobs"`
		Logprobs *struct {
			Offsets []int                `json:"text_offset"`
			Values  []*float64           `json:"token_logprobs"`
			Tokens  []string             `json:"tokens"`
			Top     []map[string]float64 `json:"top_logprobs"`
			Content []struct {
				Token   string
				Logprob float64
				Bytes   []int
				Top     []struct {
					Token   string
					Logprob float64
				} `json:"top_logprobs"`
			}
		}
	}
	Usage *usage
}

type usage struct {
	Prompt  int `json:"prompt_tokens"`
	Output  int `json:"completion_tokens"`
	Total   int `json:"total_tokens"`
	Details *struct {
		Cached int `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
}

func (r *reply) cached() int {
	if r.Usage == nil || r.Usage.Details == nil {
		return -1
	}
	return r.Usage.Details.Cached
}

// ask posts to path and decodes the 200 that must come.
func ask(t testing.TB, base, path, body string, headers ...string) *reply {
	t.Helper()
	status, b := post(t, base+path, body, headers...)
	if status != 200 {
		t.Fatalf("POST %s %s: got %d %s, want 200", path, body, status, b)
	}
	return decode(t, b)
}

func decode(t testing.TB, b string) *reply {
	t.Helper()
	var r reply
	if err := json.Unmarshal([]byte(b), &r); err != nil {
		t.Fatalf("answer %s: %v", b, err)
	}
	return &r
}

// events splits a stream into its payloads.
func events(t testing.TB, body string) (list []string) {
	t.Helper()
	for _, e := range strings.SplitAfter(body, "\n\n") {
		if e == "" {
			continue
		}
		data, ok := strings.CutPrefix(e, "data: ")
		if !ok || !strings.HasSuffix(e, "\n\n") {
			t.Fatalf("event %q of %q: not data with a blank line after it", e, body)
		}
		list = append(list, strings.TrimSuffix(data, "\n\n"))
	}
	return list
}

// until polls a condition, which must come true soon.
func until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within 10 s", what)
		}
		time.Sleep(time.Millisecond)
	}
}

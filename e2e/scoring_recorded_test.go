package e2e

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"penstock/e2e/harness"
)

// engineRecording is what a real engine answered to one request.
type engineRecording struct {
	path, request, answer string
}

func readEngineRecording(t *testing.T, name string) engineRecording {
	t.Helper()
	raw := readFile(t, filepath.Join(harness.Root(), "gateway", "scoring", "testdata", name+".json.txt"))
	lines := strings.SplitN(string(raw), "\n", 6)
	if len(lines) != 6 || !strings.HasPrefix(lines[3], "---- 200") {
		t.Fatalf("%s is no recording of an answer", name)
	}
	return engineRecording{strings.TrimPrefix(lines[0], "POST "), lines[2], strings.TrimSuffix(lines[5], "\n")}
}

// replayer is an engine that answers every scoring request with the text it was given last.
type replayer struct {
	gateway *harness.Process

	mu     sync.Mutex
	answer string
	path   string // of the last request
	asked  int
}

// startReplayer starts one behind a gateway that takes it for an engine of a kind.
func startReplayer(t *testing.T, kind string) *replayer {
	t.Helper()
	r := &replayer{}
	server := httptest.NewServer(r)
	t.Cleanup(server.Close)
	r.gateway = harness.Serve(t, fmt.Sprintf("models: [{name: tiny, engines: [{url: %q, kind: %s}]}]\n", server.URL, kind))
	return r
}

func (r *replayer) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	switch {
	case q.URL.Path == "/health":
	case q.URL.Path == "/server_info":
		fmt.Fprint(w, `{"dp_size":1,"served_model_name":"tiny","max_total_num_tokens":100000,"page_size":1,"internal_states":[{}]}`)
	case q.URL.Path == "/v1/models":
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"object":"list","data":[{"id":"tiny","object":"model","max_model_len":8192}]}`)
	case q.Method != http.MethodPost:
		http.NotFound(w, q)
	default:
		_, _ = io.Copy(io.Discard, q.Body)
		r.mu.Lock()
		defer r.mu.Unlock()
		r.path = q.URL.Path
		r.asked++
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, r.answer)
	}
}

// ask sends a request through the gateway; the engine answers with answer.
func (r *replayer) ask(t *testing.T, path, request, says string) answer {
	t.Helper()
	r.mu.Lock()
	r.answer = says
	r.mu.Unlock()
	return post(t, r.gateway.URL+path, request)
}

// seen is the path of the last request and how many there were.
func (r *replayer) seen() (path string, n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.path, r.asked
}

// numberTexts are the texts of all log-probabilities of an answer.
func numberTexts(s string) []string {
	return regexp.MustCompile(`-\d+\.\d+(e-?\d+)?`).FindAllString(s, -1)
}

// TestRecordedScoresPassUnchanged replays what vLLM and SGLang answered. Where nothing has to be repaired, the client
// gets the same bytes.
func TestRecordedScoresPassUnchanged(t *testing.T) {
	for kind, names := range map[string][]string{
		"openai": {
			"vllm/c-echo-lp1-max1", "vllm/c-echo-lp5-max0", "vllm/c-echo-lp5-max1-list", "vllm/c-listids-echo-lp1-max0",
			"vllm/c-listids-echo-lp1-max1", "vllm/c-unicode", "vllm/c-echo-lp0", "vllm/c-echo-one", "vllm/c-echo-and-prompt", "vllm/c-promptlogprobs",
		},
		"vllm":   {"vllm/c-echo-and-prompt", "vllm/c-promptlogprobs", "vllm/chat-promptlogprobs", "vllm/detokenize"},
		"sglang": {"sglang/g-text-max0", "sglang/g-listids-max0", "sglang/g-texts-n2", "sglang/g-unicode-max0", "sglang/g-ids-top0", "sglang/g-plain", "sglang/g-one-token"},
	} {
		t.Run(kind, func(t *testing.T) {
			engine := startReplayer(t, kind)
			for _, name := range names {
				r := readEngineRecording(t, name)
				got := engine.ask(t, r.path, r.request, r.answer)
				if got.status != http.StatusOK || sha256.Sum256(got.body) != sha256.Sum256([]byte(r.answer)) {
					t.Errorf("%s: got %d\n     %s\nwant %s", name, got.status, got.body, r.answer)
				}
			}
		})
	}
}

// TestVLLMsDuplicateNumbersAreTakenOut: beside echo's logprobs vLLM sends the same again as prompt_logprobs, which
// nobody asked for. All other bytes are the engine's.
func TestVLLMsDuplicateNumbersAreTakenOut(t *testing.T) {
	engine := startReplayer(t, "vllm")
	duplicate := regexp.MustCompile(`,"prompt_logprobs":\[null(,\{("\d+":\{[^}]*\},?)+\})*\]`)
	for _, name := range []string{"vllm/c-echo-lp1-max1", "vllm/c-echo-lp5-max1-list", "vllm/c-echo-lp5-max0", "vllm/c-listids-echo-lp1-max1", "vllm/c-echo-one"} {
		r := readEngineRecording(t, name)
		got := engine.ask(t, r.path, r.request, r.answer)
		if want := duplicate.ReplaceAllString(r.answer, ""); got.status != http.StatusOK || string(got.body) != want || want == r.answer {
			t.Errorf("%s: got %d\n     %s\nwant %s", name, got.status, got.body, want)
		}
	}
}

// echoAnswer is what the tests read of an answer to echo, numbers as text.
type echoAnswer struct {
	Choices []struct {
		Index    int    `json:"index"`
		Text     string `json:"text"`
		Logprobs struct {
			Offsets  []int                    `json:"text_offset"`
			Logprobs []*json.Number           `json:"token_logprobs"`
			Tokens   []string                 `json:"tokens"`
			Tops     []map[string]json.Number `json:"top_logprobs"`
		} `json:"logprobs"`
	} `json:"choices"`
	Usage struct {
		Prompt     int `json:"prompt_tokens"`
		Completion int `json:"completion_tokens"`
	} `json:"usage"`
}

// TestSGLangsAnswersAreRepairedNumberForNumber replays what its two routes answer: offsets of -1, the token missing in
// its map, and the shape of /generate come out as OpenAI's, and every number is the text that the engine wrote.
func TestSGLangsAnswersAreRepairedNumberForNumber(t *testing.T) {
	engine := startReplayer(t, "sglang")
	for _, c := range []struct{ name, request, path string }{
		{name: "c-echo-lp1-max1"},
		{name: "c-echo-lp5-max1-list"},
		{name: "c-listids-echo-lp1-max1"},
		{name: "c-echo-n2"},
		{name: "c-echo-one"},
		{"g-text-max0", `{"model":"tiny","prompt":"def main(x):","echo":true,"logprobs":1,"max_tokens":0,"temperature":0}`, "/generate"},
		{"g-listids-max0", `{"model":"tiny","prompt":[[444,2947,10,90,307],[444,2947,10]],"echo":true,"logprobs":2,"max_tokens":0}`, "/generate"},
		{"g-unicode-max0", `{"model":"tiny","prompt":["héé 日本😀語 x"],"echo":true,"logprobs":2,"max_tokens":0}`, "/generate"},
	} {
		r := readEngineRecording(t, "sglang/"+c.name)
		request, path := r.request, r.path
		if c.request != "" {
			request, path = c.request, "/v1/completions"
		}
		got := engine.ask(t, path, request, r.answer)
		if sent, _ := engine.seen(); sent != cmp.Or(c.path, r.path) {
			t.Errorf("%s was sent to %s, want %s", c.name, sent, cmp.Or(c.path, r.path))
		}
		if got.status != http.StatusOK {
			t.Errorf("%s: %d %s", c.name, got.status, got.body)
			continue
		}
		wantEngineNumbers(t, c.name, got.body, r.answer)
	}
}

// wantEngineNumbers holds that an answer is whole and that each of its numbers is the engine's text.
func wantEngineNumbers(t *testing.T, name string, got []byte, engine string) {
	t.Helper()
	for _, f := range numberTexts(string(got)) {
		if !strings.Contains(engine, f) {
			t.Errorf("%s: %s is not what the engine wrote", name, f)
		}
	}
	var values []string
	for i, choice := range decode[echoAnswer](t, got).Choices {
		l := choice.Logprobs
		n := len(l.Tokens)
		if choice.Index != i || n == 0 || len(l.Logprobs) != n || len(l.Tops) != n || len(l.Offsets) != n || l.Logprobs[0] != nil || l.Tops[0] != nil || l.Offsets[0] != 0 || !slices.IsSorted(l.Offsets) {
			t.Errorf("%s: choice %d is not whole: %+v", name, i, choice)
			continue
		}
		for k := 1; k < n; k++ {
			values = append(values, string(*l.Logprobs[k]))
			if own, ok := l.Tops[k][l.Tokens[k]]; !ok || own != *l.Logprobs[k] && !strings.Contains(l.Tokens[k], "\ufffd") {
				t.Errorf("%s: the map of token %d %q (%s) is %v", name, k, l.Tokens[k], *l.Logprobs[k], l.Tops[k])
			}
		}
	}
	// In the engine's order, too.
	at := 0
	for _, v := range values {
		next := strings.Index(engine[at:], v)
		if next < 0 {
			t.Errorf("%s: %s is out of the engine's order", name, v)
			return
		}
		if !strings.Contains(engine, `"token_logprobs"`) {
			continue // /generate lists the numbers of each choice after one another, among its alternatives
		}
		at += next
	}
}

// TestAnAnswerWithoutThePromptsNumbersIsNeverA200: evals would go on and score chance.
func TestAnAnswerWithoutThePromptsNumbersIsNeverA200(t *testing.T) {
	good := readEngineRecording(t, "vllm/c-echo-lp1-max1")
	swap := func(old, new string) string {
		if !strings.Contains(good.answer, old) {
			t.Fatalf("the recording lacks %s", old)
		}
		return strings.Replace(good.answer, old, new, 1)
	}
	lps := `[null,-11.270120620727539,-11.880231857299805,-12.194788932800293,-9.745959281921387,-3.447669506072998]`
	tops := regexp.MustCompile(`"top_logprobs":\[.*?\]`).FindString(good.answer)
	broken := []struct{ name, answer, reason string }{
		{"generated tokens only", `{"choices":[{"index":0,"text":"utable","logprobs":{"text_offset":[12],"token_logprobs":[-3.4],"tokens":["utable"],"top_logprobs":[{"utable":-3.4}]}}],"usage":{"prompt_tokens":5,"total_tokens":6,"completion_tokens":1}}`, "token_logprobs of prompt 0 has 1 elements, expected one for each of 5 tokens"},
		{"no logprobs", swap(`"logprobs":{`, `"logprobs":null,"x":{`), "prompt 0 has no logprobs"},
		{"null maps", swap(tops, `"top_logprobs":[null,null,null,null,null,null]`), "top_logprobs of prompt 0 is null or empty for token 1"},
		{"no maps", swap(tops, `"top_logprobs":null`), "prompt 0 has no top_logprobs"},
		{"short arrays", swap(lps, `[null,-11.270120620727539]`), "token_logprobs of prompt 0 has 2 elements, expected one for each of 5 tokens"},
		{"NaN", swap(`-11.880231857299805,-12`, `NaN,-12`), "NaN in place of a number"},
		{"-Infinity", swap(`-11.880231857299805,-12`, `-Infinity,-12`), "Infinity in place of a number"},
		{"a null among them", swap(`-11.880231857299805,-12`, `null,-12`), "token_logprobs of prompt 0 holds no value for token 2"},
		{"zeros", swap(lps, `[null,0,0.0,-0.0,0.0,-3.447669506072998]`), "every log-probability of prompt 0 is 0"},
		{"no choices", `{"choices":[],"usage":{"prompt_tokens":5}}`, "0 choices, expected 1"},
	}
	for _, kind := range []string{"openai", "vllm", "sglang"} {
		t.Run(kind, func(t *testing.T) {
			engine := startReplayer(t, kind)
			for _, c := range broken {
				_, before := engine.seen()
				got := engine.ask(t, good.path, good.request, c.answer)
				e := decode[apiError](t, got.body).Error
				if got.status != http.StatusBadGateway || e.Code == nil || *e.Code != "echo_logprobs_missing" || !strings.Contains(e.Message, c.reason) {
					t.Errorf("%s: got %d %s, want 502 echo_logprobs_missing that says %q", c.name, got.status, got.body, c.reason)
				}
				if _, after := engine.seen(); after != before+1 {
					t.Errorf("%s: the engine was asked %d times, want once", c.name, after-before)
				}
			}
			if kind == "sglang" { // it takes no prompt_logprobs, and says nothing of it
				r := readEngineRecording(t, "sglang/c-promptlogprobs")
				if got := engine.ask(t, r.path, r.request, r.answer); got.status != http.StatusBadGateway || !bytes.Contains(got.body, []byte("echo_logprobs_missing")) {
					t.Errorf("prompt_logprobs ignored: got %d %s", got.status, got.body)
				}
			}
			// The engine is not taken out for it: what is right is still served.
			if got := engine.ask(t, good.path, good.request, good.answer); got.status != http.StatusOK {
				t.Errorf("a good answer afterwards: %d %s", got.status, got.body)
			}
			wantAtRest(t, engine.gateway)
		})
	}
}

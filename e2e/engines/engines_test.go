package engines

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"penstock/e2e/harness"
)

// answerTimeout of one request; beyond it something hangs.
const answerTimeout = 5 * time.Minute

// send sends one request and reads its answer whole.
func send(t *testing.T, method, url, body string) (int, string) {
	t.Helper()
	status, text, err := exchange(method, url, body)
	if err != nil {
		t.Fatal(err)
	}
	return status, text
}

// exchange is send for those that are not the test's own goroutine.
func exchange(method, url, body string) (status int, text string, err error) {
	req, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := (&http.Client{Timeout: answerTimeout}).Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	all, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(all), err
}

func encode(t *testing.T, v any) string {
	t.Helper()
	raw, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// converse holds a conversation of some turns and returns the cached tokens of its last one.
func converse(t *testing.T, url string, turns int, about string) (prompt, cached int) {
	t.Helper()
	var messages []map[string]string
	for i := range turns {
		messages = append(messages, map[string]string{"role": "user", "content": strings.Repeat(fmt.Sprintf("%s %d. ", about, i), 40)})
		status, body := send(t, http.MethodPost, url+"/v1/chat/completions",
			encode(t, map[string]any{"model": modelName, "messages": messages, "max_tokens": 8, "temperature": 0}))
		var answer struct {
			Choices []struct{ Message struct{ Content string } }
			Usage   struct {
				Prompt  int `json:"prompt_tokens"`
				Details struct {
					Cached int `json:"cached_tokens"`
				} `json:"prompt_tokens_details"`
			}
		}
		if err := json.Unmarshal([]byte(body), &answer); err != nil || status != http.StatusOK || len(answer.Choices) == 0 {
			t.Fatalf("turn %d: %d %s", i, status, body)
		}
		messages = append(messages, map[string]string{"role": "assistant", "content": answer.Choices[0].Message.Content})
		prompt, cached = answer.Usage.Prompt, answer.Usage.Details.Cached
	}
	return prompt, cached
}

// found is what the tests read of GET /replicas.
type found struct {
	ID       string `json:"id"`
	Kind     string `json:"kind"`
	State    string `json:"state"`
	Rank     *int   `json:"dp_rank"`
	KVTokens int    `json:"kv_tokens"`
	PageSize int    `json:"page_size"`
	Requests int    `json:"requests_total"`
}

func replicas(t *testing.T, gateway *harness.Process) []found {
	t.Helper()
	var all []found
	if err := json.Unmarshal([]byte(get(t, gateway.Admin+"/replicas")), &all); err != nil {
		t.Fatal(err)
	}
	return all
}

func serve(t *testing.T, engines ...*engine) *harness.Process {
	t.Helper()
	return serveWith(t, "prefix", engines...)
}

func serveWith(t *testing.T, policy string, engines ...*engine) *harness.Process {
	t.Helper()
	var urls []string
	for _, e := range engines {
		urls = append(urls, fmt.Sprintf("{url: %q}", e.url))
	}
	return harness.Serve(t, fmt.Sprintf("models: [{policy: %s, engines: [%s]}]", policy, strings.Join(urls, ", ")))
}

// TestEnginesVLLM runs all that two vLLM replicas can show; each part leaves
// them as it found them, but the last, which kills one.
func TestEnginesVLLM(t *testing.T) {
	only(t)
	venv := vllm(t)
	dir := model(t, venv)
	a, b := start(t, "serve-vllm.sh", venv, dir), start(t, "serve-vllm.sh", venv, dir)
	a.ready(t)
	b.ready(t)
	gateway := serve(t, a, b)

	t.Run("discovery", func(t *testing.T) {
		harness.Eventually(t, 10*time.Second, "both are found out", func() error {
			for _, r := range replicas(t, gateway) {
				// 4,096 blocks of 32 tokens, as the script starts it.
				if r.Kind != "vllm" || r.State != "healthy" || r.KVTokens != 131072 || r.PageSize != 32 || r.Rank != nil {
					return fmt.Errorf("found %+v, want a healthy vllm of 131,072 tokens in pages of 32, without ranks", r)
				}
			}
			return nil
		})
	})
	t.Run("a conversation stays where its prefix is", func(t *testing.T) { affinity(t, gateway, a, b) })
	t.Run("streaming", func(t *testing.T) { streaming(t, gateway) })
	t.Run("echo is the engine's own", func(t *testing.T) { echo(t, gateway, a) })
	t.Run("a client that leaves frees the engine", func(t *testing.T) { abort(t, gateway, a, b) })
	t.Run("vllm bench serve", func(t *testing.T) { vllmBench(t, gateway, venv, dir) })
	t.Run("guidellm", func(t *testing.T) { guideLLM(t, gateway, dir) })
	t.Run("lm-eval", func(t *testing.T) { lmEval(t, gateway, a, dir) })
	t.Run("overload is answered", func(t *testing.T) { overload(t, gateway) })
	t.Run("kill -9 of one replica", func(t *testing.T) { killOne(t, gateway, a) })
}

func affinity(t *testing.T, gateway *harness.Process, engines ...*engine) {
	type count struct{ hits, queries float64 }
	read := func() (all []count) {
		for _, e := range engines {
			all = append(all, count{e.metric(t, "vllm:prefix_cache_hits_total"), e.metric(t, "vllm:prefix_cache_queries_total")})
		}
		return all
	}
	before := read()
	prompt, cached := converse(t, gateway.URL, 8, "The river flows north")
	after, asked := read(), 0
	for i := range engines {
		hits, queries := after[i].hits-before[i].hits, after[i].queries-before[i].queries
		t.Logf("engine %d: %.0f of %.0f prompt tokens from its prefix cache", i, hits, queries)
		if queries > 0 {
			asked++
			if hits < 0.6*queries {
				t.Errorf("engine %d took %.0f of %.0f tokens from its cache, want six tenths of an eight-turn conversation", i, hits, queries)
			}
		}
	}
	if asked != 1 || cached*10 < prompt*7 {
		t.Errorf("%d engines were asked, the last turn had %d of %d tokens cached; want one, and seven tenths", asked, cached, prompt)
	}
}

func streaming(t *testing.T, gateway *harness.Process) {
	body := encode(t, map[string]any{
		"model": modelName, "stream": true, "max_tokens": 20, "ignore_eos": true,
		"messages": []map[string]string{{"role": "user", "content": "Where does the water go?"}},
	})
	status, text := send(t, http.MethodPost, gateway.URL+"/v1/chat/completions", body)
	if status != http.StatusOK || !strings.HasSuffix(text, "data: [DONE]\n\n") || strings.Contains(text, `"completion_tokens"`) {
		t.Errorf("%d: want a stream that ends in [DONE] and has no usage:\n%s", status, text)
	}
}

// scored is an answer without what differs from one call to the next and
// without vLLM's second form of the same log-probabilities, which Penstock
// takes out. Numbers stay the text that the engine wrote.
func scored(t *testing.T, body string) string {
	t.Helper()
	var answer map[string]any
	d := json.NewDecoder(strings.NewReader(body))
	d.UseNumber()
	if err := d.Decode(&answer); err != nil {
		t.Fatalf("%v in %.300s", err, body)
	}
	delete(answer, "id")
	delete(answer, "created")
	choices, _ := answer["choices"].([]any)
	for _, choice := range choices {
		if c, ok := choice.(map[string]any); ok {
			delete(c, "prompt_logprobs")
		}
	}
	return encode(t, answer)
}

func echo(t *testing.T, gateway *harness.Process, direct *engine) {
	for _, prompt := range []any{"The river runs to the sea.", []int{40, 300, 500, 20}, []string{"one", "two three"}} {
		body := encode(t, map[string]any{"model": modelName, "prompt": prompt, "echo": true, "logprobs": 1, "max_tokens": 1, "temperature": 0, "seed": 1234})
		_, direct := send(t, http.MethodPost, direct.url+"/v1/completions", body)
		status, through := send(t, http.MethodPost, gateway.URL+"/v1/completions", body)
		if want, got := scored(t, direct), scored(t, through); status != http.StatusOK || want != got {
			t.Errorf("%s\ndirect  %s\nthrough %d %s", body, want, status, got)
		}
	}
}

func abort(t *testing.T, gateway *harness.Process, engines ...*engine) {
	running := func() (sum float64) {
		for _, e := range engines {
			sum += e.metric(t, "vllm:num_requests_running")
		}
		return sum
	}
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	body := encode(t, map[string]any{"model": modelName, "prompt": "The river", "stream": true, "max_tokens": 10000, "ignore_eos": true})
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, gateway.URL+"/v1/completions", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(resp.Body)
		t.Fatalf("%d %s", resp.StatusCode, text)
	}
	harness.Eventually(t, 20*time.Second, "the request runs", func() error {
		if running() == 0 {
			return errors.New("no engine runs a request")
		}
		return nil
	})
	leave()
	began := time.Now()
	harness.Eventually(t, 5*time.Second, "the engine stops", func() error {
		if n := running(); n > 0 {
			return fmt.Errorf("%.0f requests still run", n)
		}
		return nil
	})
	t.Logf("the engine's running count fell to 0 in %v", time.Since(began).Round(time.Millisecond))
}

// together sends n requests at once and counts their statuses.
func together(t *testing.T, url string, n, tokens int) map[int]int {
	t.Helper()
	var mu sync.Mutex
	statuses := map[int]int{}
	var wg sync.WaitGroup
	for i := range n {
		body := encode(t, map[string]any{"model": modelName, "prompt": fmt.Sprintf("Number %d of many", i), "max_tokens": tokens, "ignore_eos": true})
		wg.Go(func() {
			status, _, err := exchange(http.MethodPost, url+"/v1/completions", body)
			if err != nil {
				status = 0
			}
			mu.Lock()
			defer mu.Unlock()
			statuses[status]++
		})
	}
	wg.Wait()
	return statuses
}

func overload(t *testing.T, gateway *harness.Process) {
	if statuses := together(t, gateway.URL, 300, 32); statuses[http.StatusOK] != 300 {
		t.Errorf("300 requests at once ended with %v, want 200 for each", statuses)
	}
	for _, r := range replicas(t, gateway) {
		if r.State != "healthy" {
			t.Errorf("after the overload %s is %s", r.ID, r.State)
		}
	}
}

func killOne(t *testing.T, gateway *harness.Process, victim *engine) {
	done := make(chan map[int]int)
	go func() { done <- together(t, gateway.URL, 40, 400) }()
	harness.Eventually(t, 10*time.Second, "the victim runs some", func() error {
		if victim.metric(t, "vllm:num_requests_running") < 3 {
			return errors.New("too few run there")
		}
		return nil
	})
	victim.kill()
	// Answers that are not streamed have sent nothing: each is tried once more elsewhere.
	if statuses := <-done; statuses[http.StatusOK] != 40 {
		t.Errorf("40 requests, half of them on the killed replica, ended with %v, want 200 for each", statuses)
	}
	if statuses := together(t, gateway.URL, 10, 8); statuses[http.StatusOK] != 10 {
		t.Errorf("afterwards 10 requests ended with %v, want 200 for each", statuses)
	}
	harness.Eventually(t, 15*time.Second, "the killed replica is out", func() error {
		for _, r := range replicas(t, gateway) {
			if strings.HasSuffix(victim.url, r.ID) && r.State == "healthy" {
				return fmt.Errorf("%s is %s", r.ID, r.State)
			}
		}
		return nil
	})
}

// TestEnginesVLLMRanks: one server of two data-parallel ranks is two replicas,
// and a conversation stays on its rank, as the engine's own counters say.
func TestEnginesVLLMRanks(t *testing.T) {
	only(t)
	venv := vllm(t)
	e := start(t, "serve-vllm.sh", venv, model(t, venv), "--data-parallel-size", "2")
	e.ready(t)
	ranks(t, e, func(rank int) float64 {
		return e.metric(t, "vllm:prefix_cache_queries_total", fmt.Sprintf(`engine="%d"`, rank))
	})
}

// TestEnginesSGLangRanks is the same for SGLang, and runs its load generator.
func TestEnginesSGLangRanks(t *testing.T) {
	only(t)
	venv := os.Getenv("SGLANG")
	if venv == "" {
		t.Skip("SGLANG does not name a virtual environment with SGLang (e2e/engines/setup/setup-sglang.sh makes one): skipped")
	}
	t.Setenv("SGLANG_CPU_OMP_THREADS_BIND", "0|1")
	dir := model(t, venv)
	e := start(t, "serve-sglang.sh", venv, dir, "--dp-size", "2")
	e.ready(t)
	gateway := ranks(t, e, func(rank int) float64 {
		return e.metric(t, "sglang:realtime_tokens_total", fmt.Sprintf(`dp_rank="%d"`, rank), `mode="prefill_`)
	})
	t.Run("sglang.bench_serving", func(t *testing.T) { sglangBench(t, gateway, venv, dir) })
}

func ranks(t *testing.T, e *engine, tokens func(rank int) float64) *harness.Process {
	gateway := serve(t, e)
	if all := replicas(t, gateway); len(all) != 2 || all[0].Rank == nil || all[1].Rank == nil {
		t.Fatalf("found %+v, want two replicas with ranks", all)
	}
	for _, about := range []string{"The river flows north", "A mill stands still", "Rain falls on slate"} {
		before := [2]float64{tokens(0), tokens(1)}
		prompt, cached := converse(t, gateway.URL, 5, about)
		grew := [2]float64{tokens(0) - before[0], tokens(1) - before[1]}
		t.Logf("%s: prompt tokens by rank %v, the last turn had %d of %d cached", about, grew, cached, prompt)
		if (grew[0] > 0) == (grew[1] > 0) {
			t.Errorf("%s: tokens of one conversation by rank: %v, want all on one", about, grew)
		}
	}
	return gateway
}

package gateway

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"

	"penstock/engine/local"
	"penstock/engine/local/localtest"
)

// A burst of one new prompt is computed on few replicas: the others of the burst
// wait for the first to have it, streamed or not, and do not pile onto one.
func TestABurstOfOnePromptIsNotComputedByEverybody(t *testing.T) {
	for _, stream := range []bool{true, false} {
		t.Run(fmt.Sprintf("stream %v", stream), func(t *testing.T) {
			g := startGateway(t, strings.ReplaceAll(fourEngines, "scoring: {split_tokens: 16}", ""), four(t, local.Options{Profile: "qwen3-30b"})...)
			prompt, _ := json.Marshal(strings.Repeat("The water stands high before the gate tonight. ", 600))
			const burst = 24
			var (
				mu             sync.Mutex
				wg             sync.WaitGroup
				tokens, cached int
			)
			for range burst {
				wg.Go(func() {
					got := ask(t, "POST", g.url+"/v1/completions", fmt.Sprintf(`{"model":"m","prompt":%s,"max_tokens":2,"stream":%v,"stream_options":{"include_usage":true}}`, prompt, stream))
					if got.status != 200 {
						t.Errorf("got %d %.300s", got.status, got.body)
						return
					}
					mu.Lock()
					defer mu.Unlock()
					p, c := usageIn(got.body)
					tokens, cached = tokens+p, cached+c
				})
			}
			wg.Wait()
			used := 0
			for _, r := range g.pools.all()[0].router.Replicas() {
				if r.Stats().RequestsTotal > 0 {
					used++
				}
			}
			t.Logf("%d requests of %d tokens on %d replicas, %.2f of the tokens cached", burst, tokens/burst, used, float64(cached)/float64(tokens))
			// All on one replica: 23/24 at most. Computed by everybody: 20/24 at most, and 0 if at once.
			if float64(cached) < 0.75*float64(tokens) {
				t.Errorf("%d of %d prompt tokens were cached, want three quarters at least", cached, tokens)
			}
			g.atRest(t)
		})
	}
}

// usageIn finds the last usage's prompt and cached tokens.
func usageIn(body string) (prompt, cached int) {
	_, _ = fmt.Sscanf(body[strings.LastIndex(body, `"prompt_tokens":`):], `"prompt_tokens":%d`, &prompt)
	_, _ = fmt.Sscanf(body[strings.LastIndex(body, `"cached_tokens":`):], `"cached_tokens":%d`, &cached)
	return prompt, cached
}

// Waiting for a prefix never fills a queue that others would need, and with
// max_length 0 nobody waits at all.
func TestHeldRequestsAreNotRefusedWhileThereIsRoom(t *testing.T) {
	for _, c := range []struct{ length, burst int }{{10, 40}, {0, 40}} {
		t.Run(fmt.Sprintf("max_length %d", c.length), func(t *testing.T) {
			g := startGateway(t, fmt.Sprintf("models: [{name: m, engines: [{url: $1}], queue: {max_length: %d}}]", c.length),
				localtest.URL(t, local.Options{Model: "m", Profile: "qwen3-30b"}))
			prompt, _ := json.Marshal(strings.Repeat("The water stands high before the gate tonight. ", 300))
			var wg sync.WaitGroup
			for range c.burst {
				wg.Go(func() {
					if got := ask(t, "POST", g.url+"/v1/completions", fmt.Sprintf(`{"model":"m","prompt":%s,"max_tokens":2}`, prompt)); got.status != 200 {
						t.Errorf("got %d %s, want 200: the replica runs hundreds at once", got.status, got.body)
					}
				})
			}
			wg.Wait()
			g.atRest(t)
		})
	}
}

func TestWithoutAQueueNobodyWaits(t *testing.T) {
	g := startGateway(t, "models: [{name: m, engines: [{url: $1}], queue: {max_length: 0}}]",
		localtest.URL(t, local.Options{Model: "m", Profile: "qwen3-30b", MaxRunning: 1}))
	const body = `{"model":"m","prompt":"x","max_tokens":200,"ignore_eos":true}`
	done := make(chan answer, 1)
	go func() { done <- ask(t, "POST", g.url+"/v1/completions", body) }()
	eventually(t, "one runs", func() bool { return g.attempts.count() == 1 })
	got := ask(t, "POST", g.url+"/v1/completions", body)
	if got.status != 429 || !strings.Contains(got.body, `"code":"queue_full"`) || !strings.Contains(got.body, "models[m].queue.max_length") {
		t.Errorf("a second request: got %d %s, want 429 queue_full that names the key", got.status, got.body)
	}
	if first := <-done; first.status != 200 {
		t.Errorf("the first: got %d %s", first.status, first.body)
	}
}

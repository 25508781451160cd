package gateway

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"

	"penstock/engine/local"
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

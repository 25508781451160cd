package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"strings"
	"sync"
	"testing"

	"penstock/e2e/harness"
)

// appetite is a client that always wants more: so many requests at once, of a size.
type appetite struct {
	key     string
	workers int
	size    int // times 80 prompt tokens and 20 answered ones
}

// feast runs the clients until so many requests are answered in all and
// returns the tokens that each key got, without those of the first warm.
func feast(t *testing.T, url string, clients []appetite, warm, total int) []float64 {
	t.Helper()
	var (
		mu   sync.Mutex
		n    int
		got  = make([]float64, len(clients))
		stop = make(chan struct{})
		wg   sync.WaitGroup
	)
	served := func(client int, tokens float64) {
		mu.Lock()
		defer mu.Unlock()
		if n++; n > warm && n <= total {
			got[client] += tokens
		}
		if n == total {
			close(stop)
		}
	}
	for i, c := range clients {
		for w := range c.workers {
			wg.Go(func() {
				for round := 0; ; round++ {
					select {
					case <-stop:
						return
					default:
					}
					tokens, err := eat(t, url, c, fmt.Sprintf("%s-%d-%d", c.key, w, round))
					if err != nil {
						t.Errorf("key %s: %v", c.key, err)
						return
					}
					served(i, tokens)
				}
			})
		}
	}
	wg.Wait()
	return got
}

// eat sends one request, of which nothing is cached, and returns its tokens.
func eat(t *testing.T, url string, c appetite, name string) (float64, error) {
	text := strings.Repeat(name+" ", 320*c.size/len(name)+1)
	body, err := json.Marshal(map[string]any{
		"model": localModel, "prompt": text[:320*c.size], "max_tokens": 20 * c.size, "ignore_eos": true,
	})
	if err != nil {
		return 0, err
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/v1/completions", bytes.NewReader(body))
	if err != nil {
		return 0, err
	}
	req.Header.Set("Authorization", "Bearer "+c.key)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	var v struct {
		Usage struct {
			Total int `json:"total_tokens"`
		}
	}
	if err := json.NewDecoder(resp.Body).Decode(&v); err != nil || resp.StatusCode != 200 {
		return 0, fmt.Errorf("status %d, %w", resp.StatusCode, err)
	}
	return float64(v.Usage.Total), nil
}

// jain is Jain's index of fairness: 1 when all have the same.
func jain(x []float64) float64 {
	var sum, squares float64
	for _, v := range x {
		sum += v
		squares += v * v
	}
	return sum * sum / (float64(len(x)) * squares)
}

// TestFullEnginesAreSharedFairly: ten equal keys that ask unequally much get
// the same, and weights and priorities get their shares.
func TestFullEnginesAreSharedFairly(t *testing.T) {
	var equal []appetite
	keys := ""
	for i := range 10 {
		equal = append(equal, appetite{key: fmt.Sprintf("equal%d", i), workers: 5 + i, size: 1 + i%4})
		keys += keyLine(equal[i].key, "")
	}
	keys += keyLine("one", "") + keyLine("two", "weight: 2") + keyLine("four", "priority: high")
	g := harness.Serve(t, "models: [{name: penstock-local, engines: [{local: {replicas: 1, profile: qwen3-30b, time_scale: 50, max_running: 4}}], queue: {max_wait: 2m}}]\nlog: {access: false}\nkeys:\n"+keys)
	got := feast(t, g.URL, equal, 60, 330)
	if j := jain(got); j < 0.98 {
		t.Errorf("ten equal keys got %.0f tokens: Jain's index %.4f, want at least 0.98", got, j)
	} else {
		t.Logf("ten equal keys got %.0f tokens: Jain's index %.4f", got, j)
	}
	got = feast(t, g.URL, []appetite{{"one", 10, 1}, {"two", 10, 1}, {"four", 10, 1}}, 60, 480)
	sum := got[0] + got[1] + got[2]
	for i, weight := range []float64{1, 2, 4} {
		if share, want := got[i]/sum, weight/7; math.Abs(share-want) > 0.05*want {
			t.Errorf("weight %.0f got %.4f of all tokens (%.0f), want %.4f within 5 %%", weight, share, got, want)
		}
	}
	t.Logf("weights 1 : 2 : 4 got %.0f tokens", got)
	wantAtRest(t, g)
}

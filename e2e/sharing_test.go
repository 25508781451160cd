package e2e

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"penstock/e2e/harness"
)

// thinking is the time between two turns of a dialogue: shorter than any
// reader's, and several times what a placement takes to the other gateways.
const thinking = 400 * time.Millisecond

// dialogue is a recorded session; each of the assistant's turns is a request
// over all that came before it.
type dialogue struct {
	Messages []json.RawMessage `json:"messages"`
}

func (d dialogue) requests(t *testing.T) (bodies []string) {
	for i, m := range d.Messages {
		if decode[struct{ Role string }](t, m).Role == "assistant" {
			bodies = append(bodies, string(encode(t, map[string]any{"model": localModel, "messages": d.Messages[:i], "max_tokens": 4})))
		}
	}
	return bodies
}

func dialogues(t *testing.T, n int) (all []dialogue) {
	for _, line := range harness.Sessions(t, "traces/tau_airline_sessions.jsonl.gz", n) {
		all = append(all, decode[dialogue](t, line))
	}
	return all
}

// hitRate plays the dialogues, all at once, each turn to the next of the
// gateways, and returns the share of prompt tokens that engines had cached.
func hitRate(t *testing.T, gateways []*harness.Process, all []dialogue) float64 {
	t.Helper()
	var (
		mu             sync.Mutex
		wg             sync.WaitGroup
		prompt, cached int
	)
	for i, d := range all {
		bodies := d.requests(t)
		wg.Go(func() {
			for turn, body := range bodies {
				<-time.After(thinking)
				a := tryPost(t.Context(), gateways[(i+turn)%len(gateways)].URL+"/v1/chat/completions", body)
				var v struct {
					Usage struct {
						Prompt  int `json:"prompt_tokens"`
						Details struct {
							Cached int `json:"cached_tokens"`
						} `json:"prompt_tokens_details"`
					}
				}
				if err := json.Unmarshal(a.body, &v); err != nil || a.status != 200 {
					t.Errorf("session %d turn %d: %d %.300s", i, turn, a.status, a.body)
					return
				}
				mu.Lock()
				prompt += v.Usage.Prompt
				cached += v.Usage.Details.Cached
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return float64(cached) / float64(max(1, prompt))
}

// TestTwoGatewaysRouteAsOne: with Redis between them, two gateways before the
// same engines lose at most two points of hit rate against one, although each
// dialogue changes between them with every turn. (Without Redis it is four points.)
func TestTwoGatewaysRouteAsOne(t *testing.T) {
	sessions := 40
	if harness.Race || testing.Short() {
		sessions = 15
	}
	all := dialogues(t, sessions)
	r := startRedis(t)
	run := func(gateways int, settings string) float64 {
		var engines []string
		for i := range 4 {
			engines = append(engines, fmt.Sprintf("{url: %s, id: e%d}", harness.Engine(t, "--log-level", "warn").URL, i))
		}
		var gs []*harness.Process
		for range gateways {
			gs = append(gs, harness.Serve(t, fmt.Sprintf("models: [{name: penstock-local, engines: [%s]}]\nlog: {access: false}\n%s", strings.Join(engines, ", "), settings)))
		}
		rate := hitRate(t, gs, all)
		t.Logf("%d gateways with %q: hit rate %.1f %%", gateways, settings, 100*rate)
		for _, g := range gs {
			sent, received := metric(t, g, "penstock_placements_total", `type="sent"`), metric(t, g, "penstock_placements_total", `type="received"`)
			if shares := gateways > 1 && settings != ""; shares && (sent == 0 || received == 0) {
				t.Errorf("a gateway sent %v batches of placements and received %v, want some", sent, received)
			}
			g.Stop()
		}
		return rate
	}
	one := run(1, "")
	two := run(2, fmt.Sprintf("redis: {url: \"redis://%s\", timeout: %v}\n", r.addr, redisTimeout))
	if two < one-0.02 {
		t.Errorf("two gateways with Redis: hit rate %.3f, one gateway %.3f; want at most 0.02 less", two, one)
	}
}

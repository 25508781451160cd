package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"penstock/e2e/harness"
)

// turn asks with a conversation so far and returns the answer and its usage.
func turn(t *testing.T, url, model string, messages []map[string]string) (text string, prompt, cached int) {
	t.Helper()
	a := post(t, url+"/v1/chat/completions", string(encode(t, map[string]any{
		"model": model, "messages": messages, "max_tokens": 16, "temperature": 0,
	})))
	if a.status != http.StatusOK {
		t.Errorf("%d %s", a.status, a.body)
		return "", 0, 0
	}
	got := decode[struct {
		Choices []struct {
			Message struct{ Content string }
		}
		Usage struct {
			Prompt  int `json:"prompt_tokens"`
			Details struct {
				Cached int `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
		}
	}](t, a.body)
	return got.Choices[0].Message.Content, got.Usage.Prompt, got.Usage.Details.Cached
}

// story is a text that differs from that of any other number at its first word.
func story(n, words int) string {
	var b strings.Builder
	for i := range words {
		fmt.Fprintf(&b, "word%d-%d ", n, i)
	}
	return b.String()
}

func say(role, text string) map[string]string {
	return map[string]string{"role": role, "content": text}
}

func TestTenTurnsLandOnOneReplica(t *testing.T) {
	gateway := harness.Serve(t, "models: [{name: penstock-local, engines: [{local: {replicas: 4, profile: instant}}]}]")
	before := requestsByReplica(t, gateway)
	var messages []map[string]string
	last := -1
	for i := range 10 {
		messages = append(messages, say("user", story(i, 60)))
		text, prompt, cached := turn(t, gateway.URL, localModel, messages)
		if i > 0 && cached <= last {
			t.Errorf("turn %d of %d tokens: %d cached, not more than the %d before", i+1, prompt, cached, last)
		}
		last = cached
		messages = append(messages, say("assistant", text))
	}
	var took []string
	for id, n := range requestsByReplica(t, gateway) {
		if n -= before[id]; n > 0 {
			took = append(took, fmt.Sprintf("%s: %d", id, n))
		}
	}
	if len(took) != 1 || !strings.HasSuffix(took[0], ": 10") {
		t.Errorf("ten turns of one conversation went to %v, want all to one replica", took)
	}
}

func TestFortyConversationsSpread(t *testing.T) {
	gateway := harness.Serve(t, "models: [{name: penstock-local, engines: [{local: {replicas: 4, profile: qwen3-30b, time_scale: 10}}]}]")
	var wg sync.WaitGroup
	for c := range 40 {
		wg.Go(func() {
			messages := []map[string]string{say("system", "You are brief."), say("user", story(c, 600))}
			for range 3 {
				text, _, _ := turn(t, gateway.URL, localModel, messages)
				messages = append(messages, say("assistant", text), say("user", story(c, 40)))
			}
		})
	}
	wg.Wait()
	counts := requestsByReplica(t, gateway)
	most, sum := 0, 0
	for _, n := range counts {
		most, sum = max(most, n), sum+n
	}
	if mean := float64(sum) / float64(len(counts)); len(counts) != 4 || sum != 120 || float64(most) > 1.5*mean {
		t.Errorf("120 requests of 40 conversations went to %v: want four replicas, none with more than 1.5 times the mean", counts)
	}
	t.Logf("requests by replica: %v", counts)
}

func requestsByReplica(t *testing.T, gateway *harness.Process) map[string]int {
	t.Helper()
	counts := map[string]int{}
	for _, r := range replicas(t, gateway.Admin) {
		counts[r.ID] += r.Requests
	}
	return counts
}

func TestModelsDoNotShareAnIndex(t *testing.T) {
	gateway := harness.Serve(t, `
models:
  - {name: one, engines: [{local: {replicas: 1, profile: instant}, id: a}]}
  - {name: two, engines: [{local: {replicas: 1, profile: instant}, id: b}]}
`)
	messages := []map[string]string{say("user", story(1, 400))}
	turn(t, gateway.URL, "one", messages)
	turn(t, gateway.URL, "two", messages)
	for _, r := range replicas(t, gateway.Admin) {
		if r.IndexBlocks == 0 || r.Requests != 1 {
			t.Errorf("%s of model %s: %d blocks after %d requests, want some after one", r.ID, r.Model, r.IndexBlocks, r.Requests)
		}
		if r.HitPredicted != nil && *r.HitPredicted > 0 {
			t.Errorf("%s of model %s predicts a hit of %v for a prompt that only the other model had", r.ID, r.Model, *r.HitPredicted)
		}
	}
}

package engine

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"testing"

	"penstock/configs"
	"penstock/engine/local"
	"penstock/engine/local/localtest"
)

func TestPoolOfEmbeddedEngines(t *testing.T) {
	f, _ := startFleet(t, quick(served("", configs.Engine{Local: &configs.LocalPool{Replicas: 4, Profile: "instant", TimeScale: 1, KVTokens: 4096, MaxRunning: 8}})))
	if got := ids(f); got != "local-0 local-1 local-2 local-3" {
		t.Fatalf("replicas: got %s, want local-0 to local-3", got)
	}
	for _, r := range f.Replicas() {
		if c := r.Capacity(); r.Kind() != KindLocal || r.Tongue() != KindSGLang || r.Model() != local.DefaultModel || !r.Usable() ||
			c.KVTokens != 4096 || c.MaxRunning != 8 || r.Source() != "local" {
			t.Errorf("replica %s: got kind %s, tongue %s, model %s, %+v, source %s", r.ID(), r.Kind(), r.Tongue(), r.Model(), c, r.Source())
		}
	}
	before := f.Replicas()[0]
	apply(t, f, quick(served("", configs.Engine{Local: &configs.LocalPool{Replicas: 4, Profile: "instant", TimeScale: 1, KVTokens: 4096, MaxRunning: 8}})))
	if f.Replicas()[0] != before {
		t.Error("a reload that changes nothing started the pool anew")
	}
}

// ask sends a completion to a replica's rank and returns how many prompt
// tokens were cached.
func ask(t *testing.T, r *Replica, prompt string) int {
	t.Helper()
	const path = "/v1/completions"
	a := r.Address(path)
	if !a.Ok {
		t.Fatalf("replica %s has no address for %s", r.ID(), path)
	}
	fields := map[string]any{"model": r.Model(), "prompt": prompt, "max_tokens": 1}
	if a.BodyField != "" {
		fields[a.BodyField] = json.RawMessage(a.BodyValue)
	}
	body, _ := json.Marshal(fields)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, r.URL()+path, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	if a.HeaderName != "" {
		req.Header.Set(a.HeaderName, a.HeaderValue)
	}
	at := r.Begin(true)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		at.End(false)
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var answer struct {
		Usage struct {
			Details struct {
				Cached int `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
		} `json:"usage"`
	}
	err = json.NewDecoder(resp.Body).Decode(&answer)
	at.End(resp.StatusCode == http.StatusOK)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("replica %s: status %d, %v", r.ID(), resp.StatusCode, err)
	}
	return answer.Usage.Details.Cached
}

// Two engines with four ranks each, given by nothing but their URLs: eight
// replicas with the right sizes, each with a cache of its own.
func TestEmbeddedEnginesWithRanks(t *testing.T) {
	defer http.DefaultClient.CloseIdleConnections()
	sg, _ := localtest.Start(t, local.Options{Kind: local.SGLang, DP: 4, KVTokens: 8192, MaxRunning: 16, PageSize: 16})
	vl, _ := localtest.Start(t, local.Options{Kind: local.VLLM, DP: 4, KVTokens: 16384, MaxRunning: 24, PageSize: 32})
	f, rec := startFleet(t, quick(served("", configs.Engine{URL: sg, ID: "sg"}, configs.Engine{URL: vl, ID: "vl"})))
	if got, want := ids(f), "sg/0 sg/1 sg/2 sg/3 vl/0 vl/1 vl/2 vl/3"; got != want {
		t.Fatalf("replicas: got %s, want %s", got, want)
	}
	want := map[Kind]Capacity{
		KindSGLang: {KVTokens: 8192, MaxRunning: 16, PageSize: 16, RunningBy: "engine"},
		KindVLLM:   {KVTokens: 16384, MaxRunning: 256, PageSize: 32, RunningBy: "learned"},
	}
	for i, r := range f.Replicas() {
		if r.Capacity() != want[r.Kind()] {
			t.Errorf("replica %s: got %+v, want %+v", r.ID(), r.Capacity(), want[r.Kind()])
		}
		prompt := fmt.Sprintf("conversation %d: %0600d", i, i)
		if cold := ask(t, r, prompt); cold != 0 {
			t.Errorf("replica %s, first time: got %d cached tokens, want none", r.ID(), cold)
		}
		if warm := ask(t, r, prompt); warm < 64 {
			t.Errorf("replica %s, second time: got %d cached tokens, want the prompt", r.ID(), warm)
		}
		next := f.Replicas()[i/4*4+(i+1)%4]
		if other := ask(t, next, prompt); other != 0 {
			t.Errorf("replica %s with the prompt of %s: got %d cached tokens, want none: ranks share no cache", next.ID(), r.ID(), other)
		}
	}
	eventually(t, "loads from all eight", func() bool { return rec.count(LoadReported) >= 16 })
	for range 200 {
		for _, r := range f.Replicas() {
			ask(t, r, "x")
		}
	}
	if rec.count(RanksIgnored) != 0 {
		t.Error("an engine that heeds its ranks was accused of ignoring them")
	}
}

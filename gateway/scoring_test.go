package gateway

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"penstock/engine/local"
	"penstock/engine/local/localtest"
)

const fourEngines = `
models:
  - name: m
    engines: [{url: $1}, {url: $2}, {url: $3}, {url: $4}]
scoring: {split_tokens: 16}
`

func four(t testing.TB, o local.Options) []string {
	o.Model = "m"
	urls := make([]string, 4)
	for i := range urls {
		urls[i] = localtest.URL(t, o)
	}
	return urls
}

// completion is the part of an answer that scoring is about.
type completion struct {
	Choices []struct {
		Index    int
		Text     string
		Logprobs struct {
			TokenLogprobs []*json.Number           `json:"token_logprobs"`
			Tokens        []string                 `json:"tokens"`
			TextOffset    []int                    `json:"text_offset"`
			TopLogprobs   []map[string]json.Number `json:"top_logprobs"`
		}
	}
	Usage struct {
		Prompt int `json:"prompt_tokens"`
	}
}

func decodeCompletion(t *testing.T, body string) (c completion) {
	t.Helper()
	if err := json.Unmarshal([]byte(body), &c); err != nil {
		t.Fatalf("%v in %s", err, body)
	}
	return c
}

func TestABatchOfScoredPromptsIsSplitMergedAndExact(t *testing.T) {
	for _, kind := range []local.Kind{local.SGLang, local.VLLM} {
		t.Run(fmt.Sprint(kind), func(t *testing.T) {
			urls := four(t, local.Options{Kind: kind})
			g := startGateway(t, fourEngines, urls...)
			prompts := make([]string, 13)
			for i := range prompts {
				prompts[i] = strings.Repeat(fmt.Sprintf("The gate %d opens and the water runs. ", i), 1+i%4)
			}
			list, _ := json.Marshal(prompts)
			body := fmt.Sprintf(`{"model":"m","prompt":%s,"echo":true,"logprobs":1,"max_tokens":0,"temperature":0}`, list)
			got := ask(t, "POST", g.url+"/v1/completions", body)
			if got.status != 200 {
				t.Fatalf("got %d %s", got.status, got.body)
			}
			whole := decodeCompletion(t, got.body)
			if len(whole.Choices) != len(prompts) {
				t.Fatalf("got %d choices, want %d", len(whole.Choices), len(prompts))
			}
			sum := 0
			for i, p := range prompts {
				one, _ := json.Marshal(p)
				direct := decodeCompletion(t, ask(t, "POST", urls[0]+"/v1/completions", fmt.Sprintf(`{"model":"m","prompt":%s,"echo":true,"logprobs":1,"max_tokens":0,"temperature":0}`, one)).body)
				sum += direct.Usage.Prompt
				if c := whole.Choices[i]; c.Index != i || c.Text != p {
					t.Errorf("choice %d: index %d text %q, want %q", i, c.Index, c.Text, p)
				}
				a, _ := json.Marshal(whole.Choices[i].Logprobs)
				b, _ := json.Marshal(direct.Choices[0].Logprobs)
				if string(a) != string(b) {
					t.Errorf("choice %d: got %s, direct %s", i, a, b)
				}
			}
			if whole.Usage.Prompt != sum {
				t.Errorf("usage.prompt_tokens: got %d, want the sum %d", whole.Usage.Prompt, sum)
			}
			used := 0
			for _, pl := range g.pools.all() {
				for _, r := range pl.router.Replicas() {
					if r.Stats().RequestsTotal > 0 {
						used++
					}
				}
			}
			if used < 3 {
				t.Errorf("the batch was sent to %d replicas, want it spread", used)
			}
			g.atRest(t)
		})
	}
}

package scoring

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"

	"penstock/engine/local"
	"penstock/engine/local/localtest"
	"penstock/gateway/body"
)

func ask(t *testing.T, url string, body []byte) (int, []byte) {
	t.Helper()
	resp, err := http.Post(url, "application/json", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, b
}

// TestEveryKindOfRequestComesOutAsIfTheEngineWereRight sends the same requests to an engine that answers echo
// rightly, directly, and to one with SGLang's faults, through the adapter and in parts.
func TestEveryKindOfRequestComesOutAsIfTheEngineWereRight(t *testing.T) {
	right, faulty := localtest.URL(t, local.Options{}), localtest.URL(t, local.Options{Quirks: true})
	texts := []string{"The water comes down the pipe.", "Água, 日本語 and 😀 in one line", "x y", "One\ttwo\nthree \"four\" \\five"}
	idsOf := func(text string) []int {
		_, b := ask(t, right+"/tokenize", quoteAll(map[string]any{"prompt": text}))
		var a struct{ Tokens []int }
		if err := json.Unmarshal(b, &a); err != nil {
			t.Fatal(err)
		}
		return a.Tokens
	}
	var ids [][]int
	for _, text := range texts {
		ids = append(ids, idsOf(text))
	}
	for _, prompt := range []any{texts[0], texts[1], texts, ids[0], ids[1], ids} {
		for _, maxTokens := range []int{0, 2} {
			for _, logprobs := range []int{0, 3} {
				request := quoteAll(map[string]any{
					"model": local.DefaultModel, "prompt": prompt, "echo": true, "logprobs": logprobs, "max_tokens": maxTokens, "temperature": 0,
				})
				status, want := ask(t, right+"/v1/completions", request)
				if status != 200 {
					t.Fatalf("%s: %d %s", request, status, want)
				}
				j := jobOf(t, string(request))
				for _, parts := range []int{1, 3} {
					got := throughParts(t, &j, faulty, parts)
					same(t, fmt.Sprintf("%.80s… in %d parts", request, parts), decode(t, got), decode(t, want))
				}
			}
		}
	}
}

func quoteAll(v any) []byte {
	b, _ := json.Marshal(v)
	return b
}

// throughParts sends a job in parts to an engine like SGLang and merges what comes back.
func throughParts(t *testing.T, j *Job, url string, n int) []byte {
	t.Helper()
	var answers []*Answer
	for _, p := range j.Split(func(int) int { return 10 }, SplitOptions{Parts: n}) {
		r := j.Request(KindSGLang, p, new(body.Edits), nil)
		path := r.Path
		if path == "" {
			path = "/v1/completions"
		}
		status, b := ask(t, url+path, r.Body.AppendTo(nil))
		if status != 200 {
			t.Fatalf("%s: %d %s", path, status, b)
		}
		a, err := j.Check(&r, b)
		if err != nil {
			t.Fatalf("%v in %s", err, b)
		}
		answers = append(answers, a)
	}
	got, err := written(j.Merge(answers, MergeOptions{Model: []byte(`"penstock-local"`)}))
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// same holds that two answers say the same: every number has the same text.
func same(t *testing.T, what string, got, want answer) {
	t.Helper()
	if len(got.Choices) != len(want.Choices) || got.Usage.Prompt != want.Usage.Prompt || got.Usage.Completion != want.Usage.Completion || got.Usage.Total != want.Usage.Total {
		t.Errorf("%s: got %d choices, usage %+v, want %d, %+v", what, len(got.Choices), got.Usage, len(want.Choices), want.Usage)
		return
	}
	for i, g := range got.Choices {
		w := want.Choices[i]
		if g.Index != w.Index || g.Text != w.Text && !strings.Contains(g.Text, "\ufffd") || *g.FinishReason != *w.FinishReason || len(g.Logprobs.Tokens) != len(w.Logprobs.Tokens) {
			t.Errorf("%s: choice %d:\n got %+v\nwant %+v", what, i, g, w)
			continue
		}
		for k, lp := range w.Logprobs.TokenLogprobs {
			other := g.Logprobs.TokenLogprobs[k]
			if (lp == nil) != (other == nil) || lp != nil && *lp != *other {
				t.Errorf("%s: token %d: got %v, want %v", what, k, other, lp)
			}
			if part(w.Logprobs.Tokens[k], w.Logprobs.TopLogprobs[k]) {
				continue
			}
			if g.Logprobs.Tokens[k] != w.Logprobs.Tokens[k] || g.Text == w.Text && g.Logprobs.TextOffset[k] != w.Logprobs.TextOffset[k] {
				t.Errorf("%s: token %d: got %q at %d, want %q at %d", what, k, g.Logprobs.Tokens[k], g.Logprobs.TextOffset[k], w.Logprobs.Tokens[k], w.Logprobs.TextOffset[k])
			}
			if !equalMaps(g.Logprobs.TopLogprobs[k], w.Logprobs.TopLogprobs[k]) {
				t.Errorf("%s: alternatives to token %d %q: got %v, want %v", what, k, w.Logprobs.Tokens[k], g.Logprobs.TopLogprobs[k], w.Logprobs.TopLogprobs[k])
			}
		}
	}
}

// part says whether a token, or an alternative to it, is a part of a character, which /generate does not spell.
func part(token string, tops map[string]json.Number) bool {
	for k := range tops {
		if strings.HasPrefix(k, "bytes:") {
			return true
		}
	}
	return strings.HasPrefix(token, "bytes:")
}

func equalMaps(a, b map[string]json.Number) bool {
	if len(a) != len(b) {
		return false
	}
	for k, v := range a {
		if b[k] != v {
			return false
		}
	}
	return true
}

// TestLargeBatchesOverTheLimitOfPrompts goes beyond what vLLM takes in one request.
func TestLargeBatchesOverTheLimitOfPrompts(t *testing.T) {
	url := localtest.URL(t, local.Options{Kind: local.VLLM})
	rng := rand.New(rand.NewPCG(1, 2))
	var prompts [][]int
	for range 1100 {
		p := make([]int, 2+rng.IntN(3))
		for i := range p {
			p[i] = 40 + rng.IntN(60)
		}
		prompts = append(prompts, p)
	}
	j := jobOf(t, string(quoteAll(map[string]any{"model": local.DefaultModel, "prompt": prompts, "echo": true, "logprobs": 1, "max_tokens": 0})))
	parts := j.Split(j.tokens, SplitOptions{Parts: 1, MaxPrompts: MaxPromptsOf(KindVLLM)})
	if len(parts) != 2 {
		t.Fatalf("got %d parts, want 2", len(parts))
	}
	var answers []*Answer
	for _, p := range parts {
		r := j.Request(KindVLLM, p, new(body.Edits), nil)
		status, b := ask(t, url+"/v1/completions", r.Body.AppendTo(nil))
		if status != 200 {
			t.Fatalf("%d %.300s", status, b)
		}
		a, err := j.Check(&r, b)
		if err != nil {
			t.Fatal(err)
		}
		answers = append(answers, a)
	}
	b, err := written(j.Merge(answers, MergeOptions{}))
	if err != nil {
		t.Fatal(err)
	}
	got := decode(t, b)
	if len(got.Choices) != 1100 || strings.Contains(string(b), "prompt_logprobs") {
		t.Errorf("got %d choices", len(got.Choices))
	}
	for i, c := range got.Choices {
		if c.Index != i || len(c.Logprobs.Tokens) != len(prompts[i]) {
			t.Fatalf("choice %d has index %d and %d tokens, want %d", i, c.Index, len(c.Logprobs.Tokens), len(prompts[i]))
		}
	}
}

package local

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

const hello = `"messages":[{"role":"user","content":"What is a gate?"}]`

func TestStreamedAndWholeAnswersHoldTheSameText(t *testing.T) {
	for _, kind := range []Kind{SGLang, VLLM} {
		_, base := start(t, Options{Kind: kind})
		for i, body := range []string{
			`{` + hello + `,"temperature":0`,
			`{` + hello + `,"temperature":1,"seed":7,"max_tokens":200`,
			`{` + hello + `,"temperature":1.4,"seed":7,"max_tokens":200,"ignore_eos":true`, // odd bytes come up
			`{` + hello + `,"temperature":0,"max_tokens":80,"stop":["water","the g"]`,
			`{` + hello + `,"temperature":1,"seed":1,"max_completion_tokens":30,"n":3`,
			`{` + hello + `,"temperature":0,"max_tokens":1`,
		} {
			whole := ask(t, base, "/v1/chat/completions", body+`}`)
			status, stream := post(t, base+"/v1/chat/completions", body+`,"stream":true,"stream_options":{"include_usage":true}}`)
			if status != 200 {
				t.Fatalf("%s: got %d %s", body, status, stream)
			}
			list := events(t, stream)
			if list[len(list)-1] != "[DONE]" {
				t.Errorf("%s: stream ends with %s, want [DONE]", body, list[len(list)-1])
			}
			texts, reasons := make([]string, len(whole.Choices)), make([]string, len(whole.Choices))
			var last *reply
			for _, e := range list[:len(list)-1] {
				last = decode(t, e)
				for _, c := range last.Choices {
					if !utf8.ValidString(c.Delta.Content) || reasons[c.Index] != "" {
						t.Errorf("%s: chunk %s: half a character, or after the end", body, e)
					}
					texts[c.Index] += c.Delta.Content
					reasons[c.Index] += c.FinishReason
				}
			}
			for j, c := range whole.Choices {
				if texts[j] != c.Message.Content || reasons[j] != c.FinishReason || c.FinishReason == "" {
					t.Errorf("%s body %d choice %d: streamed %q (%s), whole %q (%s)", kind, i, j, texts[j], reasons[j], c.Message.Content, c.FinishReason)
				}
			}
			if last.Usage == nil || len(last.Choices) != 0 || last.Usage.Output != whole.Usage.Output || last.Usage.Prompt != whole.Usage.Prompt {
				t.Errorf("%s: usage: got %+v streamed, %+v whole", body, last.Usage, whole.Usage)
			}
		}
	}
}

func TestSameRequestSameBytesButForIDsAndTimes(t *testing.T) {
	_, base := start(t, Options{})
	_, other := start(t, Options{})
	for _, body := range []string{
		`{` + hello + `,"temperature":0,"logprobs":true,"top_logprobs":3,"rid":"same"}`,
		`{` + hello + `,"temperature":0.9,"top_p":0.95,"seed":12,"max_tokens":50,"rid":"same"}`,
	} {
		_, a := post(t, base+"/v1/chat/completions", body)
		_, b := post(t, other+"/v1/chat/completions", body)
		cut := func(s string) string {
			before, _, _ := strings.Cut(s, `"created":`)
			_, after, _ := strings.Cut(s, `"model":`)
			return before + after
		}
		if cut(a) != cut(b) {
			t.Errorf("%s on two engines: got %s and %s", body, a, b)
		}
	}
}

func TestEchoedLogprobsAreTheModelsToTheLastBit(t *testing.T) {
	for _, kind := range []Kind{SGLang, VLLM} {
		s, base := start(t, Options{Kind: kind})
		m := s.Model()
		text := "When the water comes down clear, the rain has been on the rocks. Zoë waits → 水. Then it goes on"
		ids := m.Encode(nil, text)
		list, _ := json.Marshal(ids)
		quoted, _ := json.Marshal(text)
		for _, prompt := range []string{string(quoted), string(list), "[" + string(quoted) + "]", "[" + string(list) + "]"} {
			for _, limit := range []int{0, 1, 5} {
				r := ask(t, base, "/v1/completions", fmt.Sprintf(`{"prompt":%s,"echo":true,"logprobs":2,"max_tokens":%d,"temperature":0}`, prompt, limit))
				c := r.Choices[0]
				lp := c.Logprobs
				if len(lp.Tokens) != len(ids)+limit || len(lp.Values) != len(lp.Tokens) || len(lp.Top) != len(lp.Tokens) || len(lp.Offsets) != len(lp.Tokens) {
					t.Fatalf("%s max_tokens %d: got %d tokens, %d values, %d tops, %d offsets, want %d each", prompt, limit, len(lp.Tokens), len(lp.Values), len(lp.Top), len(lp.Offsets), len(ids)+limit)
				}
				if lp.Values[0] != nil || lp.Top[0] != nil {
					t.Errorf("first token: got %v and %v, want null", lp.Values[0], lp.Top[0])
				}
				state := m.Begin()
				sum, want := 0.0, 0.0
				for i, id := range ids {
					if i > 0 {
						p := m.LogProb(state, id)
						want += p
						sum += *lp.Values[i]
						if math.Float64bits(p) != math.Float64bits(*lp.Values[i]) {
							t.Errorf("token %d: got %v, want %v", i, *lp.Values[i], p)
						}
						if got := lp.Top[i][lp.Tokens[i]]; got != p {
							t.Errorf("token %d among its alternatives: got %v, want %v", i, got, p)
						}
						if len(lp.Top[i]) < 2 || len(lp.Top[i]) > 3 {
							t.Errorf("token %d: got %d alternatives, want 2 and the token", i, len(lp.Top[i]))
						}
					}
					state = m.Advance(state, id)
				}
				if sum != want {
					t.Errorf("log-probability of the text: got %v, want the sum of its conditional ones %v", sum, want)
				}
				if !strings.HasPrefix(c.Text, text) || r.Usage.Output != limit || r.Usage.Prompt != len(ids) || r.cached() != 0 {
					t.Errorf("%s: got text %q and usage %+v, want the prompt first, %d tokens out and none cached", prompt, c.Text, r.Usage, limit)
				}
			}
		}
	}
}

// The log-probability of a token by echo is what the engine gives it when it
// generates from exactly the tokens before.
func TestEchoAgreesWithConditionalRequests(t *testing.T) {
	s, base := start(t, Options{})
	ids := s.Model().Encode(nil, "The river does not know. It is water")
	list, _ := json.Marshal(ids)
	whole := ask(t, base, "/v1/completions", fmt.Sprintf(`{"prompt":%s,"echo":true,"logprobs":0,"max_tokens":0}`, list)).Choices[0].Logprobs
	for i := 1; i < len(ids); i++ {
		prefix, _ := json.Marshal(ids[:i])
		r := ask(t, base, "/v1/completions", fmt.Sprintf(`{"prompt":%s,"logprobs":%d,"max_tokens":1,"temperature":0}`, prefix, s.Model().Size()))
		got, ok := r.Choices[0].Logprobs.Top[0][s.Model().Text(ids[i])]
		if !ok || got != *whole.Values[i] {
			t.Errorf("token %d: echo says %v, generating from the %d before it %v", i, *whole.Values[i], i, got)
		}
		sum := 0.0
		for w := range s.Model().Size() {
			sum += math.Exp(r.Choices[0].Logprobs.Top[0][s.Model().Text(uint32(w))])
		}
		if i == 1 && math.IsNaN(sum) {
			t.Errorf("sum over the vocabulary: NaN")
		}
	}
}

func TestTextOffsetsCountCharacters(t *testing.T) {
	_, base := start(t, Options{Kind: VLLM})
	text := "In the café Zoë waits → for 水 and tea"
	lp := ask(t, base, "/v1/completions", `{"prompt":"`+text+`","echo":true,"logprobs":0,"max_tokens":0}`).Choices[0].Logprobs
	runes := []rune(text)
	for i, tok := range lp.Tokens {
		if strings.HasPrefix(tok, "bytes:") {
			continue // a part of a character
		}
		if from, to := lp.Offsets[i], lp.Offsets[i]+utf8.RuneCountInString(tok); to > len(runes) || string(runes[from:to]) != tok {
			t.Errorf("token %d %q: not at offset %d of %q", i, tok, from, text)
		}
	}
}

func TestBatchOfPromptsIsAnsweredInOrder(t *testing.T) {
	_, base := start(t, Options{DP: 2})
	r := ask(t, base, "/v1/completions", `{"prompt":["A lock","The lake","A token"],"n":2,"echo":true,"max_tokens":3,"temperature":1,"seed":3}`)
	if len(r.Choices) != 6 || r.Usage.Output != 18 {
		t.Fatalf("three prompts twice: got %d choices and usage %+v", len(r.Choices), r.Usage)
	}
	for i, prefix := range []string{"A lock", "A lock", "The lake", "The lake", "A token", "A token"} {
		if c := r.Choices[i]; c.Index != i || !strings.HasPrefix(c.Text, prefix) {
			t.Errorf("choice %d: got index %d, %q, want it to begin with %q", i, c.Index, c.Text, prefix)
		}
	}
}

func TestBestOfReturnsTheLikeliest(t *testing.T) {
	_, base := start(t, Options{})
	one := func(extra string) *reply {
		return ask(t, base, "/v1/completions", `{"prompt":"The old hand","max_tokens":6,"temperature":1.5,"seed":5,"logprobs":0`+extra+`}`)
	}
	mean := func(v []*float64) (m float64) {
		for _, x := range v {
			m += *x / float64(len(v))
		}
		return m
	}
	all, best := one(`,"n":5`), one(`,"n":1,"best_of":5`)
	want := math.Inf(-1)
	for _, c := range all.Choices {
		want = max(want, mean(c.Logprobs.Values))
	}
	if got := mean(best.Choices[0].Logprobs.Values); len(best.Choices) != 1 || math.Abs(got-want) > 1e-12 || best.Usage.Output != all.Usage.Output {
		t.Errorf("best of five: got %v with usage %+v, want the largest of the five, %v", got, best.Usage, want)
	}
}

func TestStopStringsEndTheTextAndAreNotShown(t *testing.T) {
	for _, kind := range []Kind{SGLang, VLLM} {
		_, base := start(t, Options{Kind: kind})
		full := ask(t, base, "/v1/completions", `{"prompt":"A penstock is","max_tokens":40,"temperature":0}`).Choices[0].Text
		stop := full[15:22]
		c := ask(t, base, "/v1/completions", fmt.Sprintf(`{"prompt":"A penstock is","max_tokens":40,"temperature":0,"stop":[%q,"never there"]}`, stop)).Choices[0]
		if want := full[:strings.Index(full, stop)]; c.Text != want || c.FinishReason != "stop" {
			t.Errorf("stop %q in %q: got %q (%s), want %q (stop)", stop, full, c.Text, c.FinishReason, want)
		}
		if got := map[Kind]any{SGLang: c.MatchedStop, VLLM: c.StopReason}[kind]; got != stop {
			t.Errorf("%s: matched stop: got %v, want %q", kind, got, stop)
		}
		kept := ask(t, base, "/v1/completions", fmt.Sprintf(`{"prompt":"A penstock is","max_tokens":40,"temperature":0,"stop":%q,"include_stop_str_in_output":true}`, stop)).Choices[0]
		if want := full[:strings.Index(full, stop)+len(stop)]; kept.Text != want {
			t.Errorf("stop %q kept: got %q, want %q", stop, kept.Text, want)
		}
	}
}

func TestIgnoreEOSAndMinTokensGoOn(t *testing.T) {
	_, base := start(t, Options{})
	c := ask(t, base, "/v1/chat/completions", `{`+hello+`,"temperature":0,"ignore_eos":true,"max_tokens":700}`)
	if c.Usage.Output != 700 || c.Choices[0].FinishReason != "length" {
		t.Errorf("ignore_eos: got %d tokens (%s), want 700 (length)", c.Usage.Output, c.Choices[0].FinishReason)
	}
	short := ask(t, base, "/v1/chat/completions", `{`+hello+`,"temperature":0}`)
	if n := short.Usage.Output; n >= 700 || short.Choices[0].FinishReason != "stop" {
		t.Fatalf("without: got %d tokens (%s), want an end", n, short.Choices[0].FinishReason)
	}
	long := ask(t, base, "/v1/chat/completions", fmt.Sprintf(`{%s,"temperature":0,"min_tokens":%d}`, hello, short.Usage.Output+5))
	if long.Usage.Output <= short.Usage.Output+5 {
		t.Errorf("min_tokens %d: got %d tokens", short.Usage.Output+5, long.Usage.Output)
	}
}

func TestChatLogprobsBelongToTheTokens(t *testing.T) {
	_, base := start(t, Options{})
	status, whole := post(t, base+"/v1/chat/completions", `{`+hello+`,"temperature":0,"max_tokens":9,"logprobs":true,"top_logprobs":2}`)
	_, stream := post(t, base+"/v1/chat/completions", `{`+hello+`,"temperature":0,"max_tokens":9,"logprobs":true,"top_logprobs":2,"stream":true}`)
	r := decode(t, whole)
	var streamed []float64
	for _, e := range events(t, stream) {
		if e == "[DONE]" {
			continue
		}
		for _, c := range decode(t, e).Choices {
			if c.Logprobs != nil {
				for _, x := range c.Logprobs.Content {
					streamed = append(streamed, x.Logprob)
				}
			}
		}
	}
	var values []float64
	text := ""
	for _, x := range r.Choices[0].Logprobs.Content {
		values = append(values, x.Logprob)
		text += x.Token
		if len(x.Top) != 2 || x.Top[0].Logprob < x.Top[1].Logprob || x.Top[0].Token != x.Token || len(x.Bytes) != len(x.Token) {
			t.Errorf("greedy token %+v: want itself first of two alternatives, and its bytes", x)
		}
	}
	if status != 200 || len(values) != 9 || !slices.Equal(values, streamed) || text != r.Choices[0].Message.Content {
		t.Errorf("logprobs: got %v whole, %v streamed, tokens %q of %q", values, streamed, text, r.Choices[0].Message.Content)
	}
}

func TestEmbeddingsAreEqualForEqualTextsInBothEncodings(t *testing.T) {
	_, base := start(t, Options{})
	get := func(extra string) [][]float32 {
		status, b := post(t, base+"/v1/embeddings", `{"model":"penstock-local"`+extra+`}`)
		var r struct {
			Data  []struct{ Embedding json.RawMessage }
			Usage usage
		}
		if err := json.Unmarshal([]byte(b), &r); err != nil || status != 200 || r.Usage.Prompt == 0 {
			t.Fatalf("embeddings of %s: got %d %s", extra, status, b)
		}
		var out [][]float32
		for _, d := range r.Data {
			var v []float32
			if d.Embedding[0] == '"' {
				raw, err := base64.StdEncoding.DecodeString(strings.Trim(string(d.Embedding), `"`))
				if err != nil {
					t.Fatal(err)
				}
				for i := 0; i < len(raw); i += 4 {
					v = append(v, math.Float32frombits(binary.LittleEndian.Uint32(raw[i:])))
				}
			} else if err := json.Unmarshal(d.Embedding, &v); err != nil {
				t.Fatal(err)
			}
			out = append(out, v)
		}
		return out
	}
	dot := func(a, b []float32) (s float64) {
		for i := range a {
			s += float64(a[i]) * float64(b[i])
		}
		return s
	}
	v := get(`,"input":["the gate opens at dawn","the gate opens at dawn","the gate closes at dawn","ten seconds of patience"],"encoding_format":"float"`)
	packed := get(`,"input":"the gate opens at dawn","encoding_format":"base64"`)
	if !slices.Equal(v[0], v[1]) || !slices.Equal(v[0], packed[0]) || len(v[0]) != 256 {
		t.Errorf("equal texts: got different vectors")
	}
	if a, b := dot(v[0], v[2]), dot(v[0], v[3]); a <= b || math.Abs(dot(v[0], v[0])-1) > 1e-6 {
		t.Errorf("similar text: got cosine %v, other text %v, itself %v", a, b, dot(v[0], v[0]))
	}
	if got := get(`,"input":"x","dimensions":7`); len(got[0]) != 7 {
		t.Errorf("dimensions 7: got %d", len(got[0]))
	}
}

func TestTokenizeAndDetokenizeAreInverse(t *testing.T) {
	for _, kind := range []Kind{SGLang, VLLM} {
		_, base := start(t, Options{Kind: kind})
		text := "The gate — naïve 水 — opens <|im_end|>"
		quoted, _ := json.Marshal(text)
		_, b := post(t, base+"/tokenize", `{"prompt":`+string(quoted)+`,"return_token_strs":true}`)
		var r struct {
			Tokens []uint32
			Count  int
			Max    int      `json:"max_model_len"`
			Strs   []string `json:"token_strs"`
		}
		if err := json.Unmarshal([]byte(b), &r); err != nil || r.Count != len(r.Tokens) || r.Count == 0 || r.Max == 0 {
			t.Fatalf("%s /tokenize: got %s", kind, b)
		}
		ids, _ := json.Marshal(r.Tokens)
		_, b = post(t, base+"/detokenize", `{"tokens":`+string(ids)+`}`)
		var d struct{ Text, Prompt string }
		if err := json.Unmarshal([]byte(b), &d); err != nil || d.Text+d.Prompt != text || (kind == VLLM) != (d.Prompt != "") {
			t.Errorf("%s /detokenize: got %s, want %q", kind, b, text)
		}
		chat := ask(t, base, "/v1/chat/completions", `{`+hello+`,"max_tokens":1}`)
		_, b = post(t, base+"/tokenize", `{`+hello+`}`)
		if err := json.Unmarshal([]byte(b), &r); err != nil || r.Count != chat.Usage.Prompt {
			t.Errorf("%s /tokenize of a chat: got %d tokens, the chat's usage says %d", kind, r.Count, chat.Usage.Prompt)
		}
		status, _, b := request(t, "GET", base+"/tokenizer_info", "")
		if status != 200 || !strings.Contains(b, `"eos_token":"<|im_end|>"`) {
			t.Errorf("/tokenizer_info: got %d %s", status, b)
		}
	}
}

func TestPromptLogprobsInVLLMsShape(t *testing.T) {
	s, base := start(t, Options{Kind: VLLM})
	r := ask(t, base, "/v1/completions", `{"prompt":"The gate opens","prompt_logprobs":1,"max_tokens":1,"temperature":0}`)
	ids := s.Model().Encode(nil, "The gate opens")
	got := r.Choices[0].PromptLogprobs
	if len(got) != len(ids) || got[0] != nil {
		t.Fatalf("prompt_logprobs: got %d entries, first %v, want %d, null first", len(got), got[0], len(ids))
	}
	state := s.Model().Advance(s.Model().Begin(), ids[0])
	for i := 1; i < len(ids); i++ {
		e := got[i][fmt.Sprint(ids[i])]
		if e.Logprob != s.Model().LogProb(state, ids[i]) || e.Rank < 1 || e.Token != s.Model().Text(ids[i]) {
			t.Errorf("entry %d: got %+v", i, e)
		}
		state = s.Model().Advance(state, ids[i])
	}
}

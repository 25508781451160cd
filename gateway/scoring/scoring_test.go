package scoring

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"penstock/gateway/body"
)

// recording is what a real engine answered to a request.
type recording struct {
	path    string
	request string
	status  string
	answer  []byte
}

func recorded(t testing.TB, name string) recording {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name+".json.txt"))
	if err != nil {
		t.Fatal(err)
	}
	lines := bytes.SplitN(b, []byte("\n"), 6)
	return recording{
		path: strings.TrimPrefix(string(lines[0]), "POST "), request: string(lines[2]),
		status: strings.TrimPrefix(string(lines[3]), "---- "), answer: bytes.TrimSuffix(lines[5], []byte("\n")),
	}
}

func view(t testing.TB, ep body.Endpoint, text string) *body.View {
	t.Helper()
	v := new(body.View)
	if err := body.Parse(ep, []byte(text), v); err != nil {
		t.Fatalf("Parse(%.200s): %v", text, err)
	}
	return v
}

func jobOf(t testing.TB, text string) Job {
	t.Helper()
	v := view(t, body.Completions, text)
	if !Scores(v) {
		t.Fatalf("%.200s is no scoring request", text)
	}
	return New(v)
}

// whole is the one part that is the whole job.
func whole(j *Job) Part { return Part{From: 0, To: j.prompts()} }

// through sends answer through the job as an engine of that kind would give it.
func through(j *Job, kind string, answer []byte) ([]byte, error) {
	r := j.Request(kind, whole(j), new(body.Edits), nil)
	a, err := j.Check(&r, answer)
	if err != nil {
		return nil, err
	}
	return written(j.Merge([]*Answer{a}, MergeOptions{Model: []byte(`"tiny"`), Created: 7}))
}

func written(m *Merged) ([]byte, error) {
	var b bytes.Buffer
	n, err := m.WriteTo(&b)
	if err == nil && (int(n) != b.Len() || m.Len() != b.Len()) {
		err = fmt.Errorf("WriteTo says %d, Len says %d, but %d bytes were written", n, m.Len(), b.Len())
	}
	return b.Bytes(), err
}

// answer is the shape of a completions answer, numbers as text.
type answer struct {
	ID      string `json:"id"`
	Choices []struct {
		Index    int    `json:"index"`
		Text     string `json:"text"`
		Logprobs struct {
			TextOffset    []int                    `json:"text_offset"`
			TokenLogprobs []*json.Number           `json:"token_logprobs"`
			Tokens        []string                 `json:"tokens"`
			TopLogprobs   []map[string]json.Number `json:"top_logprobs"`
		} `json:"logprobs"`
		FinishReason *string `json:"finish_reason"`
	} `json:"choices"`
	Usage struct {
		Prompt     int `json:"prompt_tokens"`
		Completion int `json:"completion_tokens"`
		Total      int `json:"total_tokens"`
		Details    *struct {
			Cached *int `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	} `json:"usage"`
}

func decode(t testing.TB, b []byte) answer {
	t.Helper()
	var a answer
	if err := json.Unmarshal(b, &a); err != nil {
		t.Fatalf("%v in %s", err, b)
	}
	return a
}

var number = regexp.MustCompile(`-\d+\.\d+(e-?\d+)?`)

// floats are the texts of all log-probabilities, sorted.
func floats(b []byte) []string {
	f := number.FindAllString(string(b), -1)
	slices.Sort(f)
	return f
}

func TestClassification(t *testing.T) {
	for _, c := range []struct {
		ep   body.Endpoint
		text string
		want bool
	}{
		{body.Completions, `{"prompt":"x","echo":true,"logprobs":0}`, true},
		{body.Completions, `{"prompt":"x","echo":true,"logprobs":null}`, false},
		{body.Completions, `{"prompt":"x","echo":true}`, false},
		{body.Completions, `{"prompt":"x","logprobs":5}`, false},
		{body.Completions, `{"prompt":"x","prompt_logprobs":0}`, true},
		{body.Chat, `{"messages":[{"role":"user","content":"x"}],"prompt_logprobs":1}`, true},
		{body.Chat, `{"messages":[{"role":"user","content":"x"}],"logprobs":true,"echo":true}`, false},
		{body.Generate, `{"text":"x","return_logprob":true,"logprob_start_len":0}`, true},
		{body.Generate, `{"text":"x","return_logprob":true}`, false},
		{body.Generate, `{"text":"x","return_logprob":true,"logprob_start_len":5}`, false},
	} {
		if got := Scores(view(t, c.ep, c.text)); got != c.want {
			t.Errorf("Scores(%s) = %v, want %v", c.text, got, c.want)
		}
	}
}

func TestRecordedAnswersPassByteForByteWhereNothingIsRepaired(t *testing.T) {
	for _, name := range []string{"c-echo-lp1-max1", "c-echo-lp5-max1-list", "c-echo-lp5-max0", "c-listids-echo-lp1-max0", "c-listids-echo-lp1-max1", "c-unicode", "c-echo-lp0", "c-echo-one", "c-echo-and-prompt", "c-promptlogprobs"} {
		r := recorded(t, "vllm/"+name)
		j := jobOf(t, r.request)
		got, err := through(&j, KindOpenAI, r.answer)
		if err != nil || sha256.Sum256(got) != sha256.Sum256(r.answer) {
			t.Errorf("%s: %v\n got %s\nwant %s", name, err, got, r.answer)
		}
	}
	for _, name := range []string{"g-text-max0", "g-listids-max0", "g-texts-n2", "g-unicode-max0", "g-ids-top0", "g-plain", "g-one-token"} {
		r := recorded(t, "sglang/"+name)
		j := New(view(t, body.Generate, r.request))
		got, err := through(&j, KindSGLang, r.answer)
		if err != nil || !bytes.Equal(got, r.answer) {
			t.Errorf("%s: %v\n got %s\nwant %s", name, err, got, r.answer)
		}
	}
	r := recorded(t, "vllm/chat-promptlogprobs")
	j := New(view(t, body.Chat, r.request))
	if got, err := through(&j, KindVLLM, r.answer); err != nil || !bytes.Equal(got, r.answer) {
		t.Errorf("chat: %v\n got %s", err, got)
	}
}

func TestVLLMsDuplicateIsTakenOutUnlessAskedFor(t *testing.T) {
	member := regexp.MustCompile(`,"prompt_logprobs":\[null(,\{("\d+":\{[^}]*\},?)+\})*\]`)
	for _, name := range []string{"c-echo-lp1-max1", "c-echo-lp5-max1-list", "c-echo-lp5-max0", "c-listids-echo-lp1-max1", "c-echo-one"} {
		r := recorded(t, "vllm/"+name)
		j := jobOf(t, r.request)
		got, err := through(&j, KindVLLM, r.answer)
		if want := member.ReplaceAll(r.answer, nil); err != nil || !bytes.Equal(got, want) || bytes.Contains(got, []byte("prompt_logprobs")) {
			t.Errorf("%s: %v\n got %s\nwant %s", name, err, got, want)
		}
	}
	r := recorded(t, "vllm/c-echo-and-prompt")
	j := jobOf(t, r.request)
	if got, err := through(&j, KindVLLM, r.answer); err != nil || !bytes.Equal(got, r.answer) {
		t.Errorf("asked for: %v\n got %s\nwant %s", err, got, r.answer)
	}
}

func TestCutTakesOneCommaWithTheMember(t *testing.T) {
	for in, want := range map[string]string{
		`{"prompt_logprobs":[null,{}],"index":0,"text":"x"}`:  `{"index":0,"text":"x"}`,
		`{"index":0,"prompt_logprobs":[null,{}] ,"text":"x"}`: `{"index":0 ,"text":"x"}`,
		`{"index":0,"text":"x", "prompt_logprobs":[null]}`:    `{"index":0,"text":"x"}`,
	} {
		logprobs := `,"logprobs":{"tokens":["x"],"token_logprobs":[null],"top_logprobs":[null]}}`
		in, want := strings.TrimSuffix(in, "}")+logprobs, strings.TrimSuffix(want, "}")+logprobs
		j := jobOf(t, `{"prompt":"x","echo":true,"logprobs":1,"max_tokens":0}`)
		got, err := through(&j, KindVLLM, []byte(`{"choices":[`+in+`]}`))
		if err != nil || string(got) != `{"choices":[`+want+`]}` {
			t.Errorf("%s: %v\n got %s\nwant %s", in, err, got, want)
		}
	}
}

func TestSGLangsOwnAnswersAreRepaired(t *testing.T) {
	for _, name := range []string{"c-echo-lp1-max1", "c-echo-lp5-max1-list", "c-listids-echo-lp1-max1"} {
		r, vllm := recorded(t, "sglang/"+name), decode(t, recorded(t, "vllm/"+name).answer)
		j := jobOf(t, r.request)
		b, err := through(&j, KindSGLang, r.answer)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		got := decode(t, b)
		for i, c := range got.Choices {
			l, want := c.Logprobs, vllm.Choices[i].Logprobs
			if !slices.Equal(l.TextOffset, want.TextOffset) || !slices.Equal(l.Tokens, want.Tokens) {
				t.Errorf("%s: got offsets %v of %q, want as vLLM %v of %q", name, l.TextOffset, l.Tokens, want.TextOffset, want.Tokens)
			}
			for k := 1; k < len(l.Tokens); k++ {
				if lp, ok := l.TopLogprobs[k][l.Tokens[k]]; !ok || lp != *l.TokenLogprobs[k] || len(l.TopLogprobs[k]) != len(want.TopLogprobs[k]) {
					t.Errorf("%s: token %d %q (%s) has the map %v", name, k, l.Tokens[k], *l.TokenLogprobs[k], l.TopLogprobs[k])
				}
			}
		}
		// What is not repaired is the same bytes: without the two arrays, both are equal.
		arrays := regexp.MustCompile(`"(text_offset|top_logprobs)":\[[^\]]*\]`)
		if in, out := arrays.ReplaceAll(r.answer, nil), arrays.ReplaceAll(b, nil); !bytes.Equal(in, out) {
			t.Errorf("%s: more was changed:\n%s\n%s", name, in, out)
		}
		for _, f := range floats(b) {
			if !bytes.Contains(r.answer, []byte(f)) {
				t.Errorf("%s: the text of %s is not the engine's", name, f)
			}
		}
	}
}

func TestOffsetsOfTokensThatArePartsOfCharacters(t *testing.T) {
	want := []int{0, 1, 1, 2, 2, 3, 4, 4, 4, 5, 5, 5, 6, 6, 6, 6, 7, 7, 7, 8, 10}
	r := recorded(t, "sglang/c-unicode")
	j := jobOf(t, r.request)
	b, err := through(&j, KindSGLang, r.answer)
	if err != nil {
		t.Fatal(err)
	}
	if got := decode(t, b).Choices[0].Logprobs.TextOffset; !slices.Equal(got, want) {
		t.Errorf("the byte alphabet: got %v, want %v", got, want)
	}
	if got := decode(t, recorded(t, "vllm/c-unicode").answer).Choices[0].Logprobs.TextOffset; !slices.Equal(got, want) {
		t.Errorf("vLLM says %v", got)
	}
	for _, c := range []struct {
		text   string
		tokens []string
		want   []int
	}{
		{"añb", []string{"a", "\ufffd", "\ufffd", "b"}, []int{0, 1, 1, 2}},
		{"añé b", []string{"a", "\ufffd", "\ufffd", "\ufffd", "\ufffd", " b"}, []int{0, 1, 1, 2, 2, 3}},
		{"a日本b", []string{"a", "\ufffd", "\ufffd", "\ufffd", "b"}, []int{0, 1, 1, 1, 3}}, // two bytes in one
		{"日本語", []string{"日本", "\ufffd", "\ufffd", "!"}, []int{0, 2, 2, 2}},
		{"é日本", []string{"\ufffd", "\ufffd", "日本"}, []int{0, 0, 1}},
		{"hi there", []string{"<s>", "hi", " there", "</s>"}, []int{0, 0, 2, 8}},
		{"a\ufffdb", []string{"a", "\ufffd", "b"}, []int{0, 1, 2}},
		{"", []string{"x"}, []int{0}},
	} {
		var o offsets
		o.reset(quote(c.text))
		var got []int
		for _, token := range c.tokens {
			got = append(got, o.next(quote(token)))
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%q in %q: got %v, want %v", c.tokens, c.text, got, c.want)
		}
	}
}

func quote(s string) []byte {
	b, _ := json.Marshal(s)
	return b
}

func TestSGLangsGenerateServesWhatItsOpenAIRouteRefuses(t *testing.T) {
	for _, c := range []struct{ name, request, path, sent string }{
		{
			"g-text-max0", `{"model":"tiny","prompt":"def main(x):","echo":true,"logprobs":1,"max_tokens":0,"temperature":0,"seed":1234}`, "/generate",
			`{"return_logprob":true,"logprob_start_len":0,"return_text_in_logprobs":true,"stream":false,"top_logprobs_num":1,"sampling_params":{"max_new_tokens":0,"temperature":0,"sampling_seed":1234},"text":"def main(x):"}`,
		},
		{
			"g-listids-max0", `{"model":"tiny","prompt":[[444, 2947, 10, 90, 307], [444, 2947, 10]],"echo":true,"logprobs":2,"max_tokens":0,"temperature":0,"top_p":null}`, "/generate",
			`{"return_logprob":true,"logprob_start_len":0,"return_text_in_logprobs":true,"stream":false,"top_logprobs_num":2,"sampling_params":{"max_new_tokens":0,"temperature":0},"routed_dp_rank":1,"input_ids":[[444, 2947, 10, 90, 307], [444, 2947, 10]]}`,
		},
		{
			"g-unicode-max0", `{"model":"tiny","prompt":["héé 日本😀語 x"],"echo":true,"logprobs":2,"max_tokens":0,"cache_salt":"s"}`, "/generate",
			`{"return_logprob":true,"logprob_start_len":0,"return_text_in_logprobs":true,"stream":false,"top_logprobs_num":2,"sampling_params":{"max_new_tokens":0},"extra_key":"s","text":"héé 日本😀語 x"}`,
		},
	} {
		j := jobOf(t, c.request)
		e := new(body.Edits)
		if strings.Contains(c.sent, "routed_dp_rank") {
			e.Set("routed_dp_rank", []byte("1"))
			e.Set("model", []byte(`"up"`))
		}
		r := j.Request(KindSGLang, whole(&j), e, nil)
		if got := string(r.Body.AppendTo(nil)); r.Path != c.path || got != c.sent {
			t.Errorf("%s is sent to %s as\n     %s\nwant %s", c.request, r.Path, got, c.sent)
		}
		rec := recorded(t, "sglang/"+c.name)
		b, err := through(&j, KindSGLang, rec.answer)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		got := decode(t, b)
		for _, f := range floats(b) {
			if !bytes.Contains(rec.answer, []byte(f)) {
				t.Errorf("%s: the text of %s is not the engine's", c.name, f)
			}
		}
		for i, ch := range got.Choices {
			l := ch.Logprobs
			n := len(l.Tokens)
			if ch.Index != i || n != len(l.TokenLogprobs) || n != len(l.TextOffset) || n != len(l.TopLogprobs) || l.TokenLogprobs[0] != nil || l.TopLogprobs[0] != nil || *ch.FinishReason != "length" {
				t.Errorf("%s: choice %d is %+v", c.name, i, ch)
			}
			for k := 1; k < n; k++ {
				if l.TopLogprobs[k][l.Tokens[k]] != *l.TokenLogprobs[k] || len(l.TopLogprobs[k]) < 2 {
					t.Errorf("%s: token %d %q has the map %v", c.name, k, l.Tokens[k], l.TopLogprobs[k])
				}
			}
		}
		if got.Usage.Completion != 0 || got.Usage.Total != got.Usage.Prompt || *got.Usage.Details.Cached != 0 {
			t.Errorf("%s: got usage %+v", c.name, got.Usage)
		}
	}
}

func TestGenerateGivesTheAnswerThatVLLMGives(t *testing.T) {
	// The same request, in the same tokens; the engines' numbers differ in their last digits.
	rec := recorded(t, "vllm/c-listids-echo-lp1-max0")
	want := decode(t, rec.answer)
	j := jobOf(t, rec.request)
	b, err := through(&j, KindSGLang, recorded(t, "sglang/g-listids-max0").answer)
	if err != nil {
		t.Fatal(err)
	}
	got := decode(t, b)
	for i := range want.Choices {
		g, w := got.Choices[i], want.Choices[i]
		if g.Text != w.Text || !slices.Equal(g.Logprobs.Tokens, w.Logprobs.Tokens) || !slices.Equal(g.Logprobs.TextOffset, w.Logprobs.TextOffset) {
			t.Errorf("choice %d:\n got %q %v\nwant %q %v", i, g.Text, g.Logprobs, w.Text, w.Logprobs)
		}
	}
	if got.Usage.Prompt != want.Usage.Prompt {
		t.Errorf("got usage %+v, want %+v", got.Usage, want.Usage)
	}
}

func TestLogprobsZeroIsSentAsOneAndStripped(t *testing.T) {
	request := `{"model":"tiny","prompt":"def main(x):","echo":true,"logprobs":0,"max_tokens":1,"temperature":0}`
	j := jobOf(t, request)
	r := j.Request(KindSGLang, whole(&j), new(body.Edits), nil)
	if got, want := string(r.Body.AppendTo(nil)), strings.Replace(request, `"logprobs":0`, `"logprobs":1`, 1); got != want || r.Path != "" {
		t.Errorf("sent %s to %q, want %s", got, r.Path, want)
	}
	b, err := through(&j, KindSGLang, recorded(t, "sglang/c-echo-lp1-max1").answer)
	if err != nil {
		t.Fatal(err)
	}
	l := decode(t, b).Choices[0].Logprobs
	want := decode(t, recorded(t, "vllm/c-echo-lp0").answer).Choices[0].Logprobs
	for k := 1; k < len(l.Tokens); k++ {
		if len(l.TopLogprobs[k]) != 1 || l.TopLogprobs[k][l.Tokens[k]] != *l.TokenLogprobs[k] || len(want.TopLogprobs[k]) != 1 {
			t.Errorf("token %d has the map %v, want itself alone as vLLM has it", k, l.TopLogprobs[k])
		}
	}
	// What the engine really answers to logprobs 0 lacks the prompt.
	if _, err := through(&j, KindOpenAI, recorded(t, "sglang/c-echo-lp0").answer); !isMissing(err, "has 1 elements, expected one for each of 5 tokens") {
		t.Errorf("got %v, want it to be found missing", err)
	}
	zero := jobOf(t, strings.Replace(request, `"max_tokens":1`, `"max_tokens":0`, 1))
	b, err = through(&zero, KindSGLang, recorded(t, "sglang/g-text-max0").answer)
	if err != nil || len(decode(t, b).Choices[0].Logprobs.TopLogprobs[1]) != 1 {
		t.Errorf("max_tokens 0: %v, %s", err, b)
	}
}

func TestSplitIsEvenAndBounded(t *testing.T) {
	text := `{"echo":true,"logprobs":1,"prompt":[` + strings.TrimSuffix(strings.Repeat(`"x",`, 64), ",") + `]}`
	j := jobOf(t, text)
	tokens := func(i int) int { return 100 + i }
	total := 64*100 + 63*32
	for _, c := range []struct {
		o    SplitOptions
		want int
	}{
		{SplitOptions{Parts: 4}, 4},
		{SplitOptions{Parts: 1}, 1},
		{SplitOptions{Parts: 100}, 64},
		{SplitOptions{Parts: 4, MinTokens: 4000}, 2},
		{SplitOptions{Parts: 1, MaxTokens: 1000}, 9},
		{SplitOptions{Parts: 1, MaxPrompts: 10}, 7},
	} {
		parts := j.Split(tokens, c.o)
		sum, most, at := 0, 0, 0
		for _, p := range parts {
			if p.From != at || p.To <= p.From {
				t.Fatalf("%+v: parts %v have gaps", c.o, parts)
			}
			at = p.To
			sum += p.Tokens
			most = max(most, p.Tokens)
		}
		if at != 64 || sum != total || len(parts) < c.want-1 || len(parts) > c.want || most > total/c.want+163 && c.o.MaxPrompts == 0 {
			t.Errorf("%+v: got %d parts of at most %d tokens, want %d: %v", c.o, len(parts), most, c.want, parts)
		}
	}
	one := jobOf(t, `{"prompt":"x","echo":true,"logprobs":1}`)
	if parts := one.Split(tokens, SplitOptions{Parts: 4}); len(parts) != 1 || parts[0].To != 1 {
		t.Errorf("one prompt: got %v", parts)
	}
}

// engine answers a request of j's parts as vLLM does, from the prompts' own bytes.
func engine(t *testing.T, request []byte) []byte {
	t.Helper()
	v := view(t, body.Completions, string(request))
	var choices []string
	prompt := 0
	for i := range v.PromptCount() {
		raw := string(v.Body[v.Prompts[i].Start:v.Prompts[i].End])
		prompt += 2
		for k := range v.N {
			choices = append(choices, fmt.Sprintf(`{"index":%d,"text":%s,"logprobs":{"text_offset":[0,1],"token_logprobs":[null,-1.0000%d],"tokens":["a","b"],"top_logprobs":[null,{"b":-1.0000%d}]},"prompt_logprobs":null}`, i*v.N+k, raw, i, k))
		}
	}
	return fmt.Appendf(nil, `{"id":"cmpl-%d","model":"tiny","choices":[%s],"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":0,"prompt_tokens_details":{"cached_tokens":%d,"x":null}},"metrics":null}`,
		len(request), strings.Join(choices, ","), prompt, prompt, v.PromptCount())
}

func TestASplitBatchIsMergedAsIfItWereOne(t *testing.T) {
	var prompts []string
	for i := range 20 {
		prompts = append(prompts, fmt.Sprintf(`"p%d"`, i))
	}
	j := jobOf(t, `{"model":"tiny","prompt":[`+strings.Join(prompts, " , ")+`],"echo":true,"logprobs":1,"max_tokens":0,"n":2}`)
	parts := j.Split(func(int) int { return 2 }, SplitOptions{Parts: 3})
	if len(parts) != 3 {
		t.Fatalf("got parts %v", parts)
	}
	var answers []*Answer
	for _, p := range parts {
		r := j.Request(KindVLLM, p, new(body.Edits), nil)
		a, err := j.Check(&r, engine(t, r.Body.AppendTo(nil)))
		if err != nil {
			t.Fatal(err)
		}
		answers = append(answers, a)
	}
	m := j.Merge(answers, MergeOptions{})
	b, err := written(m)
	if err != nil {
		t.Fatal(err)
	}
	got := decode(t, b)
	if len(got.Choices) != 40 || got.Usage.Prompt != 40 || got.Usage.Total != 40 || *got.Usage.Details.Cached != 20 || m.Usage().Prompt != 40 {
		t.Errorf("got %d choices, usage %+v", len(got.Choices), got.Usage)
	}
	for i, c := range got.Choices {
		if c.Index != i || c.Text != fmt.Sprintf("p%d", i/2) {
			t.Errorf("choice %d has index %d and text %s", i, c.Index, c.Text)
		}
	}
	if !bytes.HasPrefix(b, []byte(`{"id":"cmpl-`)) || !bytes.HasSuffix(b, []byte(`"prompt_tokens_details":{"cached_tokens":20,"x":null}},"metrics":null}`)) {
		t.Errorf("head or tail changed: %s", b)
	}
}

func TestAScoringStreamIsMadeOfTheWholeAnswer(t *testing.T) {
	j := jobOf(t, `{"model":"tiny","prompt":["def main", "import os"],"echo":true,"logprobs":1,"max_tokens":1,"stream":true,"stream_options":{"include_usage":true}}`)
	r := j.Request(KindSGLang, whole(&j), new(body.Edits), nil)
	if got, want := string(r.Body.AppendTo(nil)), `{"model":"tiny","prompt":["def main", "import os"],"echo":true,"logprobs":1,"max_tokens":1,"stream":false}`; got != want {
		t.Errorf("sent %s\nwant %s", got, want)
	}
	b, err := through(&j, KindSGLang, recorded(t, "sglang/c-echo-lp5-max1-list").answer)
	if err != nil {
		t.Fatal(err)
	}
	events := strings.Split(strings.TrimSuffix(string(b), "\n\n"), "\n\n")
	if len(events) != 4 || events[3] != "data: [DONE]" {
		t.Fatalf("got %d events: %s", len(events), b)
	}
	for i, e := range events[:3] {
		a := decode(t, []byte(strings.TrimPrefix(e, "data: ")))
		if i < 2 && (len(a.Choices) != 1 || a.Choices[0].Index != i || len(a.Choices[0].Logprobs.TopLogprobs[1]) != 2 || !strings.HasSuffix(e, `],"usage":null}`)) {
			t.Errorf("event %d: %s", i, e)
		}
		if i == 2 && (len(a.Choices) != 0 || a.Usage.Total != 6) {
			t.Errorf("usage event: %s", e)
		}
	}
}

func TestPartsFromDifferentEnginesMerge(t *testing.T) {
	j := jobOf(t, `{"model":"tiny","prompt":[[444, 2947, 10, 90, 307], [444, 2947, 10],[444, 2947, 10, 90, 307], [444, 2947, 10]],"echo":true,"logprobs":1,"max_tokens":0}`)
	sg := j.Request(KindSGLang, Part{From: 0, To: 2}, new(body.Edits), nil)
	vl := j.Request(KindVLLM, Part{From: 2, To: 4}, new(body.Edits), nil)
	a, err := j.Check(&sg, recorded(t, "sglang/g-listids-max0").answer)
	if err != nil {
		t.Fatal(err)
	}
	b, err := j.Check(&vl, recorded(t, "vllm/c-listids-echo-lp1-max0").answer)
	if err != nil {
		t.Fatal(err)
	}
	for _, parts := range [][]*Answer{{a, b}} {
		out, err := written(j.Merge(parts, MergeOptions{Model: []byte(`"tiny"`)}))
		if err != nil {
			t.Fatal(err)
		}
		got := decode(t, out)
		if len(got.Choices) != 4 || got.Choices[3].Index != 3 || got.Choices[3].Text != "def main(" || got.Usage.Prompt != 16 {
			t.Errorf("got %s", out)
		}
	}
}

func TestDetokenizedHasBothNames(t *testing.T) {
	for in, want := range map[string]string{
		`{"text":"def"}`:      `{"prompt":"def","text":"def"}`,
		`{"prompt":"def"}`:    `{"prompt":"def"}`,
		` { "text" : "a\n" }`: `{"prompt":"a\n", "text" : "a\n" }`,
		`{"error":{}}`:        `{"error":{}}`,
		`not JSON`:            `not JSON`,
		string(recorded(t, "vllm/detokenize").answer): string(recorded(t, "vllm/detokenize").answer),
	} {
		if got := string(Detokenized([]byte(in))); got != want {
			t.Errorf("Detokenized(%s) = %s, want %s", in, got, want)
		}
	}
}

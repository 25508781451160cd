package local

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"penstock/engine/local/sched"
)

func TestCachedTokensGrowWithEachTurnOverHTTP(t *testing.T) {
	for _, o := range []Options{{}, {Kind: VLLM}, {PageSize: 64}} {
		_, base := start(t, o)
		history := []map[string]string{}
		last := -1
		for turn := range 8 {
			history = append(history, map[string]string{"role": "user", "content": fmt.Sprintf("Question %d: what does the old hand say of the load and of the floor under his boots?", turn)})
			messages, _ := json.Marshal(history)
			r := ask(t, base, "/v1/chat/completions", `{"messages":`+string(messages)+`,"temperature":0}`)
			if got := r.cached(); got <= last && turn > 1 || turn == 0 && got != 0 || got >= r.Usage.Prompt {
				t.Errorf("%+v turn %d: got %d of %d prompt tokens cached, had %d", o, turn, got, r.Usage.Prompt, last)
			}
			last = r.cached()
			history = append(history, map[string]string{"role": "assistant", "content": r.Choices[0].Message.Content})
		}
	}
}

func TestSmallCacheForgets(t *testing.T) {
	s, base := start(t, Options{KVTokens: 600})
	body := func(i int) string {
		return fmt.Sprintf(`{"prompt":"%d %s","max_tokens":1}`, i, strings.Repeat("the gate opens and the water falls ", 20))
	}
	first := ask(t, base, "/v1/completions", body(1))
	if again := ask(t, base, "/v1/completions", body(1)); again.cached() != first.Usage.Prompt-1 {
		t.Fatalf("the same again: got %d cached of %d", again.cached(), first.Usage.Prompt)
	}
	for i := 2; i < 8; i++ {
		ask(t, base, "/v1/completions", body(i))
	}
	if late := ask(t, base, "/v1/completions", body(1)); late.cached() > first.Usage.Prompt/2 {
		t.Errorf("after six others in a cache for four: got %d cached of %d", late.cached(), late.Usage.Prompt)
	}
	if l := s.Loads()[0]; l.Stored > 600 || l.Used != 0 {
		t.Errorf("load %+v: want at most 600 stored and nothing in use", l)
	}
}

func TestRanksHaveTheirOwnCaches(t *testing.T) {
	for _, tc := range []struct {
		kind    Kind
		headers []string
		field   string
	}{
		{SGLang, []string{"X-Data-Parallel-Rank", "1"}, ""},
		{SGLang, nil, `,"routed_dp_rank":1`},
		{SGLang, nil, `,"data_parallel_rank":1`},
		{VLLM, []string{"X-data-parallel-rank", "1"}, ""},
	} {
		s, base := start(t, Options{Kind: tc.kind, DP: 3})
		body := `{"prompt":"The gate opens and the water falls through the pipe and strikes the turbine at the bottom","max_tokens":1` + tc.field + `}`
		for i := range 3 {
			r := ask(t, base, "/v1/completions", body, tc.headers...)
			if (r.cached() > 0) != (i > 0) {
				t.Errorf("%v: request %d to rank 1: got %d cached", tc, i, r.cached())
			}
		}
		for rank, l := range s.Loads() {
			if want := map[bool]int64{true: 3}[rank == 1]; l.Requests != want {
				t.Errorf("%v: rank %d: got %d requests, want %d", tc, rank, l.Requests, want)
			}
		}
	}
}

func TestRanksTakeTurnsWhenNoneIsAskedFor(t *testing.T) {
	s, base := start(t, Options{Kind: VLLM, DP: 4})
	for range 8 {
		ask(t, base, "/v1/completions", `{"prompt":"x","max_tokens":1,"routed_dp_rank":2}`) // vLLM does not read the body
	}
	for rank, l := range s.Loads() {
		if l.Requests != 2 {
			t.Errorf("rank %d of 4 after 8 requests: got %d, want 2", rank, l.Requests)
		}
	}
}

func TestRankOutOfRange(t *testing.T) {
	for _, tc := range []struct {
		kind       Kind
		header     string
		field      string
		status     int
		wantInBody string
	}{
		{SGLang, "1", "", 400, `{"object":"error","message":"routed_dp_rank=1 out of range [0, 1)","type":"BadRequestError","param":null,"code":400}`},
		{SGLang, "", `,"routed_dp_rank":-1`, 400, "out of range"},
		{SGLang, "abc", "", 400, "must be an integer"},
		{VLLM, "1", "", 400, `{"error":{"message":"data_parallel_rank 1 is out of range [0, 1).","type":"BadRequestError","param":null,"code":400}}`},
		{VLLM, "abc", "", 200, "choices"},
		{SGLang, "0", "", 200, "choices"},
	} {
		_, base := start(t, Options{Kind: tc.kind})
		var headers []string
		if tc.header != "" {
			headers = []string{"X-Data-Parallel-Rank", tc.header}
		}
		status, b := post(t, base+"/v1/chat/completions", `{`+hello+`,"max_tokens":1`+tc.field+`}`, headers...)
		if status != tc.status || !strings.Contains(b, tc.wantInBody) {
			t.Errorf("%s rank %q%s: got %d %s, want %d with %s", tc.kind, tc.header, tc.field, status, b, tc.status, tc.wantInBody)
		}
	}
}

func TestNativeGenerateReadsTheRankFromItsBodyOnly(t *testing.T) {
	s, base := start(t, Options{DP: 2})
	post(t, base+"/generate", `{"text":"x","sampling_params":{"max_new_tokens":1},"routed_dp_rank":1}`)
	post(t, base+"/generate", `{"text":"x","sampling_params":{"max_new_tokens":1},"routed_dp_rank":1}`, "X-Data-Parallel-Rank", "0")
	if l := s.Loads(); l[0].Requests != 0 || l[1].Requests != 2 {
		t.Errorf("two to rank 1 by the body: got %d and %d", l[0].Requests, l[1].Requests)
	}
	if status, b := post(t, base+"/generate", `{"text":"x","routed_dp_rank":2}`); status != 400 {
		t.Errorf("rank 2 of 2: got %d %s, want 400", status, b)
	}
}

// slow is a profile in which a step takes about 50 ms.
func slow(o Options) Options {
	o.Profile = sched.Qwen3
	return o
}

func TestQueueFullIsRefusedAsTheKindDoes(t *testing.T) {
	for _, kind := range []Kind{SGLang, VLLM} {
		s, base := start(t, slow(Options{Kind: kind, MaxRunning: 1, MaxQueued: 1}))
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		background := func() {
			wg.Go(func() {
				req, _ := http.NewRequestWithContext(ctx, "POST", base+"/v1/completions", strings.NewReader(`{"prompt":"x","max_tokens":1000,"ignore_eos":true}`))
				if resp, err := client.Do(req); err == nil {
					_, _ = io.Copy(io.Discard, resp.Body)
					resp.Body.Close()
				}
			})
		}
		background()
		until(t, "one running", func() bool { return s.Loads()[0].Running == 1 })
		background()
		until(t, "one waiting", func() bool { return s.Loads()[0].Waiting == 1 })
		status, b := post(t, base+"/v1/completions", `{"prompt":"y"}`)
		if status != 503 || !strings.Contains(b, `"code":503`) {
			t.Errorf("%s: third of two: got %d %s, want 503", kind, status, b)
		}
		status, b = post(t, base+"/v1/completions", `{"prompt":"y","stream":true}`)
		switch kind {
		case SGLang:
			if list := events(t, b); status != 200 || len(list) != 2 || !strings.Contains(list[0], `"error":{"object":"error"`) || !strings.Contains(list[0], `"code":503`) {
				t.Errorf("sglang streamed: got %d %s, want 200 and an error event of 503", status, b)
			}
		case VLLM:
			if status != 503 {
				t.Errorf("vllm streamed: got %d %s, want 503", status, b)
			}
		}
		cancel()
		wg.Wait()
		until(t, "both gone", func() bool { l := s.Loads()[0]; return l.Running+l.Waiting+l.Used == 0 })
	}
}

func TestClientThatLeavesFreesItsSlot(t *testing.T) {
	for _, stream := range []bool{false, true} {
		s, base := start(t, slow(Options{}))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			req, _ := http.NewRequestWithContext(ctx, "POST", base+"/v1/chat/completions", strings.NewReader(fmt.Sprintf(`{%s,"ignore_eos":true,"max_tokens":5000,"stream":%v}`, hello, stream)))
			if resp, err := client.Do(req); err == nil {
				_, _ = io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
			}
		}()
		until(t, "running", func() bool { return s.Loads()[0].Running == 1 })
		cancel()
		<-done
		left := time.Now()
		until(t, "freed", func() bool { l := s.Loads()[0]; return l.Running+l.Used == 0 && l.Aborted == 1 })
		t.Logf("stream %v: freed after %v", stream, time.Since(left).Round(time.Millisecond))
		until(t, "forgotten", func() bool { return s.live.len() == 0 })
	}
}

func TestAbortRequestEndsItWithAbort(t *testing.T) {
	s, base := start(t, slow(Options{}))
	got := make(chan string, 1)
	go func() {
		_, b := post(t, base+"/v1/chat/completions", `{`+hello+`,"ignore_eos":true,"max_tokens":5000,"rid":"mine"}`)
		got <- b
	}()
	until(t, "running", func() bool { return s.Loads()[0].Running == 1 })
	if status, b := post(t, base+"/abort_request", `{"rid":"mine"}`); status != 200 {
		t.Errorf("/abort_request: got %d %s", status, b)
	}
	if r := decode(t, <-got); r.Choices[0].FinishReason != "abort" || r.ID != "mine" {
		t.Errorf("aborted: got id %q, reason %q, want mine, abort", r.ID, r.Choices[0].FinishReason)
	}
	until(t, "freed", func() bool { return s.Loads()[0].Running == 0 })
}

func TestShutdownLetsStreamsFinishAndCloseCutsThem(t *testing.T) {
	run := func(stop func(*Server)) (body string, err error) {
		s, err := New(slow(Options{TimeScale: 10}))
		if err != nil {
			t.Fatal(err)
		}
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		served := make(chan error, 1)
		go func() { served <- s.Serve(ln) }()
		resp, err := client.Post("http://"+ln.Addr().String()+"/v1/completions", "application/json", strings.NewReader(`{"prompt":"x","stream":true,"max_tokens":60,"ignore_eos":true}`))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		first, err := bufio.NewReaderSize(resp.Body, 16).ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		stopped := make(chan struct{})
		go func() { stop(s); close(stopped) }()
		rest, err := io.ReadAll(resp.Body)
		<-stopped
		if serr := <-served; serr != nil {
			t.Errorf("Serve: got %v, want nil", serr)
		}
		return first + string(rest), err
	}
	body, err := run(func(s *Server) {
		if err := s.Shutdown(context.Background()); err != nil {
			t.Errorf("Shutdown: %v", err)
		}
	})
	if err != nil || !strings.HasSuffix(body, "data: [DONE]\n\n") {
		t.Errorf("Shutdown during a stream: got %v and an end of %q, want [DONE]", err, body[max(0, len(body)-40):])
	}
	body, err = run(func(s *Server) { s.Close() })
	if err == nil || strings.Contains(body, "[DONE]") {
		t.Errorf("Close during a stream: got error %v and %q, want a cut connection", err, body[max(0, len(body)-40):])
	}
}

func TestManyClientsAtOnceGetTheirOwnAnswers(t *testing.T) {
	s, base := start(t, Options{MaxRunning: 8, KVTokens: 4000, PageSize: 4})
	questions := make([]string, 60)
	want := make([]string, len(questions))
	for i := range questions {
		questions[i] = fmt.Sprintf(`{"messages":[{"role":"user","content":"Question %d of the day"}],"temperature":0,"max_tokens":%d`, i, 20+i)
		want[i] = ask(t, base, "/v1/chat/completions", questions[i]+`}`).Choices[0].Message.Content
	}
	if d := slices.Compact(slices.Sorted(slices.Values(want))); len(d) < 30 {
		t.Errorf("60 questions: got %d different answers", len(d))
	}
	var wg sync.WaitGroup
	for i := range questions {
		wg.Go(func() {
			for range 3 {
				_, b := post(t, base+"/v1/chat/completions", questions[i]+`,"stream":true}`)
				text := ""
				for _, e := range events(t, b) {
					if e != "[DONE]" {
						for _, c := range decode(t, e).Choices {
							text += c.Delta.Content
						}
					}
				}
				if text != want[i] {
					t.Errorf("question %d: got %q beside others, %q alone", i, text, want[i])
				}
			}
		})
	}
	wg.Wait()
	if l := s.Loads()[0]; l.Used != 0 || l.Running != 0 {
		t.Errorf("afterwards: got load %+v, want nothing in use", l)
	}
}

func TestFlushForgetsAndIsRefusedWhileBusy(t *testing.T) {
	s, base := start(t, slow(Options{TimeScale: 5}))
	body := `{"prompt":"The gate opens and the water falls","max_tokens":1}`
	ask(t, base, "/v1/completions", body)
	if r := ask(t, base, "/v1/completions", body); r.cached() == 0 {
		t.Fatal("nothing cached")
	}
	if status, _ := post(t, base+"/flush_cache", ""); status != 200 {
		t.Errorf("/flush_cache: got %d", status)
	}
	if r := ask(t, base, "/v1/completions", body); r.cached() != 0 {
		t.Errorf("after the flush: got %d cached", r.cached())
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		post(t, base+"/v1/completions", `{"prompt":"x","max_tokens":30,"ignore_eos":true}`)
	}()
	until(t, "running", func() bool { return s.Loads()[0].Running == 1 })
	if status, _ := post(t, base+"/flush_cache", ""); status != 400 {
		t.Errorf("/flush_cache while busy: got %d, want 400", status)
	}
	<-done
}

func TestNativeGenerateInSGLangsShape(t *testing.T) {
	s, base := start(t, Options{})
	m := s.Model()
	ids := m.Encode(nil, "The old hand says. It is")
	list, _ := json.Marshal(ids)
	_, b := post(t, base+"/generate", `{"input_ids":`+string(list)+`,"sampling_params":{"max_new_tokens":0,"temperature":0},"return_logprob":true,"logprob_start_len":0,"top_logprobs_num":3}`)
	type meta struct {
		Finish struct {
			Type   string
			Length int
		} `json:"finish_reason"`
		Prompt    int      `json:"prompt_tokens"`
		Output    int      `json:"completion_tokens"`
		Cached    int      `json:"cached_tokens"`
		Input     [][3]any `json:"input_token_logprobs"`
		OutputLP  [][3]any `json:"output_token_logprobs"`
		InputTop  []any    `json:"input_top_logprobs"`
		OutputTop []any    `json:"output_top_logprobs"`
	}
	type result struct {
		Text string
		IDs  []uint32 `json:"output_ids"`
		Meta meta     `json:"meta_info"`
	}
	var r result
	if err := json.Unmarshal([]byte(b), &r); err != nil {
		t.Fatalf("/generate: %s: %v", b, err)
	}
	if len(r.Meta.Input) != len(ids) || r.Meta.Input[0][0] != nil || len(r.Meta.InputTop) != len(ids) || r.Meta.InputTop[0] != nil || r.Meta.Prompt != len(ids) || r.Meta.Finish.Type != "length" {
		t.Errorf("scored: got %s", b)
	}
	state := m.Begin()
	for i, id := range ids {
		if got := r.Meta.Input[i]; got[1] != float64(id) || i > 0 && got[0] != m.LogProb(state, id) {
			t.Errorf("input token %d: got %v, want %v, %d", i, got, m.LogProb(state, id), id)
		}
		state = m.Advance(state, id)
	}
	_, b = post(t, base+"/generate", `{"text":["A lock","The lake"],"sampling_params":{"max_new_tokens":4,"temperature":0},"return_logprob":true}`)
	var rs []result
	if err := json.Unmarshal([]byte(b), &rs); err != nil || len(rs) != 2 || len(rs[1].IDs) != 4 || len(rs[1].Meta.OutputLP) != 4 || rs[0].Meta.Finish.Length != 4 {
		t.Errorf("two texts: got %s", b)
	}
	_, b = post(t, base+"/generate", `{"text":"A lock","sampling_params":{"max_new_tokens":12,"temperature":0},"stream":true}`)
	evs := events(t, b)
	var last result
	for _, e := range evs[:len(evs)-1] {
		var now result
		if err := json.Unmarshal([]byte(e), &now); err != nil || !strings.HasPrefix(now.Text, last.Text) || len(now.IDs) <= len(last.IDs) {
			t.Errorf("event %s after %q: want all so far and more (%v)", e, last.Text, err)
		}
		last = now
	}
	if evs[len(evs)-1] != "[DONE]" || len(last.IDs) != 12 || last.Meta.Finish.Type != "length" {
		t.Errorf("stream: got %s", b)
	}
}

func TestErrorsInTheKindsShape(t *testing.T) {
	for _, kind := range []Kind{SGLang, VLLM} {
		_, base := start(t, Options{Kind: kind, ContextLen: 100})
		long := strings.Repeat("the gate ", 200)
		for _, tc := range []struct {
			path, body string
			status     int
		}{
			{"/v1/chat/completions", `{"model": "x",`, 400},
			{"/v1/chat/completions", `{}`, 400},
			{"/v1/chat/completions", `{"messages":[]}`, 400},
			{"/v1/chat/completions", `{"messages":"x"}`, 400},
			{"/v1/chat/completions", `{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}]}`, 400},
			{"/v1/chat/completions", `{` + hello + `,"max_tokens":-1}`, 400},
			{"/v1/chat/completions", `{` + hello + `,"max_tokens":100000}`, 400},
			{"/v1/chat/completions", `{` + hello + `,"max_tokens":"many"}`, 400},
			{"/v1/chat/completions", `{` + hello + `,"temperature":-1}`, 400},
			{"/v1/chat/completions", `{` + hello + `,"top_p":0}`, 400},
			{"/v1/chat/completions", `{` + hello + `,"n":0}`, 400},
			{"/v1/chat/completions", `{` + hello + `,"stop":[""]}`, 400},
			{"/v1/chat/completions", `{` + hello + `,"response_format":{"type":"json_object"}}`, 400},
			{"/v1/chat/completions", `{` + hello + `,"tool_choice":"required","tools":[{}]}`, 400},
			{"/v1/chat/completions", `{` + hello + `,"logprobs":5}`, 400},
			{"/v1/chat/completions", `{"messages":[{"role":"user","content":"` + long + `"}]}`, 400},
			{"/v1/completions", `{"prompt":"` + long + `"}`, 400},
			{"/v1/completions", `{"prompt":""}`, 400},
			{"/v1/completions", `{"prompt":[]}`, 400},
			{"/v1/completions", `{"prompt":[[]]}`, 400},
			{"/v1/completions", `{"prompt":[1,"x"]}`, 400},
			{"/v1/completions", `{"prompt":[999999]}`, 400},
			{"/v1/completions", `{"prompt":[-1]}`, 400},
			{"/v1/completions", `{"prompt":7}`, 400},
			{"/v1/completions", `{}`, 400},
			{"/v1/completions", `{"prompt":"x","best_of":1,"n":2}`, 400},
			{"/v1/embeddings", `{"input":[]}`, 400},
			{"/v1/embeddings", `{"input":"x","encoding_format":"hex"}`, 400},
			{"/tokenize", `{}`, 400},
			{"/detokenize", `{"tokens":["x"]}`, 400},
			{"/detokenize", `{"tokens":[999999]}`, 400},
			{"/v1/nothing", `{}`, 404},
		} {
			status, b := post(t, base+tc.path, tc.body)
			var flat struct {
				Object, Message, Type string
				Code                  int
				Error                 struct {
					Message, Type string
					Code          int
				}
				Detail string
			}
			if err := json.Unmarshal([]byte(b), &flat); err != nil {
				t.Fatalf("%s %.60s: got %s", tc.path, tc.body, b)
			}
			message, code := flat.Message, flat.Code
			if kind == VLLM {
				message, code = flat.Error.Message, flat.Error.Code
			}
			if tc.status == 404 {
				message, code = flat.Detail, 404
			}
			if status != tc.status || code != tc.status || message == "" {
				t.Errorf("%s %s %.80s: got %d %s, want %d in the kind's shape", kind, tc.path, tc.body, status, b, tc.status)
			}
		}
	}
}

func TestUnknownModel(t *testing.T) {
	_, vllm := start(t, Options{Kind: VLLM})
	if status, b := post(t, vllm+"/v1/completions", `{"model":"nope","prompt":"x"}`); status != 404 || !strings.Contains(b, `"type":"NotFoundError","param":"model"`) {
		t.Errorf("vllm: got %d %s, want 404 NotFoundError", status, b)
	}
	_, sgl := start(t, Options{})
	if r := ask(t, sgl, "/v1/completions", `{"model":"nope","prompt":"x","max_tokens":1}`); r.Model != "nope" {
		t.Errorf("sglang: got model %q, want the name echoed", r.Model)
	}
}

func TestVLLMTakesOverTheRequestID(t *testing.T) {
	_, base := start(t, Options{Kind: VLLM})
	if r := ask(t, base, "/v1/chat/completions", `{`+hello+`,"max_tokens":1}`, "X-Request-Id", "my-req-1"); r.ID != "chatcmpl-my-req-1" {
		t.Errorf("id: got %q, want chatcmpl-my-req-1", r.ID)
	}
}

func TestQuirksImitateSGLangsShortcomings(t *testing.T) {
	_, base := start(t, Options{Quirks: true})
	if status, b := post(t, base+"/v1/completions", `{"prompt":"x y","echo":true,"logprobs":1,"max_tokens":0}`); status != 400 || !strings.Contains(b, "max_tokens must be positive") {
		t.Errorf("max_tokens 0: got %d %s, want 400", status, b)
	}
	lp := ask(t, base, "/v1/completions", `{"prompt":"qz xw","echo":true,"logprobs":1,"max_tokens":1}`).Choices[0].Logprobs
	if lp.Offsets[1] != -1 || len(lp.Top[1]) != 1 {
		t.Errorf("echo: got offsets %v and tops %v, want -1 and one alternative", lp.Offsets, lp.Top)
	}
	if c := ask(t, base, "/v1/completions", `{"prompt":"x y","echo":true,"logprobs":0,"max_tokens":1}`).Choices[0]; c.Logprobs != nil {
		t.Errorf("logprobs 0: got %+v, want null", c.Logprobs)
	}
}

func TestOptionsAreChecked(t *testing.T) {
	for _, tc := range []struct {
		o    Options
		want string
	}{
		{Options{Kind: "tgi"}, `kind "tgi": expected sglang or vllm`},
		{Options{Profile: "fast"}, `profile "fast": expected instant, qwen3-30b, glm52-dp4`},
		{Options{DP: -1}, "dp -1"},
		{Options{MaxQueued: -1}, "max-queued -1"},
		{Options{TimeScale: -2}, "time-scale -2"},
		{Options{KVTokens: 100, PageSize: 64}, "kv-tokens 100"},
		{Options{Faults: []Fault{{Kind: "x"}}}, `fault "x"`},
	} {
		s, err := New(tc.o)
		if err == nil {
			s.Close()
		}
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("New(%+v): got %v, want it to say %s", tc.o, err, tc.want)
		}
	}
}

func TestCloseWithoutServeLeavesNothing(t *testing.T) {
	s, err := New(Options{DP: 2})
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
	s.Close()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Serve(ln); err != nil && !errors.Is(err, net.ErrClosed) {
		t.Errorf("Serve after Close: got %v", err)
	}
}

package local

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// try is one request, with whatever error comes of it.
func try(ctx context.Context, base, body string) (status int, text string, err error) {
	req, err := http.NewRequestWithContext(ctx, "POST", base+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	resp, err := client.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(b), err
}

const (
	plainBody  = `{` + hello + `,"temperature":0,"max_tokens":20}`
	streamBody = `{` + hello + `,"temperature":0,"max_tokens":20,"stream":true}`
)

func TestFaultsHitAsManyRequestsAsTheySay(t *testing.T) {
	_, base := start(t, Options{})
	for _, tc := range []struct {
		fault, body string
		check       func(status int, body string, err error) bool
	}{
		{`{"kind":"503","count":2,"retry_after":3}`, plainBody, func(s int, b string, err error) bool { return s == 503 && err == nil && strings.Contains(b, "fault") }},
		{`{"kind":"429","count":2,"retry_after":7}`, plainBody, func(s int, _ string, err error) bool { return s == 429 && err == nil }},
		{`{"kind":"503_stream","count":2}`, streamBody, func(s int, b string, err error) bool {
			return s == 200 && err == nil && strings.HasPrefix(b, `data: {"error":{"object":"error"`) && strings.Contains(b, `"code":503`) && strings.HasSuffix(b, "data: [DONE]\n\n")
		}},
		{`{"kind":"503_stream","count":2}`, plainBody, func(s int, _ string, err error) bool { return s == 503 && err == nil }},
		{`{"kind":"die","count":2}`, plainBody, func(_ int, _ string, err error) bool { return err != nil }},
		{`{"kind":"die","count":2}`, streamBody, func(_ int, b string, err error) bool { return err != nil && b == "" }},
		{`{"kind":"die","count":2,"after":4}`, streamBody, func(s int, b string, err error) bool {
			return s == 200 && errors.Is(err, io.ErrUnexpectedEOF) && strings.Count(b, "data: ") == 4
		}},
		{`{"kind":"no_done","count":2}`, streamBody, func(s int, b string, err error) bool {
			return s == 200 && err == nil && strings.Contains(b, `"finish_reason":"length"`) && !strings.Contains(b, "[DONE]")
		}},
	} {
		if status, b := post(t, base+"/fault", tc.fault); status != 200 {
			t.Fatalf("POST /fault %s: got %d %s", tc.fault, status, b)
		}
		for i := range 2 {
			if status, b, err := try(t.Context(), base, tc.body); !tc.check(status, b, err) {
				t.Errorf("fault %s, request %d: got %d %q, %v", tc.fault, i, status, b, err)
			}
		}
		if status, b, err := try(t.Context(), base, tc.body); status != 200 || err != nil || strings.Contains(b, `"error"`) {
			t.Errorf("fault %s, after its two requests: got %d %q, %v, want an answer", tc.fault, status, b, err)
		}
	}
}

func TestFaultLastsUntilItIsCleared(t *testing.T) {
	_, base := start(t, Options{Faults: []Fault{{Kind: Fault429, RetryAfter: 7}}})
	for range 3 {
		status, header, _ := request(t, "POST", base+"/v1/chat/completions", plainBody)
		if status != 429 || header.Get("Retry-After") != "7" {
			t.Errorf("got %d, Retry-After %q, want 429, 7", status, header.Get("Retry-After"))
		}
	}
	if _, _, b := request(t, "GET", base+"/fault", ""); !strings.Contains(b, `"kind":"429"`) {
		t.Errorf("GET /fault: got %s", b)
	}
	if _, _, b := request(t, "DELETE", base+"/fault", ""); b != "[]" {
		t.Errorf("DELETE /fault: got %s, want []", b)
	}
	if status, b := post(t, base+"/v1/chat/completions", plainBody); status != 200 {
		t.Errorf("cleared: got %d %s", status, b)
	}
}

func TestFrozenEngineAcceptsAndSaysNothing(t *testing.T) {
	s, base := start(t, Options{})
	if err := s.SetFault(Fault{Kind: FaultFreeze}); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/health", "/v1/models"} {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		req, _ := http.NewRequestWithContext(ctx, "GET", base+path, nil)
		resp, err := client.Do(req)
		if err == nil {
			resp.Body.Close()
		}
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("frozen %s: got %v, want no answer", path, err)
		}
		cancel()
	}
	done := make(chan int)
	go func() {
		status, _, _ := try(t.Context(), base, plainBody)
		done <- status
	}()
	s.ClearFaults()
	if status := <-done; status != 200 {
		t.Errorf("after the thaw: got %d, want 200", status)
	}
}

func TestFrozenRequestHangsUntilItsClientLeaves(t *testing.T) {
	s, base := start(t, Options{})
	if err := s.SetFault(Fault{Kind: FaultFreeze, Count: 1}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Millisecond)
	defer cancel()
	if _, b, err := try(ctx, base, plainBody); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("frozen request: got %q, %v, want no answer", b, err)
	}
	if status, b := post(t, base+"/v1/chat/completions", plainBody); status != 200 {
		t.Errorf("the one after it: got %d %s, want 200", status, b)
	}
	until(t, "the frozen one forgotten", func() bool { return s.live.len() == 0 })
}

func TestRefusedConnectionsAndTheWayBack(t *testing.T) {
	s, base := start(t, Options{})
	request(t, "GET", base+"/health", "") // it serves
	if err := s.SetFault(Fault{Kind: FaultRefuse}); err != nil {
		t.Fatal(err)
	}
	if _, err := net.Dial("tcp", strings.TrimPrefix(base, "http://")); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("refusing: got %v, want connection refused", err)
	}
	s.ClearFaults()
	if status, b := post(t, base+"/v1/chat/completions", plainBody); status != 200 {
		t.Errorf("open again: got %d %s", status, b)
	}
	if status, b := post(t, base+"/fault", `{"kind":"refuse","for":"30ms"}`); status != 200 {
		t.Errorf("POST /fault refuse: got %d %s", status, b)
	}
	until(t, "open again by itself", func() bool {
		_, _, err := try(t.Context(), base, plainBody)
		return err == nil
	})
}

func TestSlowPrefillFaultIsSlow(t *testing.T) {
	s, base := start(t, slow(Options{TimeScale: 20}))
	took := func() time.Duration {
		begun := time.Now()
		ask(t, base, "/v1/completions", `{"prompt":"`+strings.Repeat("the gate ", 150)+time.Now().String()+`","max_tokens":1}`)
		return time.Since(begun)
	}
	if err := s.SetFault(Fault{Kind: FaultSlowPrefill, Factor: 100}); err != nil {
		t.Fatal(err)
	}
	// 150 times two tokens at 88 µs, 20 times as fast, 100 times as slow.
	if got := took(); got < 100*time.Millisecond {
		t.Errorf("slow prefill: got %v, want at least 100ms", got)
	}
}

func TestParseFault(t *testing.T) {
	for _, tc := range []struct {
		in   string
		want Fault
		err  string
	}{
		{"503", Fault{Kind: "503", Factor: 10}, ""},
		{"die:after=3,count=2", Fault{Kind: "die", After: 3, Count: 2, Factor: 10}, ""},
		{"freeze:for=1.5s", Fault{Kind: "freeze", For: Duration(1500 * time.Millisecond), Factor: 10}, ""},
		{"slow_prefill:factor=2.5", Fault{Kind: "slow_prefill", Factor: 2.5}, ""},
		{"429:retry_after=9", Fault{Kind: "429", RetryAfter: 9, Factor: 10}, ""},
		{"explode", Fault{}, `fault "explode": expected refuse`},
		{"die:after=x", Fault{}, `fault "die:after=x": after=x`},
		{"die:count=-1", Fault{}, "must not be negative"},
		{"die:wat=1", Fault{}, "expected count, after"},
	} {
		got, err := ParseFault(tc.in)
		if tc.err == "" && (err != nil || got != tc.want) || tc.err != "" && (err == nil || !strings.Contains(err.Error(), tc.err)) {
			t.Errorf("ParseFault(%q): got %+v, %v, want %+v, %s", tc.in, got, err, tc.want, tc.err)
		}
	}
}

func TestLoadsTellWhatRunsAndWaits(t *testing.T) {
	s, base := start(t, slow(Options{DP: 2, MaxRunning: 1}))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{}, 3)
	for range 3 {
		go func() {
			_, _, _ = try(ctx, base, `{`+hello+`,"ignore_eos":true,"max_tokens":5000}`)
			done <- struct{}{}
		}()
	}
	until(t, "two running, one waiting", func() bool {
		l := s.Loads()
		return l[0].Running == 1 && l[1].Running == 1 && l[0].Waiting+l[1].Waiting == 1 && l[0].PrefillTokens > 0 && l[1].PrefillTokens > 0
	})
	_, _, b := request(t, "GET", base+"/v1/loads", "")
	var r struct {
		Loads []struct {
			Rank     int `json:"dp_rank"`
			Running  int `json:"num_running_reqs"`
			Waiting  int `json:"num_waiting_reqs"`
			Uncached int `json:"num_waiting_uncached_tokens"`
			Max      int `json:"max_running_requests"`
			Capacity int `json:"max_total_num_tokens"`
			Prefill  int `json:"total_prefill_uncached_tokens"`
			Busy     int `json:"total_prefill_busy_us"`
		}
	}
	if err := json.Unmarshal([]byte(b), &r); err != nil || len(r.Loads) != 2 {
		t.Fatalf("/v1/loads: got %s", b)
	}
	waiting := 0
	for i, l := range r.Loads {
		if l.Rank != i || l.Running != 1 || l.Max != 1 || l.Capacity != 1080523 || l.Prefill == 0 || l.Busy < l.Prefill*80 || (l.Waiting > 0) != (l.Uncached > 0) {
			t.Errorf("rank %d: got %+v", i, l)
		}
		waiting += l.Waiting
	}
	if waiting != 1 {
		t.Errorf("waiting: got %d, want 1", waiting)
	}
	cancel()
	for range 3 {
		<-done
	}
}

func TestMetricsParseAndCount(t *testing.T) {
	for kind, names := range map[Kind][]string{
		SGLang: {"sglang:num_running_reqs", "sglang:prompt_tokens_total", "sglang:time_to_first_token_seconds", "sglang:cached_tokens_total"},
		VLLM:   {"vllm:num_requests_running", "vllm:prompt_tokens_total", "vllm:time_to_first_token_seconds", "vllm:cache_config_info"},
	} {
		_, base := start(t, Options{Kind: kind, DP: 2})
		r := ask(t, base, "/v1/completions", `{"prompt":"The gate","max_tokens":2}`)
		_, _, text := request(t, "GET", base+"/metrics", "")
		parser := expfmt.NewTextParser(model.UTF8Validation)
		families, err := parser.TextToMetricFamilies(strings.NewReader(text))
		if err != nil {
			t.Fatalf("%s /metrics: %v", kind, err)
		}
		for _, name := range names {
			if families[name] == nil {
				t.Errorf("%s /metrics: no %s", kind, name)
			}
		}
		sum := 0.0
		for _, m := range families[names[1]].GetMetric() {
			sum += m.GetCounter().GetValue()
		}
		if sum != float64(r.Usage.Prompt) {
			t.Errorf("%s: got %v, want %d", names[1], sum, r.Usage.Prompt)
		}
	}
}

func TestServerInfoTellsSizes(t *testing.T) {
	_, base := start(t, Options{DP: 4, Profile: "glm52-dp4"})
	for _, path := range []string{"/server_info", "/get_server_info"} {
		_, _, b := request(t, "GET", base+path, "")
		var r struct {
			DP     int `json:"dp_size"`
			Page   int `json:"page_size"`
			Max    int `json:"max_running_requests"`
			States []struct {
				Effective int `json:"effective_max_running_requests_per_dp"`
				Memory    struct {
					Capacity int `json:"token_capacity"`
				} `json:"memory_usage"`
			} `json:"internal_states"`
		}
		if err := json.Unmarshal([]byte(b), &r); err != nil || r.DP != 4 || r.Page != 64 || r.Max != 1024 || len(r.States) != 4 || r.States[3].Effective != 256 || r.States[3].Memory.Capacity != 2328128 {
			t.Errorf("%s: got %s", path, b)
		}
	}
}

func TestEveryRouteOfAKindAnswers(t *testing.T) {
	for _, kind := range []Kind{SGLang, VLLM} {
		_, base := start(t, Options{Kind: kind})
		for path, r := range routes() {
			method := r.method
			if method == "" {
				method = "POST"
			}
			status, _, b := request(t, method, base+path, `{"rid":"x"}`)
			foreign := r.only != "" && r.only != kind
			if (status == 404) != foreign || status >= 500 {
				t.Errorf("%s %s %s: got %d %s, foreign %v", kind, method, path, status, b, foreign)
			}
			if r.method != "" {
				if status, _, _ := request(t, "PUT", base+path, ""); !foreign && status != 405 {
					t.Errorf("%s PUT %s: got %d, want 405", kind, path, status)
				}
			}
		}
	}
}

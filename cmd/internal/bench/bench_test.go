package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"penstock/engine/local"
	"penstock/engine/local/localtest"
)

func options(endpoints ...string) Options {
	return Options{
		Endpoints: endpoints, API: "chat", Runs: 1, Seed: 1, Silence: 10 * time.Second, Timeout: 20 * time.Second,
		Calibrate: true, Format: formatRows, Custom: Phase{Speed: 1},
	}
}

func none(string) (string, bool) { return "", false }

// run runs and returns what was written to --out.
func run(t *testing.T, o Options, out any) (stdout, stderr string, err error) {
	t.Helper()
	if err := o.Validate(); err != nil {
		t.Fatalf("Validate: %v", err)
	}
	o.Out = filepath.Join(t.TempDir(), "rows.json")
	var so, se bytes.Buffer
	err = Run(t.Context(), o, none, &so, &se)
	if b, e := os.ReadFile(o.Out); e == nil {
		if e := json.Unmarshal(b, out); e != nil {
			t.Fatalf("%s is not as expected: %v", b, e)
		}
	}
	return so.String(), se.String(), err
}

func TestRowsHaveTheLengthsThatWereAskedFor(t *testing.T) {
	url := localtest.URL(t, local.Options{})
	for _, api := range []string{"chat", "completions"} {
		o := options("one="+url, "two="+url+"/v1")
		o.API, o.Phases, o.Runs = api, []string{"a=4x256x16,b=2x2000x8"}, 2
		var rows map[string][]Row
		stdout, _, err := run(t, o, &rows)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"one", "two"} {
			if len(rows[name]) != 2 {
				t.Fatalf("%s: rows of %s: got %d, want 2", api, name, len(rows[name]))
			}
			for _, r := range rows[name] {
				if r.Completed != 2*r.Batch || r.Errors != 0 || r.Runs != 2 {
					t.Errorf("%s: %s: completed %d, errors %d, runs %d; want %d, 0, 2", api, r.Phase, r.Completed, r.Errors, r.Runs, 2*r.Batch)
				}
				if off := r.InTokens/float64(r.Input) - 1; off < -0.01 || off > 0.01 || r.Tokens != float64(r.Output) {
					t.Errorf("%s: %s: %v tokens in, %v out; want %d within 1 %%, %d", api, r.Phase, r.InTokens, r.Tokens, r.Input, r.Output)
				}
				if r.TTFTMed <= 0 || r.LatMed < r.TTFTMed || r.OutTput <= 0 || r.Counted {
					t.Errorf("%s: %s: figures are missing: %+v", api, r.Phase, r)
				}
			}
		}
		if !strings.Contains(stdout, "of one's") {
			t.Errorf("no comparison of the endpoints in\n%s", stdout)
		}
	}
}

func TestPromptsShareOnlyWhatThePhaseSays(t *testing.T) {
	url := localtest.URL(t, local.Options{PageSize: 16})
	cached := func(c Phase) float64 {
		o := options(url)
		o.Custom = c
		var rows map[string][]Row
		if _, _, err := run(t, o, &rows); err != nil {
			t.Fatal(err)
		}
		for _, r := range rows {
			return r[0].Cached / r[0].InTput
		}
		return -1
	}
	if got := cached(Phase{Batch: 1, Requests: 10, Input: 600, Output: 4}); got > 0.05 {
		t.Errorf("unrelated prompts: %.2f of their tokens were cached, want next to nothing", got)
	}
	if got := cached(Phase{Batch: 1, Requests: 10, Input: 600, Output: 4, Prefixes: 2, PrefixTokens: 500}); got < 0.5 || got > 0.8 {
		t.Errorf("two prefixes of 500 in 600: %.2f cached, want about two thirds (8 of 10 requests find 500 of 600)", got)
	}
	if got := cached(Phase{Batch: 2, Sessions: 2, Turns: 5, Input: 300, Output: 8}); got < 0.5 {
		t.Errorf("sessions of five turns: %.2f cached, want more than half", got)
	}
}

// troubled answers chat requests with every kind of trouble in turn.
func troubled(t *testing.T) string {
	t.Helper()
	var n atomic.Int64
	leave := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		begin := func() {
			w.Header().Set("Content-Type", "text/event-stream")
			fmt.Fprint(w, "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\r\n\r\n: a comment\n\n")
			fmt.Fprint(w, "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}],\"error\":null}\n\n")
			w.(http.Flusher).Flush()
		}
		switch {
		case r.URL.Path == "/v1/models":
			fmt.Fprint(w, `{"data":[{"id":"m"}]}`)
		case r.URL.Path == "/v1/completions":
			http.Error(w, `{"error":{"message":"no echo here"}}`, http.StatusInternalServerError)
		case r.URL.Path != "/v1/chat/completions":
			http.NotFound(w, r)
		default:
			switch n.Add(1) {
			case 1:
				w.Header().Set("Retry-After", "7")
				w.WriteHeader(http.StatusTooManyRequests)
				fmt.Fprint(w, `{"error":{"message":"slow down","code":"rate_limit_exceeded"}}`)
			case 2:
				w.WriteHeader(http.StatusTooManyRequests)
				fmt.Fprint(w, `{"error":{"message":"slow down","code":"rate_limit_exceeded"}}`)
			case 3:
				select { // hangs
				case <-leave:
				case <-r.Context().Done():
				}
			case 4:
				begin() // and no [DONE]
			case 5:
				begin()
				fmt.Fprint(w, "data: {\"error\":{\"message\":\"out of memory\",\"code\":500}}\n\n")
			case 6:
				begin()
				panic(http.ErrAbortHandler)
			default:
				begin()
				fmt.Fprint(w, "data: {\"choices\":[{\"delta\":{\"content\":\"b\"}}]}\n\ndata: [DONE]\n\n")
			}
		}
	}))
	s.Config.ErrorLog = nil
	t.Cleanup(func() { close(leave); s.Close() })
	return s.URL
}

func TestEveryKindOfErrorIsCountedWithItsRetryAfter(t *testing.T) {
	o := options("bad=" + troubled(t))
	o.Calibrate, o.Silence = false, 200*time.Millisecond
	o.Phases = []string{"load=1x16x2"}
	p, err := o.phases()
	if err != nil {
		t.Fatal(err)
	}
	o.Phases, o.Custom = nil, p[0]
	o.Custom.Requests = 8
	o.Asserts = []string{"errors==0", "bad/custom:hung<=1", "load:ttft_p99_ms<500"}
	o.Custom.Name = ""
	var rows map[string][]Row
	stdout, _, err := run(t, o, &rows)
	failed, ok := errors.AsType[FailedAsserts](err)
	if !ok || len(failed) != 2 || !strings.Contains(failed[0], "errors==0: custom on bad has 6") || !strings.Contains(failed[1], "no row is about that") {
		t.Errorf("assertions: got %v, want errors==0 and the one about phase load to fail", err)
	}
	r := rows["bad"][0]
	want := map[string]int{"HTTP 429": 2, kindSilent: 1, kindTruncated: 1, kindStream: 1, kindLost: 1}
	if !reflect.DeepEqual(r.Kinds, want) || r.Hung != 1 || r.Completed != 2 || !r.Counted || r.Tokens != 2 {
		t.Errorf("got kinds %v, hung %d, completed %d, counted %v, tokens %v; want %v, 1, 2, true, 2", r.Kinds, r.Hung, r.Completed, r.Counted, r.Tokens, want)
	}
	first := r.Refusals[0]
	if first.Kind != "HTTP 429" || first.Code != "rate_limit_exceeded" || first.Count != 2 || first.Told != 1 || first.WaitMax != 7 {
		t.Errorf("429s: got %+v, want 2 of rate_limit_exceeded, one with Retry-After 7", first)
	}
	if !strings.Contains(stdout, "Retry-After 7.00 s in the median, 7.00 at most, none on 1") {
		t.Errorf("the table does not tell of Retry-After:\n%s", stdout)
	}
}

func TestScoringTellsWhoCanScore(t *testing.T) {
	o := options("good="+localtest.URL(t, local.Options{}), "bad="+troubled(t))
	o.Calibrate, o.Phases = false, []string{"scoring"}
	var rows map[string][]Row
	if _, _, err := run(t, o, &rows); err != nil {
		t.Fatal(err)
	}
	if r := rows["good"][0]; r.Completed != 4 {
		t.Errorf("the local engine scored %d of 4: %+v", r.Completed, r.Refusals)
	}
	if r := rows["bad"][0]; r.Kinds["HTTP 500"] != 4 {
		t.Errorf("an endpoint that answers 500 to echo: got %v, want 4 × HTTP 500", r.Kinds)
	}
}

func TestArrivalsAreRandomAndDoNotWaitForAnswers(t *testing.T) {
	p, err := Phase{Rate: 50, Requests: 2000}.complete()
	if err != nil {
		t.Fatal(err)
	}
	scripts := make([]script, p.Requests)
	p.arrivals(scripts, 1, 0)
	var between []float64
	for i := 1; i < len(scripts); i++ {
		between = append(between, (scripts[i].at - scripts[i-1].at).Seconds())
	}
	s := spreadOf(between)
	if m, d := s.mean(), s.deviation(); m < 0.018 || m > 0.022 || d < 0.017 || d > 0.023 {
		t.Errorf("times between arrivals at 50/s: mean %.4f s, deviation %.4f s; want both near 0.02", m, d)
	}
	synctest.Test(t, func(t *testing.T) {
		l := &loader{endpoint: &Endpoint{}, phase: &Phase{Rate: 1}, done: func(*sample) {}}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		begun := time.Now()
		var at []time.Duration
		// Scripts without turns: what counts is when they begin.
		l.open(ctx, []script{{at: 0}, {at: time.Second}, {at: 3 * time.Second}}, begun)
		at = append(at, time.Since(begun))
		if at[0] != 3*time.Second {
			t.Errorf("the last of three arrivals began after %v, want 3s", at[0])
		}
	})
}

func TestTraceKeepsItsSharedBlocks(t *testing.T) {
	file := filepath.Join(t.TempDir(), "trace.jsonl")
	lines := `{"timestamp": 0, "input_length": 1024, "output_length": 3, "hash_ids": [1, 2]}
{"timestamp": 10, "input_length": 1500, "output_length": 4, "hash_ids": [1, 2, 3]}
{"timestamp": 20, "input_length": 600, "output_length": 5, "hash_ids": [9, 2]}
`
	if err := os.WriteFile(file, []byte(lines), 0o600); err != nil {
		t.Fatal(err)
	}
	o := options("e=" + localtest.URL(t, local.Options{PageSize: 16}))
	o.Custom = Phase{Trace: file, Speed: 0}
	var rows map[string][]Row
	if _, _, err := run(t, o, &rows); err != nil {
		t.Fatal(err)
	}
	r := rows["e"][0]
	in, cached := r.InTokens*3, r.Cached/r.InTput*r.InTokens*3
	if r.Completed != 3 || in < 3124*0.95 || in > 3124*1.05 || cached < 900 || cached > 1080 {
		t.Errorf("completed %d, %.0f tokens in, %.0f cached; want 3, about 3124, about the 1024 of blocks 1 and 2", r.Completed, in, cached)
	}
}

func TestBenchServingHasTheFieldsOfTheRecordedRows(t *testing.T) {
	o := options("e=" + localtest.URL(t, local.Options{}))
	o.Format, o.Custom = formatServing, Phase{Batch: 2, Requests: 4, Input: 64, Output: 8}
	var got []map[string]any
	if _, _, err := run(t, o, &got); err != nil {
		t.Fatal(err)
	}
	if info, ok := got[0]["server_info"].(map[string]any); !ok || info["version"] == nil {
		t.Errorf("server_info: got %.60v, want the engine's own", got[0]["server_info"])
	}
	if got[0]["total_output_tokens"] != 32.0 || got[0]["completed"] != 4.0 || got[0]["max_concurrency"] != 2.0 || got[0]["backend"] != "sglang" {
		t.Errorf("figures are wrong: %v", got[0])
	}
	var want []map[string]any
	shared(t, "bench_serving_qwen3_30b_dp1.json", &want)
	for k := range want[0] {
		if _, ok := got[0][k]; !ok {
			t.Errorf("field %s of the recorded rows is missing", k)
		}
	}
}

func TestBaselineMayBeTheRowsMadeByHand(t *testing.T) {
	path := filepath.Join(sharedDir(t), "bench_endpoints_rows.json")
	if _, err := os.Stat(path); err != nil {
		t.Skipf("the measured rows are not here: %v", err)
	}
	then, err := loadRows(path)
	if err != nil {
		t.Fatal(err)
	}
	if len(then) != 3 {
		t.Fatalf("endpoints in %s: got %d, want 3", path, len(then))
	}
	now := []endpointRows{{"dedicated_endpoint", []Row{{Phase: "throughput_8k", Completed: 929, OutTput: 4136, TTFTMed: 90, Runs: 1}}}}
	var b bytes.Buffer
	if err := writeBaseline(&b, now, then); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"437", "better", "+88.8 %"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
}

func TestWrongOptionsAreSaidBeforeAnythingIsSent(t *testing.T) {
	for name, change := range map[string]func(*Options){
		"want at least one NAME=URL":   func(o *Options) { o.Endpoints = nil },
		"the name a is taken":          func(o *Options) { o.Endpoints = append(o.Endpoints, "a=http://x") },
		"as in http://":                func(o *Options) { o.Endpoints = []string{"a=ftp://x"} },
		"want chat or completions":     func(o *Options) { o.API = "x" },
		"want all, NAME=":              func(o *Options) { o.Phases = []string{"y"} },
		"want NAME=BATCHxINPUTxOUTPUT": func(o *Options) { o.Phases = []string{"y=1x2"} },
		"only one of them":             func(o *Options) { o.Phases, o.Custom.Batch = []string{"single"}, 2 },
		"want --requests with it":      func(o *Options) { o.Custom.Rate = 1 },
		"--rate +Inf":                  func(o *Options) { o.Custom.Rate, o.Custom.Requests = math.Inf(1), 4 },
		"want both or neither":         func(o *Options) { o.Custom.Prefixes = 1 },
		"more than --input-len":        func(o *Options) { o.Custom.Prefixes, o.Custom.PrefixTokens = 1, 999 },
		"no figure ttft":               func(o *Options) { o.Asserts = []string{"ttft<1"} },
		"want [ENDPOINT/]":             func(o *Options) { o.Asserts = []string{"ttft_med"} },
		"no endpoint has that name":    func(o *Options) { o.Keys = []string{"b=KEY"} },
	} {
		o := options("a=http://127.0.0.1:1")
		change(&o)
		if err := o.Validate(); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("got %v, want an error with %q", err, name)
		}
	}
	o := options("a=http://127.0.0.1:1")
	o.Keys = []string{"NOT_SET"}
	if err := Run(t.Context(), o, none, &bytes.Buffer{}, &bytes.Buffer{}); err == nil || !strings.Contains(err.Error(), "the environment has no NOT_SET") {
		t.Errorf("a key that the environment lacks: got %v", err)
	}
}

func TestAFigureThatWasNotMeasuredHoldsNoAssertion(t *testing.T) {
	o := options("e=" + localtest.URL(t, local.Options{}))
	o.Phases, o.NoStream = []string{"a=1x64x4", "scoring"}, true
	o.Asserts = []string{"a:ttft_p99_ms<500", "scoring:tpot_med<1", "lat_p99>0", "late_p99<1"}
	var rows map[string][]Row
	_, _, err := run(t, o, &rows)
	failed, ok := errors.AsType[FailedAsserts](err)
	if !ok || len(failed) != 2 || !strings.Contains(failed[0], "a on e has none") || !strings.Contains(failed[1], "no row is about that") {
		t.Errorf("got %v, want those about first tokens to fail where none was streamed", err)
	}
	o.Endpoints = []string{localtest.URL(t, local.Options{})} // its name is its host and port
	own := strings.TrimPrefix(o.Endpoints[0], "http://")
	o.NoStream, o.Asserts = false, []string{own + "/a:errors==0", "ttft_p99_ms<500000", "tpot_med_ms<500000", "itl_med_ms<500000"} // of microseconds
	if _, _, err := run(t, o, &rows); err != nil {
		t.Errorf("scoring beside a phase with a first token: %v", err)
	}
}

func TestAnInterruptedRunKeepsThePhasesThatEnded(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	inner := localtest.URL(t, local.Options{})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch body, _ := io.ReadAll(r.Body); {
		case r.URL.Path == "/v1/models":
			fmt.Fprint(w, `{"data":[{"id":"penstock-local"}]}`)
		case bytes.Contains(body, []byte(`"max_tokens":9`)):
			cancel()
			<-r.Context().Done()
		default:
			resp, err := http.Post(inner+r.URL.Path, "application/json", bytes.NewReader(body))
			if err != nil {
				t.Error(err)
				return
			}
			defer resp.Body.Close()
			w.Header().Set("Content-Type", resp.Header.Get("Content-Type"))
			_, _ = io.Copy(w, resp.Body)
		}
	}))
	defer s.Close()
	o := options("e=" + s.URL)
	o.Calibrate, o.Phases, o.Out = false, []string{"short=1x16x2,long=1x16x9"}, filepath.Join(t.TempDir(), "rows.json")
	var stdout bytes.Buffer
	err := Run(ctx, o, none, &stdout, io.Discard)
	b, _ := os.ReadFile(o.Out)
	var rows map[string][]Row
	if e := json.Unmarshal(b, &rows); e != nil || len(rows["e"]) != 1 || rows["e"][0].Phase != "short" || !strings.Contains(stdout.String(), "short") {
		t.Errorf("--out is %s (%v), the table\n%s\nwant the phase that ended in both", b, e, stdout.String())
	}
	if err == nil || !strings.Contains(err.Error(), "interrupted in long on e") {
		t.Errorf("got %v, want it to say that it was interrupted", err)
	}
}

func TestWhereNoFileCanBeWrittenIsSaidBeforeAnythingIsSent(t *testing.T) {
	o := options("a=http://127.0.0.1:1")
	o.Out = filepath.Join(t.TempDir(), "nowhere", "rows.json")
	if err := Run(t.Context(), o, none, &bytes.Buffer{}, &bytes.Buffer{}); err == nil || !strings.Contains(err.Error(), "--out") {
		t.Errorf("got %v, want an error about --out", err)
	}
}

func sharedDir(t *testing.T) string {
	t.Helper()
	if dir := os.Getenv("PENSTOCK_SHARED"); dir != "" {
		return filepath.Join(dir, "seeds")
	}
	wd, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(wd, "..", "..", "..", "..", "shared", "seeds")
}

// shared reads a recording of a real deployment, or skips the rest of the test.
func shared(t *testing.T, name string, into any) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(sharedDir(t), name))
	if err != nil {
		t.Skipf("the recording is not here: %v", err)
	}
	if err := json.Unmarshal(b, into); err != nil {
		t.Fatal(err)
	}
}

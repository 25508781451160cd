package score

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"penstock/engine/local"
	"penstock/engine/local/localtest"
)

func options(url string, files ...string) Options {
	return Options{
		Files: files, Field: "text", BaseURL: url, Window: 2048, Context: 1, Batch: 8, Concurrency: 4,
		Timeout: 30 * time.Second, Zero: true, JSON: true,
	}
}

func noEnv(string) (string, bool) { return "", false }

// scored runs o and returns its report.
func scored(t *testing.T, o Options, stdin string) Report {
	t.Helper()
	var out bytes.Buffer
	if err := Run(t.Context(), o, noEnv, strings.NewReader(stdin), &out, io.Discard); err != nil {
		t.Fatal(err)
	}
	var r Report
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		t.Fatalf("%v in %s", err, out.Bytes())
	}
	return r
}

func file(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func sample() string {
	return strings.Repeat("The river falls through the gate and turns the wheel below. Água e luz, 日本.\n", 40)
}

// direct asks the engine for the log-probabilities of a whole text.
func direct(t *testing.T, url, text string) []float64 {
	t.Helper()
	body, _ := json.Marshal(map[string]any{"model": local.DefaultModel, "prompt": text, "echo": true, "logprobs": 0, "max_tokens": 0})
	resp, err := http.Post(url+"/v1/completions", "application/json", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var a completion
	if err := json.NewDecoder(resp.Body).Decode(&a); err != nil || len(a.Choices) != 1 {
		t.Fatalf("%v, %+v", err, a)
	}
	var lps []float64
	for _, lp := range a.Choices[0].Logprobs.TokenLogprobs[1:] {
		lps = append(lps, *lp)
	}
	return lps
}

func TestOneWindowIsTheSumOfTheEnginesOwnNumbers(t *testing.T) {
	url := localtest.URL(t, local.Options{})
	text := sample()[:400]
	sum := 0.0
	lps := direct(t, url, text)
	for _, lp := range lps {
		sum += lp
	}
	r := scored(t, options(url, "-"), text)
	if r.Total.Loglikelihood != sum || r.Total.Tokens != len(lps) || r.Unpredicted != 1 {
		t.Errorf("got %v over %d tokens, want %v over %d", r.Total.Loglikelihood, r.Total.Tokens, sum, len(lps))
	}
	if got, want := float64(r.Total.BytePerplexity), math.Exp(-sum/400); got != want {
		t.Errorf("byte perplexity: got %v, want %v", got, want)
	}
	if got, want := r.Total.BitsPerByte, -sum/400/math.Ln2; math.Abs(got-want) > 1e-12 {
		t.Errorf("bits per byte: got %v, want %v", got, want)
	}
}

func TestEveryTokenIsPredictedOnceFromEnoughBefore(t *testing.T) {
	ids := make([]int, 1000)
	for i := range ids {
		ids[i] = i
	}
	for _, c := range []struct{ n, size, context, prefix int }{
		{1000, 100, 1, -1}, {1000, 100, 50, -1}, {1000, 100, 99, 7777}, {100, 100, 1, -1}, {101, 100, 1, -1}, {99, 100, 1, 7777}, {100, 100, 1, 7777}, {2, 2, 1, -1}, {1, 100, 1, 7777}, {7, 2, 1, 7777},
	} {
		next := 1
		if c.prefix >= 0 {
			next = 0
		}
		for k, w := range rolling(ids[:c.n], c.size, c.context, c.prefix) {
			target := w.ids[len(w.ids)-w.count:]
			before := len(w.ids) - w.count
			if len(w.ids) > c.size || before < 1 || k > 0 && before < c.context || target[0] != next || target[len(target)-1] != next+w.count-1 {
				t.Errorf("%+v: window %d has %d tokens of which the last %d from %d on are predicted, expected from %d", c, k, len(w.ids), w.count, target[0], next)
			}
			next += w.count
		}
		if next != c.n {
			t.Errorf("%+v: tokens up to %d were predicted", c, next)
		}
	}
	if w := rolling(ids[:1], 100, 1, -1); w != nil {
		t.Errorf("one token: got %v, want no window", w)
	}
}

// TestWindowsAreTheHarnesses compares with the algorithm of lm-evaluation-harness, written down here from what
// it does: windows of size-1 predicted tokens, disjoint, each given the token before it, the last filled up.
func TestWindowsAreTheHarnesses(t *testing.T) {
	ids := make([]int, 253)
	for i := range ids {
		ids[i] = i
	}
	const size, prefix = 65, -5
	got := rolling(ids, size, 1, 9999)
	most := size - 1
	var want []window
	first := min(most, len(ids))
	want = append(want, window{ids: append([]int{9999}, ids[:first]...), count: first})
	for predicted := first; predicted < len(ids); {
		n := min(len(ids)-predicted, most)
		end := predicted + n
		want = append(want, window{ids: ids[end-most-1 : end], count: n})
		predicted = end
	}
	if !slices.EqualFunc(got, want, func(a, b window) bool { return slices.Equal(a.ids, b.ids) && a.count == b.count }) {
		t.Errorf("got %v\nwant %v", got, want)
	}
}

func TestWindowsAndBatchesChangeNothingButWhatTheyMust(t *testing.T) {
	url := localtest.URL(t, local.Options{})
	text := sample()
	one := options(url, "-")
	one.Window = 4096
	want := scored(t, one, text)
	o := options(url, "-")
	o.Window, o.Context = 256, 200
	got := scored(t, o, text)
	if got.Total.Tokens != want.Total.Tokens || math.Abs(got.Total.NLL/want.Total.NLL-1) > 0.01 {
		t.Errorf("windows: got %+v, want about %+v", got.Total, want.Total)
	}
	o.Batch, o.Concurrency = 3, 7
	if other := scored(t, o, text); other.Total != got.Total {
		t.Errorf("batches: got %+v, want %+v", other.Total, got.Total)
	}
	prefixed := options(url, "-")
	prefixed.Prefix = "0"
	if r := scored(t, prefixed, text); r.Unpredicted != 0 || r.Total.Tokens < want.Total.Tokens {
		t.Errorf("with a prefix: %+v", r)
	}
}

func TestARunThatIsStartedAgainGoesOnWhereItWas(t *testing.T) {
	var served, limit atomic.Int64
	limit.Store(3)
	inner := localtest.URL(t, local.Options{})
	front := proxy(t, inner, func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path == "/v1/completions" && served.Add(1) > limit.Load() {
			http.Error(w, `{"error":{"message":"out of order"}}`, http.StatusForbidden)
			return true
		}
		return false
	})
	o := options(front, "-")
	o.Window, o.Batch, o.Concurrency, o.Out = 64, 2, 1, filepath.Join(t.TempDir(), "out.jsonl")
	err := Run(t.Context(), o, noEnv, strings.NewReader(sample()), io.Discard, io.Discard)
	if err == nil || !strings.Contains(err.Error(), "HTTP 403: out of order") || !strings.Contains(err.Error(), "out.jsonl: the same command goes on") {
		t.Fatalf("got %v", err)
	}
	f, err := os.OpenFile(o.Out, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	kept, _ := os.ReadFile(o.Out)
	fmt.Fprint(f, `{"key":"half a li`)
	f.Close()
	limit.Store(1 << 40)
	before := served.Load()
	got := scored(t, o, sample())
	clean := o
	clean.Out = ""
	want := scored(t, clean, sample())
	if n := bytes.Count(kept, []byte("\n")); n < 3 || got.Kept != n || got.Total != want.Total {
		t.Errorf("got %d windows kept and %+v, want %d and %+v", got.Kept, got.Total, n, want.Total)
	}
	after := served.Load()
	again := scored(t, o, sample())
	if again.Total != want.Total || served.Load() != after || after == before {
		t.Errorf("a finished run asked %d times again", served.Load()-after)
	}
	o.Out = file(t, "notes.txt", "something else\n")
	if err := Run(t.Context(), o, noEnv, strings.NewReader(sample()), io.Discard, io.Discard); err == nil || !strings.Contains(err.Error(), "is no result of penstock score") {
		t.Errorf("a file of something else: %v", err)
	}
}

// proxy passes requests on to url unless before answers them.
func proxy(t *testing.T, url string, before func(w http.ResponseWriter, r *http.Request) bool) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if before(w, r) {
			return
		}
		req, err := http.NewRequestWithContext(r.Context(), r.Method, url+r.URL.Path, r.Body)
		if err != nil {
			t.Error(err)
			return
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		defer resp.Body.Close()
		w.WriteHeader(resp.StatusCode)
		_, _ = io.Copy(w, resp.Body)
	}))
	t.Cleanup(s.Close)
	return s.URL
}

func TestRefusalsForLoadAreTriedAgain(t *testing.T) {
	var n atomic.Int64
	front := proxy(t, localtest.URL(t, local.Options{}), func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path != "/v1/completions" || n.Add(1) > 2 {
			return false
		}
		w.Header().Set("Retry-After-Ms", "5")
		w.WriteHeader(http.StatusTooManyRequests)
		return true
	})
	o := options(front, "-")
	o.Retries, o.Concurrency = 2, 1
	if r := scored(t, o, sample()); r.Total.Tokens == 0 || n.Load() < 3 {
		t.Errorf("got %+v after %d requests", r.Total, n.Load())
	}
}

func TestAnEndpointThatRefusesToGenerateNothingIsAskedForOne(t *testing.T) {
	want := scored(t, options(localtest.URL(t, local.Options{}), "-"), sample())
	got := scored(t, options(localtest.URL(t, local.Options{Quirks: true}), "-"), sample())
	if got.Total != want.Total {
		t.Errorf("got %+v, want %+v", got.Total, want.Total)
	}
}

func TestAnAnswerWithoutThePromptIsAnError(t *testing.T) {
	for answer, reason := range map[string]string{
		`{"choices":[{"index":0,"logprobs":{"token_logprobs":[-1.5]}}]}`: "1 log-probabilities for",
		`{"choices":[{"index":0,"logprobs":null}]}`:                      "has no logprobs",
		`{"choices":[]}`: "0 choices for 1 prompts",
		`{"choices":[{"index":0,"logprobs":{"token_logprobs":[null,null,NaN]}}]}`: "unusable answer",
		`<html>`: "unusable answer",
	} {
		front := proxy(t, localtest.URL(t, local.Options{}), func(w http.ResponseWriter, r *http.Request) bool {
			if r.URL.Path != "/v1/completions" {
				return false
			}
			fmt.Fprint(w, answer)
			return true
		})
		o := options(front, "-")
		o.Retries = 3
		err := Run(t.Context(), o, noEnv, strings.NewReader("One two three four."), io.Discard, io.Discard)
		if !errors.Is(err, errBad) || !strings.Contains(err.Error(), reason) {
			t.Errorf("%s: got %v, want an error that says %s", answer, err, reason)
		}
	}
}

func TestTextsComeFromFilesLinesAndCompressedOnes(t *testing.T) {
	url := localtest.URL(t, local.Options{})
	var z bytes.Buffer
	w := gzip.NewWriter(&z)
	fmt.Fprint(w, "{\"body\":\"One two.\"}\n\n\"Three  four five.\"\n{\"body\":\"Six.\"}")
	w.Close()
	o := options(url, file(t, "a.txt", "Plain text here.\n"), file(t, "b.jsonl.gz", z.String()))
	o.Field = "body"
	r := scored(t, o, "")
	var got []string
	for _, d := range r.Documents {
		got = append(got, fmt.Sprintf("%s %d/%d", filepath.Base(d.Document), d.Words, d.Bytes))
	}
	if s := strings.Join(got, ", "); s != "a.txt 4/17, b.jsonl.gz:1 2/8, b.jsonl.gz:3 3/17, b.jsonl.gz:4 1/4" {
		t.Errorf("got %s", s)
	}
	o.Field = "text"
	if err := Run(t.Context(), o, noEnv, nil, io.Discard, io.Discard); err == nil || !strings.Contains(err.Error(), `b.jsonl.gz:1: no field "text"`) {
		t.Errorf("a field that is not there: %v", err)
	}
}

func TestOnlyUTF8IsScored(t *testing.T) {
	url := localtest.URL(t, local.Options{})
	for name, text := range map[string]string{"a.txt": "caf\xe9 au lait", "a.jsonl": "\"one\"\n{\"text\":\"caf\xe9\"}\n"} {
		err := Run(t.Context(), options(url, file(t, name, text)), noEnv, nil, io.Discard, io.Discard)
		if !errors.Is(err, errEncoding) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s in Latin-1: got %v", name, err)
		}
	}
	const mark = "\ufeff"
	for name, text := range map[string]string{"b.txt": mark + "One two.", "b.jsonl": mark + "\"One two.\"\n"} {
		if r := scored(t, options(url, file(t, name, text)), ""); r.Total.Bytes != 8 || r.Total.Words != 2 {
			t.Errorf("%s with a byte order mark: got %+v, want the 8 bytes and 2 words after it", name, r.Total)
		}
	}
}

func TestATextOfOneTokenChangesNoFigure(t *testing.T) {
	url := localtest.URL(t, local.Options{})
	with := scored(t, options(url, file(t, "a.jsonl", "\"One two three.\"\n\"x\"\n")), "")
	without := scored(t, options(url, file(t, "a.jsonl", "\"One two three.\"\n")), "")
	if with.Total != without.Total || with.Unpredicted != 2 || len(with.Documents) != 2 {
		t.Errorf("got %+v, want %+v", with, without)
	}
}

func TestAPerplexityBeyondNumbersIsNull(t *testing.T) {
	r := scored(t, options(localtest.URL(t, local.Options{}), "-"), strings.Repeat("水轉動輪子", 100)) // one word of 1,500 tokens
	if r.Total.Tokens != 1499 || r.Total.WordPerplexity != 0 || r.Total.BitsPerByte <= 0 {
		t.Errorf("got %+v, want all figures but that per word", r.Total)
	}
}

func TestResultsAreOfOneEndpointAndInARegularFile(t *testing.T) {
	url := localtest.URL(t, local.Options{})
	o := options(url, "-")
	o.Out = filepath.Join(t.TempDir(), "out.jsonl")
	scored(t, o, sample())
	o.BaseURL = url + "/v1/"
	if r := scored(t, o, sample()); r.Kept == 0 {
		t.Error("the same endpoint, written otherwise, was asked again")
	}
	o.BaseURL = localtest.URL(t, local.Options{})
	if r := scored(t, o, sample()); r.Kept != 0 {
		t.Errorf("another endpoint's report has %d windows of the first", r.Kept)
	}
	o.Out = os.DevNull
	if err := Run(t.Context(), o, noEnv, strings.NewReader(sample()), io.Discard, io.Discard); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("a device: got %v", err)
	}
}

func TestPiecesOfTextNeedNoTokenizer(t *testing.T) {
	front := proxy(t, localtest.URL(t, local.Options{}), func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path == "/tokenize" {
			http.NotFound(w, r)
			return true
		}
		return false
	})
	o := options(front, "-")
	if err := Run(t.Context(), o, noEnv, strings.NewReader(sample()), io.Discard, io.Discard); err == nil || !strings.Contains(err.Error(), "--text-bytes") {
		t.Errorf("without: got %v, want it to name --text-bytes", err)
	}
	o.TextBytes = 500
	if r := scored(t, o, sample()); r.Total.Tokens < 500 || r.Total.Bytes != len(sample()) {
		t.Errorf("got %+v", r.Total)
	}
	for _, text := range []string{sample(), strings.Repeat("é", 100), "a", strings.Repeat(" ", 100)} {
		all := ""
		for _, w := range pieces(text, 33) {
			if len(w.text) == 0 || len(w.text) > 33 {
				t.Errorf("piece %q of %q", w.text, text)
			}
			all += w.text
		}
		if all != text {
			t.Errorf("pieces of %q make %q", text, all)
		}
	}
}

func TestTheTableNamesEveryFigure(t *testing.T) {
	o := options(localtest.URL(t, local.Options{}), "-")
	o.JSON = false
	var out bytes.Buffer
	if err := Run(t.Context(), o, noEnv, strings.NewReader(sample()), &out, io.Discard); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"nll/token", "ppl/word", "ppl/byte", "bits/byte", "model penstock-local, windows of 2048 tokens", "--prefix"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the table lacks %q:\n%s", want, out.String())
		}
	}
}

func TestOptionsThatCannotBe(t *testing.T) {
	for want, change := range map[string]func(*Options){
		"no files":   func(o *Options) { o.Files = nil },
		"--window":   func(o *Options) { o.Window = 1 },
		"--context":  func(o *Options) { o.Context = 2048 },
		"--batch":    func(o *Options) { o.Batch = 0 },
		"--base-url": func(o *Options) { o.BaseURL = "localhost:8080" },
		"--prefix":   func(o *Options) { o.Prefix, o.TextBytes = "0", 100 },
	} {
		o := options("http://127.0.0.1:1/v1", "-")
		change(&o)
		if err := o.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want an error about %s", err, want)
		}
	}
}

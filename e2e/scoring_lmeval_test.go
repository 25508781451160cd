package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"penstock/e2e/harness"
	"penstock/engine/local/lm"
)

// evalWay is one way in which the harness asks.
type evalWay struct {
	Tokenized  bool     `json:"tokenized"`
	Concurrent int      `json:"concurrent"`
	Batch      int      `json:"batch"`
	MaxLength  int      `json:"max_length"`
	Tasks      []string `json:"tasks"`
}

// evalReport is what e2e/clients/lmeval/evaluate.py prints for each of them.
type evalReport struct {
	Samples     map[string][][]evalScore      `json:"samples"`
	Results     map[string]map[string]float64 `json:"results"`
	Compensated bool                          `json:"compensated"`
}

type evalScore struct {
	LogLikelihood float64 `json:"loglikelihood"`
	Greedy        *bool   `json:"greedy"`
}

// evalQuestion is one document of the multiple-choice task.
type evalQuestion struct {
	Question string   `json:"question"`
	Choices  []string `json:"choices"`
	Answer   int      `json:"answer"`
}

const (
	rollingTask   = "penstock_rolling"
	choiceTask    = "penstock_choice"
	evalMaxLength = 200
)

const evalTask = `task: %s
dataset_path: json
dataset_kwargs: {data_files: {test: %q}}
test_split: test
metadata: {version: 1.0}
`

const rollingYAML = `output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{text}}"
metric_list: [{metric: word_perplexity}, {metric: byte_perplexity}, {metric: bits_per_byte}]
`

const choiceYAML = `output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: "{{choices}}"
doc_to_target: "{{answer}}"
metric_list: [{metric: acc}, {metric: acc_norm}]
`

// evalData writes two tasks and their documents.
func evalData(t *testing.T) (dir string, texts []string, questions []evalQuestion) {
	t.Helper()
	texts = []string{
		"The water turns the wheel.", proseText(1, 90), proseText(2, 1500), proseText(3, 4000),
		"Água corre, 水が流れる, вода течёт, 😀 and\ttabs\nand \"quotes\" \\ and   spaces. " + proseText(4, 40),
	}
	known := strings.Fields(lm.Text())
	for i := range 40 {
		at := 31 + 97*i
		q := evalQuestion{Question: strings.Join(known[at:at+20+i], " "), Answer: i % 4}
		for c := range 4 {
			q.Choices = append(q.Choices, strings.Join(known[at+500*c:][:1+(i+c)%5], " "))
		}
		q.Choices[q.Answer] = strings.Join(known[at+20+i:][:1+i%5], " ")
		questions = append(questions, q)
	}
	dir = t.TempDir()
	write := func(name string, b []byte) {
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var docs bytes.Buffer
	for _, text := range texts {
		fmt.Fprintf(&docs, "%s\n", encode(t, map[string]string{"text": text}))
	}
	write("rolling.jsonl", docs.Bytes())
	docs.Reset()
	for _, q := range questions {
		fmt.Fprintf(&docs, "%s\n", encode(t, q))
	}
	write("choice.jsonl", docs.Bytes())
	write("rolling.yaml", fmt.Appendf(nil, evalTask+rollingYAML, rollingTask, filepath.Join(dir, "rolling.jsonl")))
	write("choice.yaml", fmt.Appendf(nil, evalTask+choiceYAML, choiceTask, filepath.Join(dir, "choice.jsonl")))
	return dir, texts, questions
}

// TestLMEvaluationHarnessIsExact runs lm-evaluation-harness through the gateway on four replicas, with token ids and
// with strings, one request at a time and 32 of 16 prompts each, and compares each number with the model's own.
func TestLMEvaluationHarnessIsExact(t *testing.T) {
	python := harness.Python(t, client("lmeval", "requirements.txt"))
	dir, texts, questions := evalData(t)
	gateway := harness.Serve(t, "models: [{name: penstock-local, engines: [{local: {replicas: 4, profile: instant}}]}]\nscoring: {split_tokens: 512}\nlog: {access: false}\n")
	var ways []evalWay
	for _, tokenized := range []bool{true, false} {
		for _, n := range [][2]int{{1, 1}, {32, 16}} {
			ways = append(ways, evalWay{tokenized, n[0], n[1], evalMaxLength, []string{rollingTask, choiceTask}})
		}
	}
	reports := runEval(t, python, gateway.URL, dir, ways)
	if len(reports) != len(ways) {
		t.Fatalf("%d reports, want %d", len(reports), len(ways))
	}
	for i, r := range reports {
		w := ways[i]
		t.Run(fmt.Sprintf("ids=%v,concurrent=%d,batch=%d", w.Tokenized, w.Concurrent, w.Batch), func(t *testing.T) {
			e := expectation{sum: pythonSum(r.Compensated), strings: !w.Tokenized}
			e.checkRolling(t, r, texts)
			e.checkChoices(t, r, questions)
		})
	}
	served := requestsByReplica(t, gateway)
	for id, n := range served {
		if n < 20 {
			t.Errorf("replica %s took %d requests, want a share of all: %v", id, n, served)
		}
	}
	wantAtRest(t, gateway)
}

// runEval runs the harness and reads its reports.
func runEval(t *testing.T, python, url, dir string, ways []evalWay) (reports []evalReport) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), python, client("lmeval", "evaluate.py"), url, dir, string(encode(t, ways)))
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "HF_HOME="+filepath.Join(dir, "hf"), "HF_HUB_OFFLINE=1", "HF_DATASETS_OFFLINE=1", "OPENAI_API_KEY=")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("lm-eval: %v\n%s", err, lastOf(stderr.String(), 4000))
	}
	lines := bufio.NewScanner(bytes.NewReader(out))
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var r evalReport
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			t.Fatalf("%v in %.300s", err, lines.Bytes())
		}
		reports = append(reports, r)
	}
	return reports
}

func lastOf(s string, n int) string { return s[max(0, len(s)-n):] }

// pythonSum adds floats as Python's sum() does: since 3.12 with a compensation (Neumaier's).
func pythonSum(compensated bool) func([]float64) float64 {
	return func(xs []float64) float64 {
		hi, lo := 0.0, 0.0
		for _, x := range xs {
			t := hi + x
			if compensated {
				if math.Abs(hi) >= math.Abs(x) {
					lo += (hi - t) + x
				} else {
					lo += (x - t) + hi
				}
			}
			hi = t
		}
		return hi + lo
	}
}

// expectation is what the harness must find, computed from the model alone.
type expectation struct {
	sum     func([]float64) float64
	strings bool // the harness sends texts, which the engine cuts into tokens again
}

// score is the sum over what follows the context, and whether it is greedy.
func (e *expectation) score(context, continuation []uint32) (float64, bool) {
	tokens := slices.Concat(context, continuation)
	tokens = tokens[max(0, len(tokens)-(evalMaxLength-1)):]
	from := len(tokens) - len(continuation)
	if e.strings {
		tokens = ids(spelled(tokens))
	}
	return e.sum(logprobs(tokens)[from:]), greedy(tokens, from)
}

// rolling is a text's log-likelihood from disjoint windows, each with one token of context.
func (e *expectation) rolling(text string) float64 {
	const window = evalMaxLength - 2
	tokens := ids(text)
	prefix := lm.EndTurn
	var parts []float64
	for at := 0; at < len(tokens); {
		end := min(len(tokens), at+window)
		context := []uint32{prefix}
		if at > 0 {
			// What came before, as far as the window reaches: the last window is filled up with it.
			context = tokens[end-window-1 : at]
		}
		ll, _ := e.score(context, tokens[at:end])
		parts = append(parts, ll)
		at = end
	}
	return e.sum(parts)
}

func (e *expectation) checkRolling(t *testing.T, r evalReport, texts []string) {
	t.Helper()
	got := r.Samples[rollingTask]
	if len(got) != len(texts) {
		t.Fatalf("%d documents of %s, want %d", len(got), rollingTask, len(texts))
	}
	var lls, words, size []float64
	for i, text := range texts {
		want := e.rolling(text)
		if got[i][0].LogLikelihood != want {
			t.Errorf("text %d (%.30q…): got %v, the model's own %v", i, text, got[i][0].LogLikelihood, want)
		}
		lls = append(lls, want)
		words = append(words, float64(len(strings.Fields(text))))
		size = append(size, float64(len(text)))
	}
	total := e.sum(lls)
	results := r.Results[rollingTask]
	if got, want := results["bits_per_byte,none"], -(total/e.sum(size))/math.Ln2; got != want {
		t.Errorf("bits_per_byte: got %v, want %v", got, want)
	}
	// exp() of Python's C library and Go's may differ in the last bit.
	for name, per := range map[string]float64{"word_perplexity,none": e.sum(words), "byte_perplexity,none": e.sum(size)} {
		if got, want := results[name], math.Exp(-(total / per)); math.Abs(got-want) > 2*(math.Nextafter(want, math.Inf(1))-want) {
			t.Errorf("%s: got %v, want %v", name, got, want)
		}
	}
}

func (e *expectation) checkChoices(t *testing.T, r evalReport, questions []evalQuestion) {
	t.Helper()
	got := r.Samples[choiceTask]
	if len(got) != len(questions) {
		t.Fatalf("%d documents of %s, want %d", len(got), choiceTask, len(questions))
	}
	right, rightNorm := 0, 0
	for i, q := range questions {
		var lls, norm []float64
		for c, choice := range q.Choices {
			// The harness encodes context and continuation together, and takes the context's tokens off.
			all, context := ids(q.Question+" "+choice), ids(q.Question)
			want, isGreedy := e.score(context, all[len(context):])
			if g := got[i][c]; g.LogLikelihood != want || g.Greedy == nil || *g.Greedy != isGreedy {
				t.Errorf("question %d, choice %q: got %v greedy %v, the model's own %v %v", i, choice, g.LogLikelihood, g.Greedy, want, isGreedy)
			}
			lls, norm = append(lls, want), append(norm, want/float64(len(choice)))
		}
		if first(lls) == q.Answer {
			right++
		}
		if first(norm) == q.Answer {
			rightNorm++
		}
	}
	n := float64(len(questions))
	if got, want := r.Results[choiceTask]["acc,none"], float64(right)/n; got != want {
		t.Errorf("acc: got %v, want %v", got, want)
	}
	if got, want := r.Results[choiceTask]["acc_norm,none"], float64(rightNorm)/n; got != want {
		t.Errorf("acc_norm: got %v, want %v", got, want)
	}
	if right == 0 || right == len(questions) {
		t.Errorf("%d of %d right: a task that tells nothing", right, len(questions))
	}
}

// first is the index of the greatest.
func first(xs []float64) int { return slices.Index(xs, slices.Max(xs)) }

package engines

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"penstock/e2e/harness"
)

// The clients that come with engines and evals, each run as its users run it.

func vllmBench(t *testing.T, gateway *harness.Process, venv, dir string) {
	for backend, endpoint := range map[string]string{"openai-chat": "/v1/chat/completions", "openai": "/v1/completions"} {
		out := run(t, 5*time.Minute, filepath.Join(venv, "bin", "vllm"), "bench", "serve", "--backend", backend, "--base-url", gateway.URL,
			"--endpoint", endpoint, "--model", modelName, "--tokenizer", dir, "--dataset-name", "random", "--random-input-len", "128",
			"--random-output-len", "16", "--random-prefix-len", "256", "--num-prompts", "20", "--request-rate", "10", "--max-concurrency", "4")
		if !regexp.MustCompile(`Successful requests:\s+20\b`).MatchString(out) {
			t.Errorf("%s: not 20 successful requests:\n%s", backend, out)
		}
	}
}

// lmEval runs the real harness, and compares its figures through the gateway
// with those from the engine itself.
func lmEval(t *testing.T, gateway *harness.Process, direct *engine, dir string) {
	harnessCommand := command(t, "LM_EVAL", "lm-eval", "lm_eval", "setup-lm-eval.sh")
	tasks := t.TempDir()
	for name, text := range map[string]string{
		"numbers.jsonl": `{"q":"Two and two is","c":["four","five"],"a":0}` + "\n" + `{"q":"Water flows","c":["up","down"],"a":1}` + "\n",
		"numbers.yaml": `task: numbers
dataset_path: json
dataset_kwargs: {data_files: {test: ` + filepath.Join(tasks, "numbers.jsonl") + `}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{q}}"
doc_to_choice: "{{c}}"
doc_to_target: "{{a}}"
metric_list: [{metric: acc}]
`,
	} {
		if err := os.WriteFile(filepath.Join(tasks, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	results := map[string]string{}
	for name, url := range map[string]string{"direct": direct.url, "through": gateway.URL} {
		out := run(t, 5*time.Minute, harnessCommand, "--model", "local-completions", "--model_args",
			"base_url="+url+"/v1/completions,model="+modelName+",tokenizer="+dir+",tokenized_requests=True,num_concurrent=4,max_length=2048",
			"--include_path", tasks, "--tasks", "numbers")
		results[name] = strings.Join(regexp.MustCompile(`(?m)^\|.*\|$`).FindAllString(out, -1), "\n")
	}
	if results["direct"] != results["through"] || results["through"] == "" {
		t.Errorf("direct\n%s\nthrough\n%s", results["direct"], results["through"])
	}
}

// sglangBench runs SGLang's own load generator through the gateway, with each
// of the three routes that it knows.
func sglangBench(t *testing.T, gateway *harness.Process, venv, dir string) {
	t.Setenv("PYTHONPATH", script("sglshim"))
	t.Setenv("SGLANG_USE_CPU_ENGINE", "0")
	for _, backend := range []string{"sglang-oai-chat", "sglang-oai", "sglang"} {
		out := run(t, 3*time.Minute, filepath.Join(venv, "bin", "python"), "-m", "sglang.bench_serving", "--backend", backend,
			"--base-url", gateway.URL, "--model", modelName, "--tokenizer", dir, "--dataset-name", "random-ids", "--random-input-len", "128",
			"--random-output-len", "16", "--num-prompts", "10", "--request-rate", "10", "--max-concurrency", "4",
			"--output-file", filepath.Join(t.TempDir(), "bench.jsonl"))
		if !regexp.MustCompile(`Successful requests:\s+10\b`).MatchString(out) {
			t.Errorf("%s: not 10 successful requests:\n%s", backend, out)
		}
	}
}

// guideLLM runs guidellm through the gateway and reads its own report.
func guideLLM(t *testing.T, gateway *harness.Process, dir string) {
	program := command(t, "GUIDELLM", "guidellm", "guidellm", "setup-guidellm.sh")
	path := filepath.Join(t.TempDir(), "report.json")
	out := run(t, 5*time.Minute, program, "run", "--backend", "kind=openai_http,target="+gateway.URL+",model="+modelName,
		"--profile", "kind=concurrent,streams=4", "--constraint", "kind=max_requests,count=12",
		"--tokenizer", "kind=huggingface_auto,model="+dir, "--data", "kind=synthetic_text,prompt_tokens=128,output_tokens=16",
		"--disable-progress", "--output", "kind=json,path="+path)
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var report struct {
		Benchmarks []struct {
			Requests struct {
				Successful []struct {
					Output int `json:"output_tokens"`
				}
				Errored, Incomplete []json.RawMessage
			}
		}
	}
	if err := json.Unmarshal(text, &report); err != nil || len(report.Benchmarks) != 1 {
		t.Fatalf("%d benchmarks (%v), want one:\n%s", len(report.Benchmarks), err, out)
	}
	got := report.Benchmarks[0].Requests
	if len(got.Successful) != 12 || len(got.Errored)+len(got.Incomplete) != 0 {
		t.Errorf("%d successful, %d errored, %d incomplete requests, want 12 successful:\n%s",
			len(got.Successful), len(got.Errored), len(got.Incomplete), out)
	}
	for i, r := range got.Successful {
		if r.Output != 16 {
			t.Errorf("request %d: %d output tokens, want 16", i, r.Output)
		}
	}
}

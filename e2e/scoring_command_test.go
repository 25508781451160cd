package e2e

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"penstock/e2e/harness"
)

// scoreReport is what the tests read of penstock score --json.
type scoreReport struct {
	Kept      int `json:"windows_kept"`
	Documents []struct {
		Tokens        int     `json:"tokens"`
		Loglikelihood float64 `json:"loglikelihood"`
	} `json:"documents"`
}

// TestPenstockScoreIsExactAndResumes: each document's log-likelihood is the model's own to the last bit, and a run whose
// file of results was cut off goes on from what it has.
func TestPenstockScoreIsExactAndResumes(t *testing.T) {
	const window = 256
	gateway := harness.Serve(t, "")
	dir := t.TempDir()
	args := []string{"score", "--base-url", gateway.URL, "--window", "256", "--prefix", "<|endoftext|>", "--json", "--out", filepath.Join(dir, "results.jsonl")}
	var texts []string
	for i, words := range []int{8, 150, 3000} {
		texts = append(texts, proseText(i, words))
		path := filepath.Join(dir, string(rune('a'+i))+".txt")
		if err := os.WriteFile(path, []byte(texts[i]), 0o600); err != nil {
			t.Fatal(err)
		}
		args = append(args, path)
	}
	check := func(what string, kept func(n int) bool) {
		t.Helper()
		out, stderr, code := harness.Run(t, args...)
		if code != 0 {
			t.Fatalf("%s: exit code %d\n%s", what, code, stderr)
		}
		r := decode[scoreReport](t, []byte(out))
		if !kept(r.Kept) || len(r.Documents) != len(texts) {
			t.Fatalf("%s: %d windows kept, %d documents", what, r.Kept, len(r.Documents))
		}
		for i, text := range texts {
			tokens, want := ids("<|endoftext|>"+text), 0.0
			for at := 1; at < len(tokens); {
				end := min(len(tokens), max(at-1, 0)+window)
				if at > 1 { // each later window predicts all but its one token of context
					end = min(len(tokens), at+window-1)
				}
				begin, sum := max(0, end-window), 0.0
				for _, lp := range logprobs(tokens[begin:end])[at-begin:] {
					sum += lp
				}
				want += sum
				at = end
			}
			if d := r.Documents[i]; d.Loglikelihood != want || d.Tokens != len(tokens)-1 {
				t.Errorf("%s: document %d: got %v over %d tokens, the model's own %v over %d", what, i, d.Loglikelihood, d.Tokens, want, len(tokens)-1)
			}
		}
	}
	check("at first", func(n int) bool { return n == 0 })
	file := filepath.Join(dir, "results.jsonl")
	results := readFile(t, file)
	if n := bytes.Count(results, []byte("\n")); n < 5 {
		t.Fatalf("%d windows in the file, want several", n)
	}
	cut := len(results) / 2 // within a line, as a killed run leaves it
	if err := os.WriteFile(file, results[:cut], 0o600); err != nil {
		t.Fatal(err)
	}
	want := bytes.Count(results[:cut], []byte("\n"))
	check("resumed", func(n int) bool { return n == want })
	check("again", func(n int) bool { return n == bytes.Count(results, []byte("\n")) })
}

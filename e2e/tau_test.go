package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"testing"

	"penstock/e2e/harness"
)

func encode(t *testing.T, v any) []byte {
	t.Helper()
	raw, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// TestRealDialogues plays the tau-bench dialogues with the Python SDK, eight at
// a time, under the default policy and under round robin.
func TestRealDialogues(t *testing.T) {
	trace := harness.Shared(t, "traces/tau_airline_sessions.jsonl.gz")
	python := harness.Python(t, client("python", "requirements.txt"))
	sessions := 200
	if harness.Race || testing.Short() {
		sessions = 40 // the same promise, in the time that there is
	}
	rates := map[string]float64{}
	for _, policy := range []string{"prefix", "round_robin"} {
		if policy == "round_robin" {
			sessions = min(sessions, 60) // it is far enough behind for fewer to tell
		}
		gateway := harness.Serve(t, fmt.Sprintf(
			"models: [{name: penstock-local, policy: %s, engines: [{local: {replicas: 4, profile: instant}}]}]", policy))
		cmd := exec.CommandContext(t.Context(), python, client("python", "sessions.py"), trace, strconv.Itoa(sessions), "8")
		cmd.Env = append(os.Environ(), "BASE_URL="+gateway.URL+"/v1", "MODEL="+localModel)
		cmd.Stderr = os.Stderr
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%v: %v", cmd.Args, err)
		}
		got := decode[struct {
			Requests, Prompt, Cached int
			Failed                   []string
		}](t, out)
		if len(got.Failed) > 0 || got.Requests == 0 {
			t.Errorf("%s: %d requests answered, %d not: %.500q", policy, got.Requests, len(got.Failed), got.Failed)
		}
		rates[policy] = float64(got.Cached) / float64(got.Prompt)
		t.Logf("%-11s %5d requests, %9d prompt tokens, hit rate %.1f %%", policy, got.Requests, got.Prompt, 100*rates[policy])
		gateway.Stop()
	}
	if rates["prefix"] <= rates["round_robin"] {
		t.Errorf("hit rate of prefix %.3f, of round_robin %.3f: want it higher", rates["prefix"], rates["round_robin"])
	}
}

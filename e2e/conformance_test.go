package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"penstock/e2e/harness"
	"penstock/e2e/scripted"
)

// conformanceConfig serves the local model and the scripted one, with keys that
// are open, restricted or limited.
const conformanceConfig = `
models:
  - name: penstock-local
    engines: [{local: {replicas: 2, profile: instant}}]
  - name: org/scripted
    engines: [{url: %q, kind: openai}]
keys:
  - {name: full, key: "${KEY_FULL}"}
  - {name: local-only, key: "${KEY_LOCAL_ONLY}", models: [penstock-local]}
  - {name: limited, key: "${KEY_LIMITED}", limits: {requests_per_minute: 6000, tokens_per_minute: 6000000}}
  - {name: one-a-second, key: "${KEY_ONE_A_SECOND}", limits: {requests_per_minute: 60, requests_burst: 1}}
  - {name: one-a-minute, key: "${KEY_ONE_A_MINUTE}", limits: {requests_per_minute: 1, requests_burst: 1}}
`

// setKeys puts the keys of conformanceConfig into the environment.
func setKeys(t *testing.T) {
	t.Helper()
	for name, key := range map[string]string{
		"KEY_FULL": "key-full", "KEY_LOCAL_ONLY": "key-local-only", "KEY_LIMITED": "key-limited",
		"KEY_ONE_A_SECOND": "key-one-a-second", "KEY_ONE_A_MINUTE": "key-one-a-minute",
	} {
		t.Setenv(name, key)
	}
}

// conformance starts a gateway before both models, and returns what a client
// script needs to know of them.
func conformance(t *testing.T) (gateway *harness.Process, up *scripted.Upstream, env []string) {
	t.Helper()
	setKeys(t)
	up = scripted.Start(t)
	gateway = harness.Serve(t, fmt.Sprintf(conformanceConfig, up.URL))
	return gateway, up, []string{"BASE_URL=" + gateway.URL + "/v1", "UPSTREAM=" + up.URL}
}

func client(parts ...string) string {
	return filepath.Join(append([]string{harness.Root(), "e2e", "clients"}, parts...)...)
}

func TestPythonSDK(t *testing.T) {
	python := harness.Python(t, client("python", "requirements.txt"))
	_, _, env := conformance(t)
	harness.RunCases(t, 30, env, python, client("python", "conformance.py"))
}

func TestNodeSDK(t *testing.T) {
	node, dir := harness.Node(t, client("node", "package.json"))
	_, _, env := conformance(t)
	harness.RunCases(t, 25, append(env, "MODULES="+dir), node, installed(t, dir, client("node", "conformance.mjs"), client("node", "report.mjs")))
}

func TestVercelAISDK(t *testing.T) {
	node, dir := harness.Node(t, client("node", "package.json"))
	_, _, env := conformance(t)
	harness.RunCases(t, 1, env, node, installed(t, dir, client("node", "vercel.mjs"), client("node", "report.mjs")))
}

func TestLangChainAndLlamaIndex(t *testing.T) {
	python := harness.Python(t, client("frameworks", "requirements.txt"))
	_, _, env := conformance(t)
	harness.RunCases(t, 2, env, python, client("frameworks", "frameworks.py"))
}

// installed copies modules beside their packages, which is where Node looks
// for them, and returns the first one's new path.
func installed(t *testing.T, dir string, modules ...string) string {
	t.Helper()
	for _, module := range modules {
		text, err := os.ReadFile(module)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, filepath.Base(module)), text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Join(dir, filepath.Base(modules[0]))
}

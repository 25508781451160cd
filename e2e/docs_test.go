package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"penstock/e2e/harness"
)

// snippets are the fenced blocks of one language in a document.
func snippets(t *testing.T, document, language string) []string {
	t.Helper()
	text := readFile(t, filepath.Join(harness.Root(), document))
	var found []string
	for _, m := range regexp.MustCompile("(?s)```"+language+"\n(.*?)```").FindAllSubmatch(text, -1) {
		found = append(found, string(m[1]))
	}
	if len(found) == 0 {
		t.Fatalf("%s has no %s snippet", document, language)
	}
	return found
}

// TestSnippetsRun runs what README and docs tell people to run, against a
// gateway without a configuration, on its port instead of 8080.
func TestSnippetsRun(t *testing.T) {
	gateway := harness.Serve(t, "")
	run := func(t *testing.T, code, name string, program ...string) {
		t.Helper()
		code = strings.ReplaceAll(code, "http://127.0.0.1:8080", gateway.URL)
		if err := os.WriteFile(name, []byte(code), 0o600); err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), program[0], append(program[1:], name)...)
		cmd.Dir = harness.Root()
		out, err := cmd.CombinedOutput()
		if err != nil || len(strings.TrimSpace(string(out))) == 0 {
			t.Errorf("%v\nwrote %q: %v, want an answer", code, out, err)
		}
	}
	t.Run("python", func(t *testing.T) {
		python := harness.Python(t, client("python", "requirements.txt"))
		for _, code := range append(snippets(t, "README.md", "python"), snippets(t, "docs/clients.md", "python")...) {
			run(t, code, filepath.Join(t.TempDir(), "snippet.py"), python)
		}
	})
	t.Run("node", func(t *testing.T) {
		node, dir := harness.Node(t, client("node", "package.json"))
		for _, code := range snippets(t, "docs/clients.md", "js") {
			run(t, code, filepath.Join(dir, "snippet.mjs"), node)
		}
	})
	t.Run("go", func(t *testing.T) {
		for _, code := range snippets(t, "docs/clients.md", "go") {
			run(t, code, filepath.Join(t.TempDir(), "snippet.go"), "go", "run")
		}
	})
}

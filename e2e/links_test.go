package e2e

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"penstock/e2e/harness"
)

// TestLinksLead checks that what the documents point at is there.
func TestLinksLead(t *testing.T) {
	documents, err := filepath.Glob(filepath.Join(harness.Root(), "docs", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, document := range append(documents, filepath.Join(harness.Root(), "README.md")) {
		for _, m := range regexp.MustCompile(`\]\(([^)#:]+)(#[^)]*)?\)`).FindAllSubmatch(readFile(t, document), -1) {
			target := filepath.Join(filepath.Dir(document), string(m[1]))
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s points at %s, which is not there", filepath.Base(document), m[1])
			}
		}
	}
}

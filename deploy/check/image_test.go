package check

import (
	"bufio"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/moby/buildkit/client/llb"
	"github.com/moby/buildkit/client/llb/sourceresolver"
	"github.com/moby/buildkit/frontend/dockerfile/dockerfile2llb"
	"github.com/moby/buildkit/frontend/dockerui"
	"github.com/opencontainers/go-digest"
)

const root = "../.."

// noRegistry stands in for the registry: the base images' own settings matter
// to no rule.
type noRegistry struct{}

func (noRegistry) ResolveImageConfig(_ context.Context, ref string, _ sourceresolver.Opt) (string, digest.Digest, []byte, error) {
	return ref, "", []byte(`{"architecture":"amd64","os":"linux"}`), nil
}

// lint runs the checks that docker build --check runs.
func lint(t *testing.T, text []byte) []string {
	t.Helper()
	source := llb.NewSourceMap(nil, "Dockerfile", "Dockerfile", text)
	source.Definition = &llb.Definition{} // it comes from no build context
	results, err := dockerfile2llb.DockerfileLint(t.Context(), text, dockerfile2llb.ConvertOpt{
		Config:       dockerui.Config{},
		SourceMap:    source,
		MetaResolver: noRegistry{},
	})
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	if results.Error != nil {
		found = append(found, results.Error.Message)
	}
	for _, w := range results.Warnings {
		found = append(found, w.RuleName+": "+w.Detail)
	}
	return found
}

func TestDockerfileHasNoFindings(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "Dockerfile"))
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range lint(t, text) {
		t.Errorf("Dockerfile: %s", line)
	}
	if found := lint(t, []byte("from scratch AS Stage\nCMD run me\n")); len(found) < 2 {
		t.Errorf("the linter finds only %q in a Dockerfile with three faults", found)
	}
}

// What the build copies must be in its context, or the image cannot be built.
func TestDockerContextHasEveryPackage(t *testing.T) {
	f, err := os.Open(filepath.Join(root, ".dockerignore"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	sent := map[string]bool{}
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if name, ok := strings.CutPrefix(lines.Text(), "!"); ok {
			sent[name] = true
		}
	}
	folders, err := filepath.Glob(filepath.Join(root, "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, folder := range folders {
		name := filepath.Base(folder)
		code, err := filepath.Glob(filepath.Join(folder, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		if len(code) > 0 && name != "e2e" && !sent[name] {
			t.Errorf(".dockerignore keeps the package %s out of the image's build", name)
		}
	}
	if !sent["go.mod"] || !sent["cmd"] {
		t.Errorf(".dockerignore sends only %v", sent)
	}
}

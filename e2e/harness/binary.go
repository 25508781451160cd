package harness

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
)

// Race reports whether tests and binary run under the race detector, which
// makes both several times slower: bounds on times are no promise then.
const Race = raceDetector

// Root is the project's folder.
func Root() string {
	_, file, _, ok := runtime.Caller(0)
	if !ok {
		return "."
	}
	return filepath.Dir(filepath.Dir(filepath.Dir(file)))
}

// Cache is the ignored folder that keeps what tests build and install.
func Cache() string { return filepath.Join(Root(), ".e2e") }

// Shared is the folder of traces and recordings beside the checkout, or a skip:
// it is not part of the project.
func Shared(t testing.TB, name string) string {
	t.Helper()
	dir := os.Getenv("PENSTOCK_SHARED")
	if dir == "" {
		dir = filepath.Join(Root(), "..", "shared")
	}
	path := filepath.Join(dir, name)
	if _, err := os.Stat(path); err != nil {
		t.Skipf("no %s in the folder beside the checkout (or in PENSTOCK_SHARED): skipped", name)
	}
	return path
}

// Binary builds penstock, as the tests are built, and returns its path. Go's
// own cache makes every build after the first one a matter of moments; the
// lock keeps packages tested at the same time from writing one file at once.
func Binary(t testing.TB) string {
	t.Helper()
	name := "penstock"
	args := []string{"build"}
	if raceDetector {
		name += "-race"
		args = append(args, "-race")
	}
	path := filepath.Join(Cache(), "bin", name)
	err := locked("bin", func() error {
		cmd := exec.CommandContext(t.Context(), "go", append(args, "-o", path, "./cmd/penstock")...)
		cmd.Dir = Root()
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%v: %w\n%s", cmd.Args, err, out)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return path
}

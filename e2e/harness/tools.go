package harness

import (
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
)

// Missing skips a test that needs a program which is not there, and says so.
// With CI=true it fails: there everything must be installed.
func Missing(t testing.TB, format string, args ...any) {
	t.Helper()
	text := fmt.Sprintf(format, args...)
	if os.Getenv("CI") == "true" {
		t.Fatalf("%s (CI=true: not skipped)", text)
	}
	t.Skipf("%s: skipped", text)
}

// Program returns the path of a program or skips the test.
func Program(t testing.TB, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		Missing(t, "%s is not installed", name)
	}
	return path
}

// Python returns an interpreter that has the packages of a requirements file,
// installed on first use into .e2e/ under the hash of that file.
func Python(t testing.TB, requirements string) string {
	t.Helper()
	system := Program(t, "python3")
	dir := installDir(t, "python", requirements)
	python := filepath.Join(dir, "bin", "python")
	install(t, dir, func(run func(string, ...string) error) error {
		if err := run(system, "-m", "venv", dir); err != nil {
			return err
		}
		pip := []string{"-m", "pip", "install", "--quiet", "--no-compile", "--disable-pip-version-check"}
		// uv takes a tenth of pip's time; where it cannot be had, or cannot reach the index, pip does it.
		if run(python, append(pip, "uv")...) == nil &&
			run(python, "-m", "uv", "pip", "install", "--quiet", "--python", python, "-r", requirements) == nil {
			return nil
		}
		return run(python, append(pip, "-r", requirements)...)
	})
	return python
}

// nodeMajor is the least version that the current SDKs run on.
const nodeMajor = 22

// nodePackage is fetched from the package registry where the system's is older.
const nodePackage = "node-%s-%s@22.23.3"

// Node returns a node program and a folder whose node_modules holds the
// packages of the package.json given.
func Node(t testing.TB, packageJSON string) (node, dir string) {
	t.Helper()
	npm := Program(t, "npm")
	system := Program(t, "node")
	dir = installDir(t, "node", packageJSON)
	old := majorVersion(system) < nodeMajor
	bundled := fmt.Sprintf(nodePackage, runtime.GOOS, nodeArch())
	install(t, dir, func(run func(string, ...string) error) error {
		text, err := os.ReadFile(packageJSON)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, "package.json"), text, 0o644); err != nil {
			return err
		}
		args := []string{"install", "--prefix", dir, "--no-audit", "--no-fund", "--no-package-lock", "--loglevel=error"}
		if old {
			args = append(args, bundled)
		}
		return run(npm, args...)
	})
	if !old {
		return system, dir
	}
	name, _, _ := strings.Cut(bundled, "@")
	return filepath.Join(dir, "node_modules", name, "bin", "node"), dir
}

func majorVersion(node string) int {
	out, err := exec.Command(node, "--version").Output()
	if err != nil {
		return 0
	}
	major, _, _ := strings.Cut(strings.TrimPrefix(string(out), "v"), ".")
	n, err := strconv.Atoi(major)
	if err != nil {
		return 0
	}
	return n
}

func nodeArch() string {
	if runtime.GOARCH == "amd64" {
		return "x64"
	}
	return runtime.GOARCH
}

// installDir names a folder after what is to be installed there.
func installDir(t testing.TB, kind, list string) string {
	t.Helper()
	text, err := os.ReadFile(list)
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(Cache(), fmt.Sprintf("%s-%x", kind, sha256.Sum256(text))[:len(kind)+11])
}

// install runs the steps once for each folder; a mark inside it says that they
// went through. Without a network the test is skipped.
func install(t testing.TB, dir string, steps func(run func(string, ...string) error) error) {
	t.Helper()
	mark := filepath.Join(dir, ".installed")
	err := locked(filepath.Base(dir), func() error {
		if _, err := os.Stat(mark); err == nil {
			return nil
		}
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		run := func(name string, args ...string) error {
			cmd := exec.CommandContext(t.Context(), name, args...)
			cmd.Dir = dir
			if out, err := cmd.CombinedOutput(); err != nil {
				return fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, out)
			}
			return nil
		}
		if err := steps(run); err != nil {
			return err
		}
		return os.WriteFile(mark, nil, 0o644)
	})
	if err != nil {
		Missing(t, "cannot install client packages: %v", err)
	}
}

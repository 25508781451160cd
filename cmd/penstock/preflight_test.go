package main

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// fakeServer is a command with argparse's help, that fails when it is run for
// anything else.
func fakeServer(t *testing.T) (path string) {
	t.Helper()
	if runtime.GOOS == "windows" {
		t.Skip("needs a shell")
	}
	path = filepath.Join(t.TempDir(), "serve")
	script := `#!/bin/sh
[ "$*" = "--help" ] || { echo started; exit 3; }
cat <<'END'
usage: serve [-h] --model-path MODEL_PATH [--port PORT] [--cuda-graph-max-bs-decode N] [--cuda-graph-max-bs-prefill N]

options:
  -h, --help            show this help message and exit
  --model-path MODEL_PATH
                        the model
  --port PORT           the port
  --cuda-graph-max-bs-decode N
                        one
  --cuda-graph-max-bs-prefill N
                        the other
END
`
	if err := os.WriteFile(path, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestCheckPreflightNamesEachWrongFlagWithItsLine(t *testing.T) {
	server := fakeServer(t)
	path := writeConfig(t, fmt.Sprintf(`models:
  - name: m
    engines:
      - launch: {command: "%[1]s --model-path m --port {port}"}
      - launch:
          command: "%[1]s --model-path m --port {port} --cuda-graph-max-bs 4"
      - launch: {command: "%[1]s --model-path m --port {port} --modle-path n"}
      - launch: {command: "%[1]s --nonsense {port}", preflight: false}
`, server))
	if got := invoke(t, nil, "", "check", "--config", path); got.code != exitOK {
		t.Fatalf("check without --preflight: got code %d, stderr %q; want 0", got.code, got.stderr)
	}
	got := invoke(t, nil, "", "check", "--preflight", "--config", path)
	if got.code != exitFailed || got.stdout != "" {
		t.Errorf("check --preflight: got code %d, stdout %q; want 1 and nothing", got.code, got.stdout)
	}
	for _, want := range []string{
		path + ":6: models[0].engines[1].launch.command: ", "--cuda-graph-max-bs-decode", "--cuda-graph-max-bs-prefill",
		path + ":7: models[0].engines[2].launch.command: ", "--modle-path",
		"models[0].engines[3].launch: flags not checked",
	} {
		if !strings.Contains(got.stderr, want) {
			t.Errorf("check --preflight: got stderr\n%s\nwant it to hold %q", got.stderr, want)
		}
	}
	if n := strings.Count(got.stderr, path+":"); n != 2 {
		t.Errorf("check --preflight: got %d refusals, want 2:\n%s", n, got.stderr)
	}
}

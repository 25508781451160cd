package main

import (
	"bytes"
	"strings"
	"testing"
)

// result is what a command leaves behind.
type result struct {
	code           int
	stdout, stderr string
}

// invoke runs one command line as main would, with only the given environment.
func invoke(t *testing.T, environ map[string]string, stdin string, args ...string) result {
	t.Helper()
	var out, errOut bytes.Buffer
	e := &env{
		stdin:  strings.NewReader(stdin),
		stdout: &out,
		stderr: &errOut,
		getenv: func(name string) (string, bool) { v, ok := environ[name]; return v, ok },
	}
	code := exitCode(run(t.Context(), args, e), &errOut)
	return result{code: code, stdout: out.String(), stderr: errOut.String()}
}

func TestUsageErrorsExitTwoAndNameTheMistake(t *testing.T) {
	for _, tc := range []struct {
		args string
		want string // in stderr
	}{
		{"vesion", `unknown command "vesion": did you mean "version"?`},
		{"frobnicate", `unknown command "frobnicate"`},
		{"version extra", `unknown command "extra" for "penstock version"`},
		{"--nope", "unknown flag: --nope"},
		{"version --log-format xml", `--log-format "xml": want text or json`},
		{"version --log-level loud", `--log-level "loud": want debug, info, warn or error`},
		{"version --nope", "Run 'penstock version --help' for usage."},
	} {
		got := invoke(t, nil, "", strings.Fields(tc.args)...)
		if got.code != exitUsage || !strings.Contains(got.stderr, tc.want) || got.stdout != "" {
			t.Errorf("penstock %s: got code %d, stdout %q, stderr %q; want code 2 and stderr with %q", tc.args, got.code, got.stdout, got.stderr, tc.want)
		}
	}
}

func TestVersionHelpAndCompletionSucceed(t *testing.T) {
	for _, tc := range []struct {
		args string
		want string // in stdout
	}{
		{"version", "penstock "},
		{"", "Available Commands:"},
		{"--help", "--log-format"},
		{"completion bash", "__start_penstock"},
		{"completion zsh", "compdef _penstock"},
		{"completion fish", "complete -c penstock"},
	} {
		got := invoke(t, nil, "", strings.Fields(tc.args)...)
		if got.code != exitOK || !strings.Contains(got.stdout, tc.want) || got.stderr != "" {
			t.Errorf("penstock %s: got code %d, stderr %q, stdout %.200q; want code 0 and stdout with %q", tc.args, got.code, got.stderr, got.stdout, tc.want)
		}
	}
}

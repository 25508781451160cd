package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func writeConfig(t *testing.T, text string) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "penstock.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestCheckPrintsWhatIsInEffectWithoutSecretsAndItsOutputChecksToo(t *testing.T) {
	environ := map[string]string{"TEAM_KEY": "sk-unmistakable", "ADMIN": "sk-unmistakable-too"}
	path := writeConfig(t, "listen: 0.0.0.0:8080\nadmin: {key: ${ADMIN}}\nkeys:\n  - {name: team, key: ${TEAM_KEY}}\n")
	got := invoke(t, environ, "", "check", "--config", path)
	if got.code != exitOK || got.stderr != "" {
		t.Fatalf("check: got code %d, stderr %q; want 0 and nothing", got.code, got.stderr)
	}
	for _, want := range []string{"listen: 0.0.0.0:8080\n", "key: ${TEAM_KEY}\n", "penstock-local", "first_token: 10m\n", " is valid; what is in effect, hash "} {
		if !strings.Contains(got.stdout, want) {
			t.Errorf("check: got\n%s\nwant it to hold %q", got.stdout, want)
		}
	}
	if strings.Contains(got.stdout+got.stderr, "unmistakable") {
		t.Errorf("check shows a secret:\n%s%s", got.stdout, got.stderr)
	}
	again := invoke(t, environ, "", "check", "--config", writeConfig(t, got.stdout))
	_, body, _ := strings.Cut(got.stdout, "\n")
	if _, bodyAgain, _ := strings.Cut(again.stdout, "\n"); again.code != exitOK || bodyAgain != body {
		t.Errorf("check of its own output: got code %d, stderr %q and\n%s\nwant the same as before:\n%s", again.code, again.stderr, bodyAgain, body)
	}
}

func TestCheckReportsAllMistakesEachOnItsLineAndExitsOne(t *testing.T) {
	path := writeConfig(t, "lisen: x\nmax_body: 1Mb\nkeys:\n  - {name: a, key: ${NOT_SET}}\n")
	got := invoke(t, nil, "", "check", "--config", path)
	want := path + ":1: lisen: unknown key: did you mean listen?\n" +
		path + ":2: max_body: \"1Mb\": want a size, as 64MiB, 16KiB or 1048576\n" +
		path + ":4: keys[0].key: environment variable NOT_SET is not set\n"
	if got.code != exitFailed || got.stderr != want || got.stdout != "" {
		t.Errorf("check: got code %d, stdout %q, stderr\n%s\nwant code 1 and\n%s", got.code, got.stdout, got.stderr, want)
	}
}

func TestCheckWarnsOfWhatIsSeldomMeant(t *testing.T) {
	path := writeConfig(t, "listen: :8080\ntls: {cert: none.pem, key: none.pem}\nlog: {format: json}\n"+
		"models: [{name: m, engines: [{url: 'http://127.0.0.1:1', tls: {server_name: e}}, {url: 'https://127.0.0.1:2', tls: {server_name: e}}]}]\n")
	got := invoke(t, nil, "", "check", "--config", path)
	for _, want := range []string{`"level":"WARN"`, "without keys from anybody", "none.pem: no such file", "models[0].engines[0].tls: not used"} {
		if got.code != exitOK || !strings.Contains(got.stderr, want) {
			t.Errorf("check: got code %d, stderr %q; want 0 and a warning with %q", got.code, got.stderr, want)
		}
	}
	if strings.Contains(got.stderr, "engines[1].tls") {
		t.Errorf("check: warned of TLS to an https URL: %s", got.stderr)
	}
}

func TestCheckWithoutAFileOrWithAMissingOne(t *testing.T) {
	if got := invoke(t, nil, "", "check"); got.code != exitUsage || !strings.Contains(got.stderr, "config") {
		t.Errorf("check without --config: got code %d, stderr %q; want 2 and the flag's name", got.code, got.stderr)
	}
	path := filepath.Join(t.TempDir(), "none.yaml")
	if got := invoke(t, nil, "", "check", "--config", path); got.code != exitFailed || !strings.Contains(got.stderr, path) {
		t.Errorf("check of a missing file: got code %d, stderr %q; want 1 and the path", got.code, got.stderr)
	}
}

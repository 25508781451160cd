package main

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// fakeEngine serves nothing but a list of one model.
func fakeEngine(t *testing.T, model string) (url string) {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/models" {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write([]byte(`{"object":"list","data":[{"id":"` + model + `","max_model_len":4096}]}`))
	}))
	t.Cleanup(s.Close)
	return s.URL
}

func checks(t *testing.T, what, text string) {
	t.Helper()
	if got := invoke(t, nil, "", "check", "--config", writeConfig(t, text)); got.code != exitOK {
		t.Errorf("%s: what init wrote does not check: %s\n%s", what, got.stderr, text)
	}
}

func TestInitAsksTheEnginesAndGroupsThemByModel(t *testing.T) {
	a, b, c := fakeEngine(t, "org/one"), fakeEngine(t, "org/one"), fakeEngine(t, "two")
	got := invoke(t, nil, "", "init", a+"/v1", strings.TrimPrefix(b, "http://"), "--engine", c, "-o", "-")
	if got.code != exitOK {
		t.Fatalf("init: got code %d, stderr %q; want 0", got.code, got.stderr)
	}
	checks(t, "three engines", got.stdout)
	for _, want := range []string{"name: org/one\n", "name: two\n", "- url: " + a + "\n", "- url: " + b + "\n", "# openai, context of 4096 tokens\n"} {
		if !strings.Contains(got.stdout, want) {
			t.Errorf("init: got\n%s\nwant it to hold %q", got.stdout, want)
		}
	}
	if n := strings.Count(got.stdout, "policy: prefix"); n != 2 {
		t.Errorf("init: got %d models, want 2:\n%s", n, got.stdout)
	}
	renamed := invoke(t, nil, "", "init", a, "--model", "mine", "-o", "-")
	checks(t, "another name", renamed.stdout)
	if !strings.Contains(renamed.stdout, "name: mine\n    upstream: org/one") {
		t.Errorf("init --model mine: got\n%s\nwant the engine's own name as upstream", renamed.stdout)
	}
}

func TestInitWritesAValidFileForEnginesThatDoNotAnswer(t *testing.T) {
	for _, args := range [][]string{
		{"init", "http://127.0.0.1:1", "-o", "-", "--timeout", "300ms"},
		{"init", "http://127.0.0.1:1", "http://127.0.0.1:2", "-o", "-", "--no-probe"},
		{"init", "--yes", "-o", "-"},
	} {
		got := invoke(t, nil, "", args...)
		if got.code != exitOK {
			t.Errorf("penstock %q: got code %d, stderr %q; want 0", args, got.code, got.stderr)
		}
		checks(t, strings.Join(args, " "), got.stdout)
	}
}

func TestInitAsksAFewQuestionsAndTakesDefaultsForEmptyAnswers(t *testing.T) {
	path := filepath.Join(t.TempDir(), "penstock.yaml")
	got := invoke(t, nil, "\n0.0.0.0:8081\n\nsearch team-b\n", "init", "-o", path)
	text, err := os.ReadFile(path)
	if err != nil || got.code != exitOK {
		t.Fatalf("init: got code %d, stderr %q, %v", got.code, got.stderr, err)
	}
	checks(t, "answers", string(text))
	for _, want := range []string{"listen: 0.0.0.0:8081\n", "listen: 127.0.0.1:9090\n", "name: search\n", "name: team-b\n", "penstock-local"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("init: got\n%s\nwant it to hold %q", text, want)
		}
	}
	keys := regexp.MustCompile(`sk-[a-z2-7]{26}`).FindAllString(got.stderr, -1)
	if len(keys) != 2 || strings.Contains(string(text), keys[0]) {
		t.Errorf("init: got keys %q on stderr, want two, and none in the file", keys)
	}
}

func TestInitOverwritesOnlyWhenForced(t *testing.T) {
	path := writeConfig(t, "mine")
	got := invoke(t, nil, "", "init", "--yes", "-o", path)
	if text, _ := os.ReadFile(path); got.code != exitFailed || string(text) != "mine" || !strings.Contains(got.stderr, path) {
		t.Errorf("init over a file: got code %d, stderr %q, file %q; want 1, its path, and the file as it was", got.code, got.stderr, text)
	}
	if got := invoke(t, nil, "", "init", "--yes", "--force", "-o", path); got.code != exitOK {
		t.Errorf("init --force: got code %d, stderr %q; want 0", got.code, got.stderr)
	}
}

func TestInitRefusesWhatCannotBeWritten(t *testing.T) {
	for _, args := range []string{"http://user:hunter2@h:1 --no-probe", "http://h:99999", "http://h:1 --listen nonsense --no-probe"} {
		got := invoke(t, nil, "", append(strings.Fields("init -o - "+args), "--timeout", "300ms")...)
		if got.code != exitUsage || got.stdout != "" || strings.Contains(got.stderr, "hunter2") {
			t.Errorf("init %s: got code %d, stdout %q, stderr %q; want 2, no file and no secret", args, got.code, got.stdout, got.stderr)
		}
	}
}

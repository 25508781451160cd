package configs

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write golden files and docs/configuration.md anew")

// testEnv is the environment of all test files. Each value is unmistakable,
// so that it can be looked for where it must not be.
var testEnv = map[string]string{
	"TEAM_KEY": "sk-env-team", "SEARCH_TEAM_KEY": "sk-env-search", "BATCH_KEY": "sk-env-batch", "BATCH_KEY_NEXT": "sk-env-next",
	"KEY_A": "sk-env-a", "KEY_B": "sk-env-b", "KEY_C": "sk-env-c", "KEY_D": "sk-env-d", "KEY_E": "sk-env-e", "KEY_F": "sk-env-f",
	"PENSTOCK_ADMIN_KEY": "sk-env-admin", "ENGINE_KEY": "sk-env-engine", "REDIS_PASSWORD": "sk-env-redis",
	"EMPTY": "", "WITH_NEWLINE": "sk-env-newline\n", "NOT_A_NUMBER": "sk-env-number",
	"SECRET_URL": "http://sk-env-host:30000/", "PORT": "8080", "NUMBER": "100",
}

// secretMarks are in every secret of the tests, from the environment (but a
// host, whose name becomes a replica's id) or misplaced in a file.
var secretMarks = []string{
	"sk-env-a", "sk-env-b", "sk-env-c", "sk-env-d", "sk-env-e", "sk-env-f", "sk-env-team", "sk-env-search", "sk-env-next",
	"sk-env-engine", "sk-env-redis", "sk-env-n", "sk-literal", "sk-secret", "sk-live", "sk-i-am", "hunter2", "literal-in-",
}

func testGetenv(name string) (string, bool) { v, ok := testEnv[name]; return v, ok }

func noEnv(string) (string, bool) { return "", false }

func files(t *testing.T, pattern string) []string {
	t.Helper()
	list, err := filepath.Glob(pattern)
	if err != nil || len(list) == 0 {
		t.Fatalf("no files match %s (%v)", pattern, err)
	}
	return list
}

func golden(t *testing.T, path, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v (go test -update writes it)", err)
	}
	if got != string(want) {
		t.Errorf("%s differs (go test -update writes it anew)\ngot:\n%s\nwant:\n%s", path, got, want)
	}
}

func noSecrets(t *testing.T, what, text string) {
	t.Helper()
	for _, mark := range secretMarks {
		if strings.Contains(text, mark) {
			t.Errorf("%s shows a secret, %s…:\n%s", what, mark, text)
		}
	}
}

func TestEachBadFileGetsItsExactErrors(t *testing.T) {
	for _, path := range files(t, "testdata/bad/*.yaml") {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".yaml"), func(t *testing.T) {
			c, err := Load(path, testGetenv)
			if err == nil || c != nil {
				t.Fatalf("%s: got %v and no error, want errors", path, c)
			}
			got := strings.ReplaceAll(err.Error(), filepath.ToSlash(path), filepath.Base(path)) + "\n"
			golden(t, strings.TrimSuffix(path, ".yaml")+".want", got)
			noSecrets(t, path, got)
			for line := range strings.Lines(got) {
				if !strings.HasPrefix(line, filepath.Base(path)+":") {
					t.Errorf("%s: an error is not one line that begins with the file: %q", path, line)
				}
			}
		})
	}
}

func TestGoodFilesLoadAndTheirRedactedFormHasTheSameEffect(t *testing.T) {
	list := slices.Concat(files(t, "testdata/good/*.yaml"), files(t, "examples/*.yaml"))
	for _, path := range list {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".yaml"), func(t *testing.T) {
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			c, err := Parse(path, data, testGetenv)
			if err != nil {
				t.Fatalf("%s: got error %v, want none", path, err)
			}
			if err := c.Validate(); err != nil {
				t.Errorf("%s: Validate after Parse: %v", path, err)
			}
			shown, err := c.Redacted()
			if err != nil {
				t.Fatal(err)
			}
			noSecrets(t, path, string(shown))
			if strings.HasPrefix(path, "testdata") {
				golden(t, strings.TrimSuffix(path, ".yaml")+".want", string(shown))
			}
			again, err := Parse("redacted", shown, testGetenv)
			if err != nil {
				t.Fatalf("%s: the redacted form does not load: %v\n%s", path, err, shown)
			}
			if strings.Contains(string(shown), redacted) {
				return // a literal that should not have been there: not the same, by design
			}
			again.refs, again.origin, c.refs, c.origin = nil, nil, nil, nil
			if !reflect.DeepEqual(c, again) {
				t.Errorf("%s: the redacted form has another effect\ngot:  %+v\nwant: %+v", path, again, c)
			}
		})
	}
}

func TestAnEmptyFileIsNotTakenForTheDefaults(t *testing.T) {
	path := filepath.Join(t.TempDir(), "penstock.yaml")
	for _, text := range []string{"", "\n", "# Penstock's configuration\n\n  # listen: 127.0.0.1:1\n", "\ufeff# a\r\n"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Load(path, noEnv); err == nil || !strings.Contains(err.Error(), "is empty") {
			t.Errorf("Load of %q: got error %v, want one that says it is empty", text, err)
		}
	}
}

func TestNoFileAnEmptyTextAndDefaultAreTheSame(t *testing.T) {
	empty, err := Parse("empty", nil, noEnv)
	if err != nil {
		t.Fatal(err)
	}
	empty.refs, empty.origin = nil, nil
	if want := Default(); !reflect.DeepEqual(empty, want) {
		t.Errorf("an empty file: got %+v, want Default(), %+v", empty, want)
	}
	m := Default().Models
	if len(m) != 1 || m[0].Name != "penstock-local" || len(m[0].Engines) != 1 || m[0].Engines[0].Local == nil || m[0].Engines[0].Local.Replicas != 4 {
		t.Errorf("Default: got models %+v, want penstock-local on four local replicas", m)
	}
}

func TestTheDesignsOutlineIsAValidFile(t *testing.T) {
	shared := os.Getenv("PENSTOCK_SHARED")
	if shared == "" {
		shared = filepath.Join("..", "..", "shared")
	}
	text, err := os.ReadFile(filepath.Join(shared, "DESIGN.md"))
	if err != nil {
		t.Skipf("the design is not beside the checkout: %v", err)
	}
	_, rest, _ := strings.Cut(string(text), "```yaml\n")
	outline, _, ok := strings.Cut(rest, "```")
	if !ok {
		t.Fatal("no YAML block in the design")
	}
	c, err := Parse("outline.yaml", []byte(outline), testGetenv)
	if err != nil {
		t.Fatalf("the outline: %v", err)
	}
	if len(c.Models) != 1 || len(c.Models[0].Engines) != 5 || string(c.Keys[0].Key) != "sk-env-search" {
		t.Errorf("the outline: got %d models, %d engines, key %q", len(c.Models), len(c.Models[0].Engines), string(c.Keys[0].Key))
	}
}

func TestErrorsCanBeTakenApart(t *testing.T) {
	_, err := Parse("f.yaml", []byte("listen: 1\nmax_body: x\n"), noEnv)
	first, ok := errors.AsType[*Error](err)
	if !ok || first.File != "f.yaml" || first.Line != 1 || first.Key != "listen" {
		t.Errorf("got %+v, want an *Error for f.yaml, line 1, key listen", first)
	}
}

func TestAMissingFileAndAFolderAreNamed(t *testing.T) {
	for _, path := range []string{filepath.Join(t.TempDir(), "none.yaml"), t.TempDir()} {
		if _, err := Load(path, noEnv); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("Load(%s): got error %v, want one that names the path", path, err)
		}
	}
}

func TestRelativePathsAreRelativeToTheFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "penstock.yaml")
	body := "tls: {cert: c.pem, key: /abs/k.pem}\nmodels:\n  - name: a\n    engines: [{file: targets.json}, {file: '${F}'}]\n"
	if err := os.WriteFile(path, []byte(body), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := Load(path, func(string) (string, bool) { return "from-env.json", true })
	if err != nil {
		t.Fatal(err)
	}
	got := []string{c.TLS.Cert, c.TLS.Key, c.Models[0].Engines[0].File, c.Models[0].Engines[1].File}
	want := []string{filepath.Join(dir, "c.pem"), "/abs/k.pem", filepath.Join(dir, "targets.json"), filepath.Join(dir, "from-env.json")}
	if !slices.Equal(got, want) {
		t.Errorf("got paths %q, want %q", got, want)
	}
	if shown, _ := c.Redacted(); strings.Contains(string(shown), "from-env") {
		t.Errorf("a path from the environment is shown as its value:\n%s", shown)
	}
}

func TestNestedAliasesCannotFillTheMemory(t *testing.T) {
	var b strings.Builder
	b.WriteString("cors:\n  origins: &a0 [x, x, x, x, x, x, x, x, x, x]\nmodels:\n")
	for i := range 40 {
		b.WriteString("  - &m" + string(rune('A'+i)) + "\n    engines: [*a0, *a0]\n")
	}
	b.WriteString("keys: &k [" + strings.Repeat("*k, ", 50) + "*k]\n")
	_, err := Parse("bomb.yaml", []byte(b.String()), noEnv)
	if err == nil || len(err.Error()) > 64<<10 {
		t.Errorf("got an error of %d bytes, want a short one", len(err.Error()))
	}
}

func FuzzParse(f *testing.F) {
	for _, pattern := range []string{"testdata/bad/*.yaml", "testdata/good/*.yaml", "examples/*.yaml"} {
		list, _ := filepath.Glob(pattern)
		for _, path := range list {
			if data, err := os.ReadFile(path); err == nil {
				f.Add(data)
			}
		}
	}
	// A secret that stands nowhere in the file: it comes from the environment
	// or not at all, and is never printed.
	const secret = "Zq7-unmistakable-Zq7"
	getenv := func(string) (string, bool) { return secret, true }
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := Parse("fuzz.yaml", data, getenv)
		if err != nil {
			for line := range strings.Lines(err.Error()) {
				if !strings.HasPrefix(line, "fuzz.yaml:") {
					t.Errorf("an error that is not one line: %q", line)
				}
			}
			if strings.Contains(err.Error(), secret) {
				t.Errorf("an error shows a secret: %v", err)
			}
			return
		}
		shown, err := c.Redacted()
		if err != nil {
			t.Fatalf("Redacted: %v", err)
		}
		again, err := Parse("redacted.yaml", shown, getenv)
		if err != nil {
			t.Fatalf("the redacted form does not load: %v\n%s", err, shown)
		}
		if twice, _ := again.Redacted(); string(twice) != string(shown) && !strings.Contains(string(shown), redacted) {
			t.Errorf("redacted twice differs:\n%s\n---\n%s", shown, twice)
		}
	})
}

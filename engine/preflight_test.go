package engine

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"penstock/configs"
)

// wrapAt breaks a text's lines at white space, and at hyphens too where asked.
func wrapAt(text string, width int, hyphens bool) string {
	var b strings.Builder
	col := 0
	for word := range strings.FieldsSeq(text) {
		if col > 0 && col+len(word) > width {
			b.WriteString("\n          ")
			col = 10
		}
		if i := strings.LastIndexByte(word, '-'); hyphens && strings.HasPrefix(word, "[--") && i > 8 && i < len(word)-1 && word[i+1] >= 'a' && col%3 == 0 {
			word = word[:i+1] + "\n     " + word[i+1:]
		}
		b.WriteString(word + " ")
		col += len(word) + 1
	}
	return b.String()
}

func TestAmbiguousOptionNamesItsCandidates(t *testing.T) {
	text := string(shared(t, "seeds/sglang_serve_usage_error.txt"))
	for name, usage := range map[string]string{
		"one line": text, "80 columns": wrapAt(text, 80, false), "30 columns": wrapAt(text, 30, false), "at hyphens": wrapAt(text, 60, true),
	} {
		known := readHelp(usage)
		f := newFlags(known, false)
		err := f.check([]string{"--model-path", "m", "--cuda-graph-max-bs", "4"})
		want := "ambiguous option --cuda-graph-max-bs could be --cuda-graph-max-bs-decode or --cuda-graph-max-bs-prefill"
		if err == nil || err.Error() != want {
			t.Errorf("%s, %d options: got %v, want %s", name, len(known), err, want)
		}
		if n := strings.Count(text, "[--") + 1; len(known) < n {
			t.Errorf("%s: got %d options, want at least %d", name, len(known), n)
		}
	}
}

func TestOptionsOfAnUsage(t *testing.T) {
	f := newFlags(readHelp(`usage: serve [-h] --model-path MODEL_PATH [--port PORT]
             [--dtype {auto, half}] [--numa NODE [NODE ...]] [--opt [OPT]]
             [--q | --no-q] [-tp N] [--trust] model

options:
  -h, --help            show this help and exit, not --made-up
  --model-path MODEL_PATH, --model MODEL_PATH
                        the weights; see
                        --deeper-one for more
  --port PORT           the port
`), false)
	for _, tt := range []struct {
		args string
		want string // "": accepted
	}{
		{"--model-path m --port 1", ""},
		{"--model m", ""},       // an alias, though also a prefix
		{"--model-p m", ""},     // a unique prefix
		{"--po 1", ""},          // likewise
		{"--port=1", ""},        // attached
		{"--po=-1", ""},         // attached to a prefix
		{"--port -1", ""},       // a negative number is a value
		{"--port -1.5", ""},     //
		{"--opt --trust", ""},   // an optional value left out
		{"--numa 0 1 2", ""},    // several values
		{"-tp 4", ""},           // single dash, long
		{"-h", ""},              //
		{"m -- --whatever", ""}, // what follows -- is positional
		{"--no-q --q", ""},      //
		{"--port", "option --port needs a value"},
		{"--port --trust", "option --port needs a value, got the option --trust"},
		{"--trust=yes", "option --trust takes no value, got --trust=yes"},
		{"--modle-path m", "unknown option --modle-path: did you mean --model-path?"},
		{"--made-up 1", "unknown option --made-up"},
		{"--deeper-one", "unknown option --deeper-one"},
		{"--model_path m", "unknown option --model_path: did you mean --model-path?"},
		{"--zzzzzzzzzzzz", "unknown option --zzzzzzzzzzzz"},
		{"--m m --p 1", "ambiguous option --m could be --model or --model-path"},
	} {
		err := f.check(strings.Fields(tt.args))
		got := ""
		if err != nil {
			got = oneLine(err)
		}
		if got != tt.want {
			t.Errorf("%s: got %q, want %q", tt.args, got, tt.want)
		}
	}
	if err := f.check([]string{"--port", "-a value with spaces"}); err != nil {
		t.Errorf("a value that begins with a dash and has spaces: got %v, want it taken", err)
	}
}

// SGLang's command takes options that its list does not hold, and says so first.
func TestOptionsNamedBeforeTheUsageAreKnown(t *testing.T) {
	f := newFlags(readHelp("Use `--model-type llm` to choose.\n\nusage: serve [-h] [--port PORT]\n"), false)
	if err := f.check([]string{"--model-type", "llm", "--port", "1"}); err != nil {
		t.Errorf("got %v, want it taken", err)
	}
}

func TestVLLMsOwnRules(t *testing.T) {
	f := newFlags(options{"--optimization-level": takesOne, "--tensor-parallel-size": takesOne, "-tp": takesOne, "--compilation-config": takesOne, "-cc": takesOne}, true)
	for _, args := range []string{
		"--tensor_parallel_size 2", "--compilation-config.mode 3", "-cc.mode=3", "-O3", "-O=2", "--compilation_config.a.b=1", "-tp=2", "--tensor-par 2",
	} {
		if err := f.check(strings.Fields(args)); err != nil {
			t.Errorf("%s: got %v, want it taken", args, err)
		}
	}
	if err := f.check([]string{"--tensor_paralel_size", "2"}); err == nil || !strings.Contains(err.Error(), "--tensor-parallel-size") {
		t.Errorf("a mistyped one: got %v, want --tensor-parallel-size named", err)
	}
}

// program writes an executable that prints a text.
func program(t *testing.T, script string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "serve")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script), 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestPreflightAsksTheCommandItself(t *testing.T) {
	usage := filepath.Join(t.TempDir(), "usage.txt")
	if err := os.WriteFile(usage, shared(t, "seeds/sglang_serve_usage_error.txt"), 0o600); err != nil {
		t.Fatal(err)
	}
	// As the real one, it prints its usage to standard error and fails.
	serve := program(t, `[ "$1 $2" = "serve --help" ] || exit 9; cat `+usage+` >&2; exit 2`)
	all := program(t, `case "$1" in --help) echo "usage: x [-h]"; echo "try --help=all";; --help=all) echo "usage: x [-h] [--port P]";; esac`)
	silent := program(t, `exit 0`)
	for _, tt := range []struct {
		command, want string
		unchecked     bool
	}{
		{serve + ` serve --model-path m --port {port}`, "", false},
		{serve + ` serve --model-path "a b" --port={port} --json-model-override-args '{"a": -1}'`, "", false},
		{serve + ` serve --model-path m --port {port} --cuda-graph-max-bs 4`, "could be --cuda-graph-max-bs-decode or --cuda-graph-max-bs-prefill", false},
		{serve + ` serve --model-pth m`, "did you mean --model-path?", false},
		{"nice -n 5 env A=1 " + serve + ` serve --model-pth m`, "did you mean --model-path?", false},
		{all + " --port 1", "", false},
		{all + " --prot 1", "did you mean --port?", false},
		{silent + " --port 1", "shows no options", true},
		{"bash -c --port", "options of its own", true},
		{"/no/such/program --port 1", "no such file", false},
		{`serve "open`, "left open", false},
		{"  ", "is empty", false},
	} {
		begun := time.Now()
		err := Preflight(t.Context(), configs.Launch{Command: tt.command, Replicas: 1})
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%s: got %v, want %q", tt.command, err, tt.want)
		}
		if errors.Is(err, ErrUnchecked) != tt.unchecked {
			t.Errorf("%s: unchecked: got %v, want %v", tt.command, !tt.unchecked, tt.unchecked)
		}
		if err != nil && strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: the error has several lines: %q", tt.command, err)
		}
		if d := time.Since(begun); d > 5*time.Second {
			t.Errorf("%s: took %v, want less than 5s", tt.command, d)
		}
	}
}

// oracle runs Python's own argparse over many argument lists.
const oracle = `
import argparse, json, re, sys
def parser():
    p = argparse.ArgumentParser(prog="serve")
    p.add_argument("model", nargs="*")
    for name in json.loads(sys.argv[1]):
        n = len(name) % 4
        if n == 0: p.add_argument(name, action="store_true")
        elif n == 1: p.add_argument(name, nargs="+")
        elif n == 2: p.add_argument(name, nargs="?")
        else: p.add_argument(name)
    return p
class Refused(Exception): pass
p = parser()
def refuse(message): raise Refused(message)
p.error = refuse
out = []
for args in json.load(sys.stdin):
    try:
        _, extra = p.parse_known_args(args)
        extra = [x for x in extra if re.match("^--?[A-Za-z][^ ]*$", x)] # options, not stray values
        out.append("unrecognized " + extra[0] if extra else "")
    except Refused as e:
        out.append(str(e))
json.dump([p.format_help(), p.format_usage(), out], sys.stdout)
`

// What this package refuses and accepts is what Python's argparse does.
func TestSameVerdictsAsArgparse(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatalf("python3 is needed: %v", err)
		}
		t.Skip("python3 is not installed")
	}
	names := readHelp(string(shared(t, "seeds/sglang_serve_usage_error.txt"))).names()
	names = slices.DeleteFunc(names, func(n string) bool { return n == "-h" || strings.HasPrefix(n, "--no-") })
	cases := argumentLists(names)
	list, _ := json.Marshal(names)
	input, _ := json.Marshal(cases)
	cmd := exec.Command(python, "-c", oracle, string(list))
	cmd.Stdin = strings.NewReader(string(input))
	cmd.Env = append(os.Environ(), "COLUMNS=80")
	raw, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var help, usage string
	var verdicts []string
	if err := json.Unmarshal(raw, &[]any{&help, &usage, &verdicts}); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{help, usage} {
		f := newFlags(readHelp(text), false)
		for i, args := range cases {
			if err := f.check(args); (err != nil) != (verdicts[i] != "") {
				t.Errorf("%q: got %v, argparse says %q", args, err, verdicts[i])
			}
		}
	}
}

// argumentLists are arguments of every sort: exact, shortened, mistyped, with
// values of every look.
func argumentLists(names []string) [][]string {
	rng := rand.New(rand.NewPCG(3, 4))
	values := []string{"x", "-1", "-1.5", "-x y", "a=b", "", "-", "--", "1", "-.5"}
	var lists [][]string
	for range 600 {
		name := names[rng.IntN(len(names))]
		switch rng.IntN(5) {
		case 0:
			name = name[:3+rng.IntN(len(name)-2)]
		case 1:
			at := 2 + rng.IntN(len(name)-2)
			name = name[:at] + string(rune('a'+rng.IntN(26))) + name[at:]
		}
		switch rng.IntN(4) {
		case 0:
			lists = append(lists, []string{name})
		case 1:
			lists = append(lists, []string{name + "=" + values[rng.IntN(len(values))]})
		case 2:
			lists = append(lists, []string{name, values[rng.IntN(len(values))]})
		default:
			value := values[rng.IntN(len(values))]
			if value == "--" {
				continue // how what follows is shared out among the positional arguments is not our concern
			}
			lists = append(lists, []string{"m", name, value, names[rng.IntN(len(names))]})
		}
	}
	return lists
}

func FuzzReadHelp(f *testing.F) {
	f.Add("usage: x [-h] [--a A] {b,c} --d [D ...]\n\n  -h, --help  show\n")
	f.Add("usage: [--a-\nb [")
	f.Fuzz(func(t *testing.T, text string) {
		known := readHelp(text)
		for name := range known {
			if !strings.HasPrefix(name, "-") {
				t.Errorf("option %q of %q", name, text)
			}
		}
		_ = newFlags(known, len(text)%2 == 0).check(append(known.names(), fmt.Sprint(text)))
	})
}

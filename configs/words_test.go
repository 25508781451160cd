package configs

import (
	"reflect"
	"testing"
)

func TestCommandIsSplitAsByAShell(t *testing.T) {
	for line, want := range map[string][]string{
		`a b  c`:              {"a", "b", "c"},
		`a 'b c' "d e"`:       {"a", "b c", "d e"},
		`a '{"x": "y z"}'`:    {"a", `{"x": "y z"}`},
		`a "{\"x\": \"y\"}"`:  {"a", `{"x": "y"}`},
		`a b\ c ''`:           {"a", "b c", ""},
		`a "b\n"`:             {"a", `b\n`},
		"a \\\n  b":           {"a", "b"},
		"a b\\\nc \"d\\\ne\"": {"a", "bc", "de"},
		` --x="1 2" y'z'"w" `: {"--x=1 2", "yzw"},
	} {
		got, err := (&Launch{Command: line}).Words()
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%q: got %q, %v; want %q", line, got, err, want)
		}
	}
}

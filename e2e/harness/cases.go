package harness

import (
	"bufio"
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// Case is what a client script reports, as one line of JSON on its standard
// output, for each thing that it tried.
type Case struct {
	Name    string  `json:"name"`
	Error   string  `json:"error"` // "": passed
	Skipped string  `json:"skipped"`
	Seconds float64 `json:"seconds"`
}

// RunCases runs a client script and turns each of its cases into a subtest. At
// least so many must be reported: a script that dies early has not passed.
func RunCases(t *testing.T, atLeast int, env []string, program string, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program, args...)
	cmd.Env = append(os.Environ(), env...)
	cmd.SysProcAttr = childAttr()
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Errorf("%s: %v\n%s", strings.Join(cmd.Args, " "), err, stderr.String())
	}
	cases := parseCases(out)
	for _, c := range cases {
		t.Run(c.Name, func(t *testing.T) {
			switch {
			case c.Skipped != "":
				t.Skip(c.Skipped)
			case c.Error != "":
				t.Error(c.Error)
			default:
				t.Logf("%.2f s", c.Seconds)
			}
		})
	}
	if len(cases) < atLeast {
		t.Errorf("the script reported %d cases, want at least %d; stderr:\n%s", len(cases), atLeast, stderr.String())
	}
}

// parseCases reads the lines that are cases and passes over any other output.
func parseCases(out []byte) []Case {
	var cases []Case
	lines := bufio.NewScanner(bytes.NewReader(out))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var c Case
		if json.Unmarshal(lines.Bytes(), &c) == nil && c.Name != "" {
			cases = append(cases, c)
		}
	}
	return cases
}

package check

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/loader"
	"github.com/compose-spec/compose-go/v2/types"
)

func TestComposeFileLoads(t *testing.T) {
	dir, err := filepath.Abs(filepath.Join(deploy, "compose"))
	if err != nil {
		t.Fatal(err)
	}
	project, err := loader.LoadWithContext(t.Context(), types.ConfigDetails{
		WorkingDir:  dir,
		ConfigFiles: []types.ConfigFile{{Filename: filepath.Join(dir, "compose.yaml")}},
		Environment: types.Mapping{},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, service := range project.Services {
		for _, v := range service.Volumes {
			if v.Type != types.VolumeTypeBind {
				continue
			}
			if _, err := os.Stat(v.Source); err != nil {
				t.Errorf("service %s mounts what is not there: %v", service.Name, err)
			}
		}
		if service.Build != nil {
			if _, err := os.Stat(filepath.Join(service.Build.Context, "Dockerfile")); err != nil {
				t.Errorf("service %s: %v", service.Name, err)
			}
		}
	}
}

func TestSystemdUnitIsUnderstood(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(deploy, "systemd", "penstock.service"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`(?m)^ExecStart=/usr/local/bin/penstock serve `, `(?m)^ExecReload=/bin/kill -HUP \$MAINPID$`,
		`(?m)^TimeoutStopSec=40$`, `(?m)^NoNewPrivileges=yes$`, `(?m)^WantedBy=multi-user.target$`,
	} {
		if !regexp.MustCompile(want).Match(text) {
			t.Errorf("the unit has no line %s", want)
		}
	}
	verify(t, text)
}

// verify has systemd itself read the unit, where there is one. The program it
// starts is not installed here: another that is takes its place.
func verify(t *testing.T, text []byte) {
	t.Helper()
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Log("systemd-analyze is not installed: the unit's lines were looked at, systemd's own check was not run")
		return
	}
	unit := filepath.Join(t.TempDir(), "penstock.service")
	if err := os.WriteFile(unit, []byte(strings.ReplaceAll(string(text), "/usr/local/bin/penstock", "/bin/true")), 0o644); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), analyze, "verify", "--man=no", unit).CombinedOutput()
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, "penstock.service") {
			t.Errorf("systemd-analyze verify: %s", strings.TrimSpace(line))
		}
	}
	if err != nil {
		t.Logf("systemd-analyze verify: %v", err)
	}
}

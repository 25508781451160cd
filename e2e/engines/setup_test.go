package engines

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"penstock/e2e/harness"
)

const modelName = "tiny"

// startTimeout of one engine: it loads Python for half a minute, for minutes when several start at once on a busy machine.
const startTimeout = 10 * time.Minute

// only skips unless the run was asked for.
func only(t *testing.T) {
	t.Helper()
	if os.Getenv("PENSTOCK_ENGINES") == "" {
		t.Skip("real engines are tested by make e2e-engines (PENSTOCK_ENGINES=1): skipped")
	}
}

func enginesDir() string { return filepath.Join(harness.Root(), ".engines") }

func script(name string) string {
	return filepath.Join(harness.Root(), "e2e", "engines", "setup", name)
}

// vllm returns a virtual environment with vLLM, set up if need be.
func vllm(t *testing.T) string {
	t.Helper()
	if dir := os.Getenv("VLLM"); dir != "" {
		return dir
	}
	dir := filepath.Join(enginesDir(), "vllm")
	if _, err := os.Stat(filepath.Join(dir, "bin", "vllm")); err != nil {
		run(t, 15*time.Minute, "bash", script("setup-vllm.sh"), dir)
	}
	return dir
}

// command returns a client's program: the one that a variable names, or one in
// an environment of its own, which the script makes if need be.
func command(t *testing.T, variable, name, program, setup string, args ...string) string {
	t.Helper()
	if path := os.Getenv(variable); path != "" {
		return path
	}
	dir := filepath.Join(enginesDir(), name)
	path := filepath.Join(dir, "bin", program)
	if _, err := os.Stat(path); err != nil {
		run(t, 10*time.Minute, "bash", append([]string{script(setup), dir}, args...)...)
	}
	return path
}

// routerCommand returns another router of that version: from the folder that
// ROUTERS names, else set up. Where neither can be had, the test is skipped.
func routerCommand(t *testing.T, name, version string) string {
	t.Helper()
	dir := filepath.Join(cmp.Or(os.Getenv("ROUTERS"), enginesDir()), name)
	path := filepath.Join(dir, "bin", name)
	if _, err := os.Stat(path); err == nil {
		return path
	}
	if out, err := exec.CommandContext(t.Context(), "bash", script("setup-router.sh"), dir, name+"=="+version).CombinedOutput(); err != nil {
		harness.Missing(t, "%s %s cannot be set up: %v %.500s", name, version, err, out)
	}
	return path
}

// model returns the folder of the tiny model, made if need be.
func model(t *testing.T, venv string) string {
	t.Helper()
	dir := filepath.Join(enginesDir(), "tiny")
	if _, err := os.Stat(filepath.Join(dir, "model.safetensors")); err != nil {
		run(t, 5*time.Minute, filepath.Join(venv, "bin", "python"), script("mkmodel.py"), dir, "llama")
	}
	return dir
}

// run runs a command to its end and returns what it wrote.
func run(t *testing.T, within time.Duration, program string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = append(os.Environ(), "HF_HUB_OFFLINE=1", "HF_DATASETS_OFFLINE=1", "TRANSFORMERS_OFFLINE=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(cmd.Args, " "), err, out)
	}
	return string(out)
}

// engine is a running real engine.
type engine struct {
	url string
	cmd *exec.Cmd
}

// start runs one with its script; ready waits for it.
func start(t *testing.T, serve, venv, model string, flags ...string) *engine {
	t.Helper()
	addr := harness.FreeAddr(t)
	_, port, _ := strings.Cut(addr, ":")
	log, err := os.Create(filepath.Join(t.TempDir(), "engine.log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(script(serve), append([]string{venv, model, port}, flags...)...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // it has children of its own
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	e := &engine{url: "http://" + addr, cmd: cmd}
	t.Cleanup(func() {
		e.kill()
		if t.Failed() {
			text, _ := os.ReadFile(log.Name())
			t.Logf("engine %s wrote at last:\n%s", e.url, text[max(0, len(text)-4000):])
		}
		log.Close()
	})
	return e
}

func (e *engine) ready(t *testing.T) {
	t.Helper()
	harness.Eventually(t, startTimeout, "the engine at "+e.url+" is ready", func() error {
		resp, err := http.Get(e.url + "/v1/models")
		if err != nil {
			return err
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("%s", resp.Status)
		}
		return nil
	})
}

// kill ends the engine and its children at once, as kill -9 does.
func (e *engine) kill() {
	_ = syscall.Kill(-e.cmd.Process.Pid, syscall.SIGKILL)
	_, _ = e.cmd.Process.Wait()
}

// metric sums the engine's own samples of a name, label by label as wanted.
func (e *engine) metric(t *testing.T, name string, labels ...string) float64 {
	t.Helper()
	sum := 0.0
	for line := range strings.Lines(get(t, e.url+"/metrics")) {
		if !regexp.MustCompile(`^` + regexp.QuoteMeta(name) + `[{ ]`).MatchString(line) {
			continue
		}
		matches := true
		for _, label := range labels {
			matches = matches && strings.Contains(line, label)
		}
		fields := strings.Fields(line)
		if value, err := strconv.ParseFloat(fields[len(fields)-1], 64); err == nil && matches {
			sum += value
		}
	}
	return sum
}

func get(t *testing.T, url string) string {
	t.Helper()
	status, body := send(t, http.MethodGet, url, "")
	if status != http.StatusOK {
		t.Fatalf("GET %s: %d %s", url, status, body)
	}
	return body
}

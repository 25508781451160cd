package e2e

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"penstock/e2e/harness"
)

func TestCommandLineMistakesAreNamed(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	bad := harness.ConfigFile(t, "lisen: 127.0.0.1:1\nmodels: [{policy: fastest}]\n")
	for _, c := range []struct {
		name string
		args []string
		code int
		says []string
	}{
		{"unknown command", []string{"serv"}, 2, []string{"serv", "serve"}},
		{"unknown flag", []string{"serve", "--lisen", "x"}, 2, []string{"--lisen"}},
		{"port in use", []string{"serve", "--listen", taken.Addr().String(), "--admin", harness.FreeAddr(t)}, 1, []string{taken.Addr().String(), "in use"}},
		{"admin port in use", []string{"serve", "--listen", harness.FreeAddr(t), "--admin", taken.Addr().String()}, 1, []string{taken.Addr().String(), "in use"}},
		{"no such configuration", []string{"serve", "--config", "/nowhere.yaml"}, 1, []string{"/nowhere.yaml"}},
		{"all mistakes of a configuration", []string{"check", "--config", bad}, 1, []string{"lisen", "listen", "fastest", "prefix"}},
		{"they stop serve too", []string{"serve", "--config", bad}, 1, []string{"lisen"}},
		{"engine kind", []string{"engine", "--kind", "sgland"}, 2, []string{"sgland", "sglang"}},
		{"engine port in use", []string{"engine", "--listen", taken.Addr().String()}, 1, []string{taken.Addr().String(), "in use"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, stderr, code := harness.Run(t, c.args...)
			if code != c.code {
				t.Errorf("penstock %s: exit %d, want %d; stderr:\n%s", strings.Join(c.args, " "), code, c.code, stderr)
			}
			for _, word := range c.says {
				if !strings.Contains(stderr, word) {
					t.Errorf("penstock %s does not say %q:\n%s", strings.Join(c.args, " "), word, stderr)
				}
			}
		})
	}
}

func TestServeSaysWhatItServes(t *testing.T) {
	gateway := harness.Serve(t, "")
	harness.Eventually(t, 5*time.Second, "the gateway says what it serves", func() error {
		log := gateway.Log()
		for _, word := range []string{"penstock-local", gateway.URL, gateway.Admin, "curl "} {
			if !strings.Contains(log, word) {
				return fmt.Errorf("no %q in:\n%s", word, log)
			}
		}
		return nil
	})
	if out, stderr, code := harness.Run(t, "health", "--url", gateway.URL+"/healthz"); code != 0 {
		t.Errorf("health: exit %d, %s%s", code, out, stderr)
	}
	if out, _, code := harness.Run(t, "version"); code != 0 || !strings.HasPrefix(out, "penstock ") {
		t.Errorf("version: exit %d, %q", code, out)
	}
}

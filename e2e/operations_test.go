package e2e

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"penstock/e2e/harness"
)

func deployFile(parts ...string) string {
	return filepath.Join(append([]string{harness.Root(), "deploy"}, parts...)...)
}

func readFile(t *testing.T, path string) []byte {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// query is an expression of the dashboard or of an alert, with its place.
type query struct{ place, expr string }

// dashboardQueries are those of every panel and variable, variables filled in.
func dashboardQueries(t *testing.T) []query {
	t.Helper()
	var board struct {
		Panels []struct {
			Type    string
			Title   string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(readFile(t, deployFile("grafana", "penstock.json")), &board); err != nil {
		t.Fatal(err)
	}
	fill := strings.NewReplacer("$__rate_interval", "10s", "$model", ".*", "$replica", ".*")
	var all []query
	for _, p := range board.Panels {
		if p.Type != "row" && len(p.Targets) == 0 {
			t.Errorf("panel %q has no query", p.Title)
		}
		for _, target := range p.Targets {
			all = append(all, query{"panel " + p.Title, fill.Replace(target.Expr)})
		}
	}
	return all
}

type rules struct {
	Groups []struct {
		Rules []struct {
			Alert string
			Expr  string
		}
	}
}

func alertRules(t *testing.T) rules {
	t.Helper()
	var r rules
	if err := yaml.Unmarshal(readFile(t, deployFile("prometheus", "alerts.yaml")), &r); err != nil {
		t.Fatal(err)
	}
	return r
}

// threshold is how each alert's expression ends.
var threshold = regexp.MustCompile(`^(?s)(.*\S)\s+[<>]\s+[0-9.]+\s*$`)

// alertQueries are what the alerts compare with their thresholds.
func alertQueries(t *testing.T) []query {
	t.Helper()
	var all []query
	for _, group := range alertRules(t).Groups {
		for _, rule := range group.Rules {
			m := threshold.FindStringSubmatch(rule.Expr)
			if m == nil {
				t.Errorf("alert %s: %q is not EXPRESSION OPERATOR NUMBER", rule.Alert, rule.Expr)
				continue
			}
			all = append(all, query{"alert " + rule.Alert, m[1]})
		}
	}
	return all
}

func TestDashboardAndAlertsNameOnlyMetricsThatExist(t *testing.T) {
	golden := readFile(t, filepath.Join(harness.Root(), "metrics", "testdata", "page.golden"))
	known := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^(penstock_\w+)`).FindAllSubmatch(golden, -1) {
		known[string(m[1])] = true
	}
	for _, q := range append(dashboardQueries(t), alertQueries(t)...) {
		for _, name := range regexp.MustCompile(`penstock_\w+`).FindAllString(q.expr, -1) {
			if !known[name] {
				t.Errorf("%s asks for %s, which is on no page", q.place, name)
			}
		}
	}
}

func TestAlertRulesPassTheirUnitTests(t *testing.T) {
	promtool := harness.Program(t, "promtool")
	for _, args := range [][]string{{"check", "rules", "alerts.yaml"}, {"test", "rules", "alerts_test.yaml"}} {
		cmd := exec.CommandContext(t.Context(), promtool, args...)
		cmd.Dir = deployFile("prometheus")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
	tested := string(readFile(t, deployFile("prometheus", "alerts_test.yaml")))
	for _, group := range alertRules(t).Groups {
		for _, rule := range group.Rules {
			if !strings.Contains(tested, "alertname: "+rule.Alert+"\n        exp_alerts:\n") {
				t.Errorf("no unit test in which %s fires", rule.Alert)
			}
		}
	}
}

func TestEachAlertIsExplained(t *testing.T) {
	guide := string(readFile(t, filepath.Join(harness.Root(), "docs", "operations.md")))
	for _, group := range alertRules(t).Groups {
		for _, rule := range group.Rules {
			if !strings.Contains(guide, "### "+rule.Alert+"\n") {
				t.Errorf("docs/operations.md has no section %s", rule.Alert)
			}
		}
	}
}

func TestDeployedConfigurationsAreValid(t *testing.T) {
	var configMap struct {
		Data map[string]string
	}
	first, _, _ := strings.Cut(string(readFile(t, deployFile("kubernetes", "configmap.yaml"))), "\n---\n")
	if err := yaml.Unmarshal([]byte(first), &configMap); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PENSTOCK_ADMIN_KEY", "secret-admin")
	t.Setenv("PENSTOCK_KEY", "secret-key")
	for name, text := range map[string]string{
		"kubernetes": configMap.Data["penstock.yaml"],
		"compose":    string(readFile(t, deployFile("compose", "penstock.yaml"))),
	} {
		stdout, stderr, code := harness.Run(t, "check", "--config", harness.ConfigFile(t, text))
		if code != 0 || strings.Contains(stdout, "secret-") {
			t.Errorf("%s: exit %d, secrets shown: %v\n%s%s", name, code, strings.Contains(stdout, "secret-"), stderr, stdout)
		}
	}
}

package engine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml"

	"penstock/configs"
)

// targetGroup is one element of a file of targets, in the form of Prometheus'
// file_sd: JSON, or YAML with the same keys.
type targetGroup struct {
	Targets []string          `yaml:"targets" json:"targets"`
	Labels  map[string]string `yaml:"labels" json:"labels"`
}

// fileWatcher makes the targets of a file engines, and reads it again when it
// changes.
type fileWatcher struct {
	fleet *Fleet
	name  string
	id    string // begins the engines' ids
}

// prepareFile reads the file. It must be there and right at the start; later
// a bad one is reported and the engines stay as they are.
func (f *Fleet) prepareFile(e *entry) error {
	w := &fileWatcher{fleet: f, name: e.engine.File, id: e.engine.ID}
	ts, err := w.read()
	if err != nil {
		return err
	}
	e.watch, e.want = w, ts
	return nil
}

func (w *fileWatcher) read() ([]target, error) {
	b, err := os.ReadFile(w.name)
	if err != nil {
		return nil, fmt.Errorf("file: %w", err)
	}
	ts, err := parseTargets(b, w.id)
	if err != nil {
		return nil, fmt.Errorf("file %s: %w", w.name, err)
	}
	return ts, nil
}

func (w *fileWatcher) run(ctx context.Context, set func([]target)) {
	again := func() {
		ts, err := w.read()
		if err != nil {
			w.fleet.log.Error("file of targets not taken: its engines stay as they are", "error", err)
			return
		}
		set(ts)
	}
	if err := configs.Watch(ctx, w.name, again); err != nil {
		w.fleet.log.Error("file of targets is not watched", "file", w.name, "error", err)
	}
}

func (w *fileWatcher) halt() {}

// parseTargets reads a file of targets. prefix begins their ids.
func parseTargets(b []byte, prefix string) ([]target, error) {
	var groups []targetGroup
	if err := yaml.UnmarshalWithOptions(b, &groups, yaml.Strict()); err != nil {
		return nil, fmt.Errorf("expected a list of {targets: [host:port], labels: {}}: %s", yaml.FormatError(err, false, false))
	}
	if groups == nil { // also when there are but comments so far: [] says that there is none
		return nil, errors.New("empty, expected a list of {targets: [host:port], labels: {}}")
	}
	var ts []target
	var errs []error
	for i, g := range groups {
		for _, raw := range g.Targets {
			t, err := fileTarget(raw, g.Labels, prefix, len(g.Targets))
			if err != nil {
				errs = append(errs, fmt.Errorf("[%d]: %w", i, err))
				continue
			}
			if slices.ContainsFunc(ts, func(o target) bool { return o.id == t.id }) {
				errs = append(errs, fmt.Errorf("[%d]: target %q: the id %q is given twice", i, raw, t.id))
				continue
			}
			ts = append(ts, t)
		}
	}
	return ts, errors.Join(errs...)
}

// fileTarget reads one target and its group's labels. Labels that are not ours
// are for others (Prometheus itself may read the same file) and pass.
func fileTarget(raw string, labels map[string]string, prefix string, of int) (target, error) {
	full := raw
	if !strings.Contains(raw, "://") {
		scheme := labels["__scheme__"]
		if scheme == "" {
			scheme = "http"
		}
		full = scheme + "://" + raw
	}
	clean, u, err := cleanURL(full)
	if err != nil {
		return target{}, fmt.Errorf("target %q: expected host:port, or a URL", raw)
	}
	t := target{id: hostPort(u), url: clean, kind: labels["kind"], dpRanks: labels["dp_ranks"]}
	if prefix != "" {
		t.id = prefix + "-" + t.id
	}
	if id := labels["id"]; id != "" {
		if of > 1 {
			return target{}, fmt.Errorf("target %q: label id on a group of %d targets, expected one", raw, of)
		}
		t.id = id
	}
	if t.kind != "" {
		if _, err := newAdapter(Kind(t.kind)); err != nil {
			return target{}, fmt.Errorf("target %q: label %w", raw, err)
		}
	}
	if d := t.dpRanks; d != "" && d != "auto" && d != "off" {
		return target{}, fmt.Errorf("target %q: label dp_ranks %q, expected auto or off", raw, d)
	}
	if err := t.setRoles(raw, labels["roles"]); err != nil {
		return target{}, err
	}
	return t, t.numbers(raw, labels)
}

// setRoles reads the label roles. A word that is no role would shut the engine
// out of what was meant.
func (t *target) setRoles(raw, label string) error {
	if label == "" {
		return nil
	}
	for role := range strings.SplitSeq(label, ",") {
		role = strings.TrimSpace(role)
		if role != "chat" && role != "scoring" {
			return fmt.Errorf("target %q: label roles %q, expected chat, scoring or both, separated by a comma", raw, label)
		}
		t.roles = append(t.roles, role)
	}
	return nil
}

func (t *target) numbers(raw string, labels map[string]string) error {
	for name, to := range map[string]*int{"first_rank": &t.firstRank, "max_running": &t.maxRunning, "kv_tokens": &t.kvTokens} {
		text, ok := labels[name]
		if !ok {
			continue
		}
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 {
			return fmt.Errorf("target %q: label %s %q, expected a number", raw, name, text)
		}
		*to = n
	}
	return nil
}

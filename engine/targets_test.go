package engine

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"penstock/configs"
)

// targetsFile is a file of targets that a test writes again and again.
type targetsFile struct {
	t    *testing.T
	path string
}

func newTargets(t *testing.T, fakes ...*fake) targetsFile {
	tf := targetsFile{t, filepath.Join(t.TempDir(), "targets.json")}
	tf.name(fakes...)
	return tf
}

func (tf targetsFile) write(text string) {
	tf.t.Helper()
	if err := os.WriteFile(tf.path, []byte(text), 0o600); err != nil {
		tf.t.Fatal(err)
	}
}

// name makes the targets these engines, without labels.
func (tf targetsFile) name(fakes ...*fake) {
	var hosts []string
	for _, f := range fakes {
		hosts = append(hosts, `"`+hostIn(f)+`"`)
	}
	tf.write(`[{"targets":[` + strings.Join(hosts, ",") + `]}]`)
}

func (tf targetsFile) engine() configs.Engine { return configs.Engine{File: tf.path} }

// hostIn is the id of an engine that is named by its address.
func hostIn(f *fake) string { return strings.TrimPrefix(f.URL, "http://") }

// loggingFleet is startFleet with a log to look into.
func loggingFleet(t *testing.T, cfg *configs.Config) (*Fleet, *logged) {
	log := &logged{}
	f := NewFleet(Options{Logger: textLogger(log)})
	t.Cleanup(f.Close)
	apply(t, f, cfg)
	return f, log
}

const leftOut = "two engines have one id"

// The file that an engine moves to may be read before the one that it leaves.
func TestEngineThatMovesBetweenSourcesIsNotLost(t *testing.T) {
	for name, leave := range map[string]func(f *Fleet, p, q targetsFile, a *fake){
		"the other file drops it": func(_ *Fleet, p, _ targetsFile, a *fake) { p.name(a) },
		"the other file's engine is taken out": func(f *Fleet, _, q targetsFile, a *fake) {
			apply(t, f, quick(served("m", at(a)), served("n", q.engine())))
		},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := newFake(t, KindVLLM, 1), newFake(t, KindVLLM, 1)
			p, q := newTargets(t, a, b), newTargets(t)
			f, log := loggingFleet(t, quick(served("m", p.engine()), served("n", q.engine())))
			q.name(b)
			eventually(t, "the move seen", func() bool { return strings.Contains(log.String(), leftOut) })
			if r := replica(t, f, hostIn(b)); r.Model() != "m" {
				t.Fatalf("an id that two sources have: got it with model %s, want it left to m", r.Model())
			}
			leave(f, p, q, a)
			eventually(t, "the engine of the other model", func() bool {
				r, ok := f.Replica(hostIn(b))
				return ok && r.Model() == "n" && r.Usable() && len(f.Replicas()) == 2
			})
			if n := strings.Count(log.String(), leftOut); n != 1 {
				t.Errorf("lines about it: got %d, want 1", n)
			}
		})
	}
}

func TestChangedLabelsAreTakenOver(t *testing.T) {
	e := newFake(t, KindVLLM, 2)
	p := newTargets(t)
	labels := func(text string) {
		p.write(`[{"targets":["` + hostIn(e) + `"],"labels":{"id":"a",` + text + `}}]`)
	}
	labels(`"max_running":"32","roles":"chat"`)
	f, log := loggingFleet(t, quick(served("m", p.engine())))
	r := replica(t, f, "a/1")
	work := r.Begin(true)
	defer work.End(true)
	if r.Capacity().MaxRunning != 32 || r.HasRole("scoring") {
		t.Fatalf("as first labelled: got %+v, roles %v", r.Capacity(), r.Roles())
	}
	labels(`"max_running":"512","roles":"chat,scoring"`)
	eventually(t, "another limit and role", func() bool { return r.Capacity().MaxRunning == 512 && r.HasRole("scoring") })
	if replica(t, f, "a/1") != r || !r.Usable() || !strings.Contains(log.String(), "engine has new settings") {
		t.Errorf("after other labels: got %s, usable %v; want the same replica, usable, and a line in the log", ids(f), r.Usable())
	}
	labels(`"first_rank":"4"`)
	eventually(t, "other ranks", func() bool { return ids(f) == "a/4 a/5" })
	labels(`"dp_ranks":"off"`)
	eventually(t, "no ranks", func() bool { return ids(f) == "a" })
	labels(`"kind":"openai","kv_tokens":"77"`)
	eventually(t, "another kind and size", func() bool {
		r := replica(t, f, "a")
		return r.Kind() == KindOpenAI && r.Capacity().KVTokens == 77
	})
}

// Whether an id is taken is a matter of the engines there are, not of those
// that a source had at its start.
func TestReloadKnowsWhatSourcesHaveNow(t *testing.T) {
	a, b := newFake(t, KindVLLM, 1), newFake(t, KindVLLM, 1)
	p := newTargets(t, a, b)
	f, _ := startFleet(t, quick(served("m", p.engine())))
	p.name(b)
	eventually(t, "the first gone", func() bool { return ids(f) == hostIn(b) })
	apply(t, f, quick(served("m", p.engine(), at(a))))
	if got, want := ids(f), hostIn(b)+" "+hostIn(a); got != want {
		t.Errorf("named by its URL, once the file of targets has dropped it: got %s, want %s", got, want)
	}
	apply(t, f, quick(served("m", p.engine())))
	p.name(a, b)
	eventually(t, "both", func() bool { return len(f.Replicas()) == 2 })
	err := f.Apply(t.Context(), quick(served("m", at(a), p.engine())))
	if err == nil || !strings.Contains(err.Error(), "two engines have the id") || len(f.Replicas()) != 2 {
		t.Errorf("named by its URL and by the file of targets that took it up later: got %v and %s, want a refusal", err, ids(f))
	}
}

func TestFileWinsOverTheAdminAPI(t *testing.T) {
	a, b, c := newFake(t, KindVLLM, 1), newFake(t, KindVLLM, 1), newFake(t, KindVLLM, 1)
	for name, tt := range map[string]struct {
		file func(f *Fleet, p targetsFile)
		kept bool
	}{
		"a URL of another model": {func(f *Fleet, p targetsFile) {
			apply(t, f, quick(served("m", at(a)), served("n", at(b), at(c), p.engine())))
		}, false},
		"a URL of the same model": {func(f *Fleet, p targetsFile) {
			apply(t, f, quick(served("m", at(a), at(c)), served("n", at(b), p.engine())))
		}, true},
		"another URL": {func(f *Fleet, p targetsFile) {
			apply(t, f, quick(served("m", at(a)), served("n", configs.Engine{URL: b.URL, ID: hostIn(c)}, p.engine())))
		}, false},
		"a file of targets": {func(f *Fleet, p targetsFile) { p.name(c) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			p := newTargets(t)
			f, rec := startFleet(t, quick(served("m", at(a)), served("n", at(b), p.engine())))
			id, err := f.Add("m", at(c))
			if err != nil {
				t.Fatal(err)
			}
			eventually(t, "the added engine", func() bool { return replica(t, f, id).Usable() })
			added := replica(t, f, id)
			gone := rec.count(Removed)
			tt.file(f, p)
			eventually(t, "the file's engine", func() bool { r := replica(t, f, id); return r.Source() != "admin" && r.Usable() })
			all := strings.Fields(ids(f))
			if n := len(slices.Compact(slices.Sorted(slices.Values(all)))); n != len(all) {
				t.Errorf("replicas: got %v, want each id once", all)
			}
			if kept := replica(t, f, id) == added; kept != tt.kept || added.Usable() != tt.kept || kept && rec.count(Removed) != gone {
				t.Errorf("the added replica: kept %v, usable %v, %d removed; want kept %v", kept, added.Usable(), rec.count(Removed)-gone, tt.kept)
			}
			if err := f.Remove(id); !errors.Is(err, ErrConflict) {
				t.Errorf("removal of what the file names now: got %v, want ErrConflict", err)
			}
		})
	}
}

// A source that a reload has dropped is ended when its requests have; until
// then it brings no new engines.
func TestDroppedSourceBringsNothing(t *testing.T) {
	a, b, c := newFake(t, KindVLLM, 1), newFake(t, KindVLLM, 1), newFake(t, KindVLLM, 1)
	f, rec := startFleet(t, quick(served("m", newTargets(t, a).engine())))
	work := f.Replicas()[0].Begin(true)
	defer work.End(true)
	dropped := f.entries[0]
	apply(t, f, quick(served("m", at(b))))
	f.found(t.Context(), dropped, []target{{id: "c", url: c.URL}})
	if n := len(dropped.servers); n != 1 || dropped.servers[0].id != hostIn(a) || rec.count(Removed) != 1 {
		t.Errorf("targets of a dropped source: it has %d engines, %d removed; want the one of before, and 1", n, rec.count(Removed))
	}
	f.found(t.Context(), f.entries[0], []target{{id: "c", url: c.URL}})
	if ids(f) != "c" {
		t.Errorf("targets of another: got %s, want c", ids(f))
	}
}

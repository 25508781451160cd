package engine

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"penstock/configs"
)

// names is a resolver with one answer for every name.
type names struct {
	mu    sync.Mutex
	addrs []netip.Addr
	err   error
}

func (n *names) LookupNetIP(context.Context, string, string) ([]netip.Addr, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.addrs), n.err
}

func (n *names) set(err error, addrs ...string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.err, n.addrs = err, nil
	for _, a := range addrs {
		n.addrs = append(n.addrs, netip.MustParseAddr(a))
	}
}

func TestEveryAddressOfANameIsAnEngine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := startMemory(t, map[string]*fake{
			"10.0.0.1": bare(KindSGLang, 1), "10.0.0.2": bare(KindSGLang, 1), "10.0.0.3": bare(KindSGLang, 1),
		})
		n := &names{}
		n.set(nil, "10.0.0.2", "::ffff:10.0.0.1")
		f := NewFleet(Options{Dial: m.dial, Resolver: n})
		defer f.Close()
		cfg := slow(served("m", configs.Engine{URL: "http://pods.svc", ID: "pod", Resolve: "dns"}))
		cfg.Health.ResolveInterval = 10 * time.Second
		apply(t, f, cfg)
		if got, want := ids(f), "pod-10.0.0.1 pod-10.0.0.2"; got != want {
			t.Fatalf("replicas of two addresses: got %s, want %s", got, want)
		}
		stays := replica(t, f, "pod-10.0.0.2")
		if c := stays.Conn(); c.Host != "pods.svc" || c.Addr != "10.0.0.2:80" || stays.Source() != "dns" {
			t.Errorf("connection: got host %q, addr %q, source %s; want the name as the host", c.Host, c.Addr, stays.Source())
		}
		n.set(nil, "10.0.0.2", "10.0.0.3")
		within(t, 12*time.Second, "the new address", func() bool { return strings.Contains(ids(f), "pod-10.0.0.3") })
		within(t, 12*time.Second, "the old address gone", func() bool { return ids(f) == "pod-10.0.0.2 pod-10.0.0.3" })
		n.set(errors.New("server misbehaving"))
		time.Sleep(time.Minute)
		n.set(nil)
		time.Sleep(time.Minute)
		if got := ids(f); got != "pod-10.0.0.2 pod-10.0.0.3" || replica(t, f, "pod-10.0.0.2") != stays {
			t.Errorf("after failed and empty look-ups: got %s, want both as they were", got)
		}
	})
}

func TestWatchedFileOfTargets(t *testing.T) {
	a, b := newFake(t, KindSGLang, 1), newFake(t, KindVLLM, 2)
	path := filepath.Join(t.TempDir(), "targets.json")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	host := func(f *fake) string { return strings.TrimPrefix(f.URL, "http://") }
	write(`[{"targets":["` + host(a) + `"],"labels":{"id":"a","env":"prod"}}]`)
	f, _ := startFleet(t, quick(served("m", configs.Engine{File: path})))
	if got := ids(f); got != "a" {
		t.Fatalf("replicas of the file: got %s, want a", got)
	}
	first := replica(t, f, "a")
	write(`[{"targets":["` + host(a) + `"],"labels":{"id":"a"}},{"targets":["` + b.URL + `"],"labels":{"id":"b","kind":"vllm","max_running":"32","first_rank":"2"}}]`)
	eventually(t, "the second target", func() bool { return ids(f) == "a b/2 b/3" })
	if r := replica(t, f, "b/3"); r.Capacity().MaxRunning != 32 || r.Source() != "file" || first != replica(t, f, "a") {
		t.Errorf("replica b/3: got %+v from %s; want 32 running by its label, from file, and a as it was", r.Capacity(), r.Source())
	}
	write(`[{"targets":`)
	write(`- targets: ["` + host(b) + `"]` + "\n  labels: {id: b, first_rank: \"2\"}\n")
	eventually(t, "the first target gone", func() bool { return ids(f) == "b/2 b/3" })
}

func TestBadFilesOfTargetsAreOneClearLine(t *testing.T) {
	for text, want := range map[string]string{
		``:                            "empty, expected a list",
		"# nobody yet\n":              "empty, expected a list",
		`null`:                        "empty, expected a list",
		`{"targets":["h:1"]}`:         "expected a list",
		`[{"target":["h:1"]}]`:        `unknown field "target"`,
		`[{"targets":["h:1","h:1"]}]`: `the id "h:1" is given twice`,
		`[{"targets":["ftp://h:1"]}]`: `target "ftp://h:1": expected host:port, or a URL`,
		`[{"targets":["h:1"],"labels":{"kind":"x"}}]`:             `kind "x" is unknown`,
		`[{"targets":["h:1"],"labels":{"max_running":"many"}}]`:   `label max_running "many", expected a number`,
		`[{"targets":["h:1","h:2"],"labels":{"id":"x"}}]`:         "label id on a group of 2 targets",
		`[{"targets":["h:1"],"labels":{"dp_ranks":"sometimes"}}]`: `label dp_ranks "sometimes", expected auto or off`,
		`[{"targets":["h:1"],"labels":{"roles":"chat, scorng"}}]`: `label roles "chat, scorng", expected chat, scoring or both`,
		`[{"targets":["h:1"],"labels":{"roles":"chat,"}}]`:        `label roles "chat,", expected chat, scoring or both`,
	} {
		_, err := parseTargets([]byte(text), "")
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want an error with %q", text, err, want)
		}
	}
	ts, err := parseTargets([]byte(`[{"targets":["h:1"],"labels":{"roles":" chat , scoring"}}]`), "")
	if err != nil || !slices.Equal(ts[0].roles, []string{"chat", "scoring"}) {
		t.Errorf("roles with spaces around: got %+v, %v; want chat and scoring", ts, err)
	}
	f := NewFleet(Options{})
	defer f.Close()
	err = f.Apply(t.Context(), quick(served("m", configs.Engine{File: "/nowhere/targets.json"})))
	if err == nil || !strings.Contains(err.Error(), "model m: engines[0]: file:") {
		t.Errorf("a file that is not there: got %v, want it named", err)
	}
}

func TestAdminAddsDrainsAndRemoves(t *testing.T) {
	a, b := newFake(t, KindSGLang, 1), newFake(t, KindSGLang, 2)
	cfg := quick(served("m", configs.Engine{URL: a.URL, ID: "a"}))
	f, rec := startFleet(t, cfg)
	id, err := f.Add("", configs.Engine{URL: b.URL + "/v1/", ID: "b"})
	if err != nil || id != "b" {
		t.Fatalf("Add: got %q, %v; want b", id, err)
	}
	eventually(t, "the added engine's ranks", func() bool { return ids(f) == "a b/0 b/1" && replica(t, f, "b/1").Usable() })
	apply(t, f, cfg)
	r := replica(t, f, "b/1")
	if r.Source() != "admin" || !r.Usable() {
		t.Errorf("after a reload: got source %s, usable %v; want admin, usable", r.Source(), r.Usable())
	}

	for call, tt := range map[string]struct {
		err  error
		want error
	}{
		"add one there is":       {second(f.Add("m", configs.Engine{URL: b.URL, ID: "a"})), ErrConflict},
		"add without url":        {second(f.Add("m", configs.Engine{})), ErrInvalid},
		"add without scheme":     {second(f.Add("m", configs.Engine{URL: "h:1"})), ErrInvalid},
		"add of unknown kind":    {second(f.Add("m", configs.Engine{URL: "http://h:1", Kind: "x"})), ErrInvalid},
		"add to unknown model":   {second(f.Add("n", configs.Engine{URL: "http://h:1"})), ErrNotFound},
		"remove one of the file": {f.Remove("a"), ErrConflict},
		"remove one unknown":     {f.Remove("z"), ErrNotFound},
		"drain one unknown":      {f.Drain("z"), ErrNotFound},
	} {
		if !errors.Is(tt.err, tt.want) {
			t.Errorf("%s: got %v, want %v", call, tt.err, tt.want)
		}
	}

	work := r.Begin(true)
	if err := f.Drain("b"); err != nil || r.Usable() || r.State() != StateDraining {
		t.Errorf("drain of a URL: got %v, usable %v, state %s; want its ranks draining", err, r.Usable(), r.State())
	}
	if err := f.Undrain("b"); err != nil || !r.Usable() {
		t.Errorf("undrain: got %v, usable %v; want usable", err, r.Usable())
	}
	if err := f.Drain("b/0"); err != nil || replica(t, f, "b/0").Usable() || !r.Usable() {
		t.Errorf("drain of one rank: got %v; want it alone to drain", err)
	}
	if err := f.Remove("b/0"); err != nil || ids(f) != "a b/1" {
		t.Errorf("removal of one rank: got %v, left %s; want a b/1", err, ids(f))
	}
	if err := f.Remove("b/1"); err != nil || ids(f) != "a" || r.Usable() {
		t.Errorf("removal of the other: got %v, left %s; want a", err, ids(f))
	}
	work.End(true)
	if rec.count(Removed) != 2 {
		t.Errorf("removed events: got %d, want 2", rec.count(Removed))
	}
}

func second(_ string, err error) error { return err }

func TestFileTakesOverWhatTheAdminAdded(t *testing.T) {
	a, b := newFake(t, KindSGLang, 1), newFake(t, KindSGLang, 1)
	ea, eb := configs.Engine{URL: a.URL, ID: "a"}, configs.Engine{URL: b.URL, ID: "b"}
	f, rec := startFleet(t, quick(served("m", ea)))
	if _, err := f.Add("m", eb); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the added engine", func() bool { return replica(t, f, "b").Usable() })
	r := replica(t, f, "b")
	apply(t, f, quick(served("m", ea, eb)))
	if replica(t, f, "b") != r || r.Source() != "static" || rec.count(Removed) != 0 {
		t.Errorf("replica named by the file now: got source %s, %d removed; want it kept, and static", r.Source(), rec.count(Removed))
	}
	if err := f.Remove("b"); !errors.Is(err, ErrConflict) {
		t.Errorf("removal of what the file names now: got %v, want ErrConflict", err)
	}
	apply(t, f, quick(served("m", ea)))
	if got := ids(f); got != "a" {
		t.Errorf("after the file dropped it: got %s, want a", got)
	}
}

// A hundred reloads that change nothing keep every replica and its state.
func TestReloadsLoseNothing(t *testing.T) {
	a, b := newFake(t, KindSGLang, 2), newFake(t, KindVLLM, 1)
	cfg := quick(served("m", at(a), at(b)))
	f, rec := startFleet(t, cfg)
	before := f.Replicas()
	work := before[0].Begin(true)
	defer work.End(true)
	for range 100 {
		again := *cfg
		if err := f.Apply(t.Context(), &again); err != nil {
			t.Fatal(err)
		}
		for i, r := range f.Replicas() {
			if r != before[i] || !r.Usable() {
				t.Fatalf("replica %s after a reload: another, or not usable", r.ID())
			}
		}
	}
	if rec.count(Removed) != 0 || rec.count(Unhealthy) != 0 || before[0].InFlight() != 1 {
		t.Errorf("after 100 reloads: %d removed, %d unhealthy, %d in flight; want 0, 0, 1",
			rec.count(Removed), rec.count(Unhealthy), before[0].InFlight())
	}
}

package configs

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// startWatch watches path and returns a function that waits for one change.
func startWatch(t *testing.T, path string) (changed func() bool) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	changes := make(chan struct{}, 100)
	done := make(chan error, 1)
	ready := make(chan struct{})
	go func() {
		close(ready)
		done <- Watch(ctx, path, func() { changes <- struct{}{} })
	}()
	<-ready
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Watch(%s): got error %v, want none", path, err)
		}
		goleak.VerifyNone(t, goleak.IgnoreCurrent())
	})
	return func() bool {
		select {
		case <-changes:
			return true
		case <-time.After(5 * time.Second):
			return false
		}
	}
}

func put(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// untilSeen changes the file until a change is reported: the watch begins at
// some moment after its goroutine, and a change before it is rightly missed.
func untilSeen(t *testing.T, path string, changed func() bool) {
	t.Helper()
	deadline := time.Now().Add(5 * time.Second)
	got := make(chan bool, 1)
	go func() { got <- changed() }()
	for i := 0; ; i++ {
		put(t, path, time.Now().String())
		select {
		case ok := <-got:
			if !ok {
				t.Fatal("no change was reported within 5 s")
			}
			return
		case <-time.After(2 * settle):
			if time.Now().After(deadline) {
				t.Fatal("no change was reported within 5 s")
			}
		}
	}
}

func TestWatchSeesWritesRenamesAndReturns(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "penstock.yaml")
	put(t, path, "one")
	changed := startWatch(t, path)
	untilSeen(t, path, changed)

	for i := range 2 { // twice: a rename must not end the watch
		put(t, path+"~", []string{"renamed", "renamed again"}[i])
		must(t, os.Rename(path+"~", path))
		if !changed() {
			t.Fatalf("rename %d over the file: no change was reported", i+1)
		}
	}
	must(t, os.Remove(path))
	put(t, path, "back")
	if !changed() {
		t.Error("removed and written anew: no change was reported")
	}
	for _, what := range []string{"removed", "back with the same content"} {
		if what == "removed" {
			must(t, os.Remove(path))
		} else {
			put(t, path, "back")
		}
		if !changed() {
			t.Errorf("%s: no change was reported", what)
		}
	}
}

func TestWatchSeesKubernetesSwaps(t *testing.T) {
	dir := t.TempDir()
	version := func(name, text string) {
		must(t, os.Mkdir(filepath.Join(dir, name), 0o700))
		put(t, filepath.Join(dir, name, "penstock.yaml"), text)
		must(t, os.Symlink(name, filepath.Join(dir, "..data_tmp")))
		must(t, os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")))
	}
	version("..v1", "one")
	path := filepath.Join(dir, "penstock.yaml")
	must(t, os.Symlink(filepath.Join("..data", "penstock.yaml"), path))
	changed := startWatch(t, path)
	untilSeen(t, path, changed)
	for i, name := range []string{"..v2", "..v3"} {
		version(name, name)
		must(t, os.RemoveAll(filepath.Join(dir, []string{"..v1", "..v2"}[i])))
		if !changed() {
			t.Fatalf("swap to %s: no change was reported", name)
		}
	}
}

func TestWatchSeesChangesBehindALinkIntoAnotherFolder(t *testing.T) {
	dir, other := t.TempDir(), t.TempDir()
	path, target := filepath.Join(dir, "penstock.yaml"), filepath.Join(other, "real.yaml")
	put(t, target, "one")
	must(t, os.Symlink(target, path))
	changed := startWatch(t, path)
	untilSeen(t, path, changed)
	put(t, target, "changed there")
	if !changed() {
		t.Error("a write to the link's target: no change was reported")
	}
}

func TestWatchKeepsQuietWhenTheContentIsTheSame(t *testing.T) {
	path := filepath.Join(t.TempDir(), "penstock.yaml")
	put(t, path, "one")
	changed := startWatch(t, path)
	untilSeen(t, path, changed)
	put(t, path, "same")
	if !changed() {
		t.Fatal("no change was reported")
	}
	put(t, path, "same")
	put(t, path, "another")
	if !changed() {
		t.Fatal("no change was reported")
	}
	if got, _ := os.ReadFile(path); string(got) != "another" {
		t.Fatalf("got %q", got)
	}
}

package configs

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestAChangeBeforeTheWatchIsInPlaceIsNotMissed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte("changed after the caller has read it"), 0o600); err != nil {
		t.Fatal(err)
	}
	told := make(chan struct{}, 8)
	go func() { _ = Watch(t.Context(), path, func() { told <- struct{}{} }) }()
	select {
	case <-told:
	case <-time.After(5 * time.Second):
		t.Fatal("no call within 5s of the start: got none, want one")
	}
}

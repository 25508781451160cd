package main

import (
	"bytes"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestGatheredLinesAreWholeAndComplete(t *testing.T) {
	var out bytes.Buffer
	g := &gathered{w: &out}
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for k := range 2000 {
				fmt.Fprintf(g, "line %d %d\n", i, k)
			}
		})
	}
	all.Wait()
	g.flush()
	next := map[int]int{}
	for line := range strings.Lines(out.String()) {
		var i, k int
		if _, err := fmt.Sscanf(line, "line %d %d\n", &i, &k); err != nil || k != next[i] {
			t.Fatalf("got %q, want line %d of writer %d whole and in order", line, next[i], i)
		}
		next[i]++
	}
	for i := range 8 {
		if next[i] != 2000 {
			t.Errorf("lines of writer %d: got %d, want 2000", i, next[i])
		}
	}
}

// guarded is a buffer that is read while it may be written.
type guarded struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (g *guarded) Write(p []byte) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.buf.Write(p)
}

func (g *guarded) String() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.buf.String()
}

func TestGatheredLineWaitsNoLongerThanItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out guarded
		g := &gathered{w: &out}
		fmt.Fprint(g, "one\n")
		if got := out.String(); got != "" {
			t.Errorf("a single line was written at once: %q", got)
		}
		time.Sleep(gatherFor)
		synctest.Wait()
		if got := out.String(); got != "one\n" {
			t.Errorf("after %v: got %q, want the line", gatherFor, got)
		}
	})
}

package main

import (
	"io"
	"sync"
	"time"
)

// gathered is a writer that gathers small writes for a moment: one system call
// for each access line would cost more than all that stands in it. Each Write
// is taken as a whole. Safe for concurrent use.
type gathered struct {
	w io.Writer

	mu      sync.Mutex
	buf     []byte
	waiting bool // a flush is due

	writing sync.Mutex // held while w is written to, so that lines stay in order
	spare   []byte
}

const (
	// gatherFor is how long a line may wait for others.
	gatherFor = 50 * time.Millisecond
	// gatherBytes is how many bytes are written at once.
	gatherBytes = 32 << 10
)

func (g *gathered) Write(p []byte) (int, error) {
	g.mu.Lock()
	g.buf = append(g.buf, p...)
	full := len(g.buf) >= gatherBytes
	if !full && !g.waiting {
		g.waiting = true
		time.AfterFunc(gatherFor, g.flush)
	}
	g.mu.Unlock()
	if full {
		g.flush()
	}
	return len(p), nil
}

// flush writes what has been gathered.
func (g *gathered) flush() {
	g.writing.Lock()
	defer g.writing.Unlock()
	g.mu.Lock()
	g.waiting = false
	out := g.buf
	g.buf = g.spare[:0]
	g.mu.Unlock()
	if len(out) > 0 {
		_, _ = g.w.Write(out) // nobody is left to tell
	}
	g.spare = out
}

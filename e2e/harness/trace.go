package harness

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"os"
	"testing"
)

// Sessions are the first n lines of a trace beside the checkout, each a session
// in JSON. The test is skipped without the trace, and fails if it is shorter.
func Sessions(t testing.TB, name string, n int) (lines [][]byte) {
	t.Helper()
	f, err := os.Open(Shared(t, name))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	in := bufio.NewScanner(z)
	in.Buffer(nil, 16<<20)
	for len(lines) < n && in.Scan() {
		lines = append(lines, bytes.Clone(in.Bytes()))
	}
	if len(lines) < n || in.Err() != nil {
		t.Fatalf("%s: %d sessions (%v), want %d", name, len(lines), in.Err(), n)
	}
	return lines
}

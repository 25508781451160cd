package harness

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestCasesAreReadFromAmongOtherOutput(t *testing.T) {
	out := "noise\n{\"name\":\"a\",\"error\":\"\",\"seconds\":0.5}\n{\"other\":1}\n{\"name\":\"b\",\"error\":\"boom\"}\n"
	want := []Case{{Name: "a", Seconds: 0.5}, {Name: "b", Error: "boom"}}
	if got := parseCases([]byte(out)); !slices.Equal(got, want) {
		t.Errorf("parseCases(%q) = %v, want %v", out, got, want)
	}
}

func TestTailKeepsTheEnd(t *testing.T) {
	w := &tail{}
	for range 5 * tailSize / 1024 {
		_, _ = w.Write(bytes.Repeat([]byte("x"), 1023))
		_, _ = w.Write([]byte("\n"))
	}
	_, _ = w.Write([]byte("the end"))
	if got := w.String(); !strings.HasSuffix(got, "the end") || len(got) != tailSize {
		t.Errorf("%d bytes kept, ending %q; want %d ending in \"the end\"", len(got), got[max(0, len(got)-10):], tailSize)
	}
}

func TestPollReturnsTheLastError(t *testing.T) {
	calls, last := 0, errors.New("not yet")
	if err := poll(time.Minute, func() error {
		if calls++; calls < 3 {
			return last
		}
		return nil
	}); err != nil || calls != 3 {
		t.Errorf("poll: %v after %d calls, want nil after 3", err, calls)
	}
	if err := poll(time.Millisecond, func() error { return last }); !errors.Is(err, last) {
		t.Errorf("poll: %v, want %v", err, last)
	}
}

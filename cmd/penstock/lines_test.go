package main

import (
	"bytes"
	"testing"

	"penstock/gateway"
)

func TestFinishedLinesGoWhereTheLogGoesInItsFormat(t *testing.T) {
	for _, c := range []struct{ flag, configured, want string }{
		{"", "json", "json"}, {"", "text", "text"}, {"json", "text", "json"}, {"text", "json", "text"},
	} {
		var b bytes.Buffer
		o := &logOptions{format: c.flag}
		log, _ := o.newLogger(&b, c.configured, "")
		h, ok := o.takeLines(log, &b, c.configured).Handler().(gateway.LineTaker)
		if !ok || h.LineFormat() != c.want {
			t.Fatalf("flag %q, configured %q: lines as %q, want %q", c.flag, c.configured, h.LineFormat(), c.want)
		}
		h.TakeLine([]byte("a line\n"))
		if b.String() != "a line\n" {
			t.Errorf("wrote %q", b.String())
		}
	}
}

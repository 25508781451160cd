package gateway

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"regexp"
	"testing"
	"time"
)

// lineBox is a LineTaker that remembers.
type lineBox struct {
	slog.Handler
	format string
	got    bytes.Buffer
}

func (b *lineBox) LineFormat() string { return b.format }
func (b *lineBox) TakeLine(l []byte)  { b.got.Write(l) }

// TestAccessLinesAreWhatSlogWouldWrite writes the same lines by hand and by slog's handlers.
func TestAccessLinesAreWhatSlogWouldWrite(t *testing.T) {
	times := regexp.MustCompile(`"?time"?[:=]"?[0-9T:.Z+-]+"?`)
	for _, format := range []string{"json", "text"} {
		for _, odd := range []string{"plain", "", "two words", `quote"d`, `back\slash`, "a=b", "größe", "\x00\n\t", "bad\xffutf8", "<a>&b", "line\u2028sep", "\u00a0", "\x7f", "日本"} {
			_, r := benchRequest(-1)
			r.client.name, r.target.pool.name, r.id = odd, odd, odd
			r.record.err, r.record.retries, r.record.attempts = odd, []string{odd, "b: connect"}, []string{odd, "second"}
			r.record.status, r.record.code = 502, "upstream_error"
			r.record.queued, r.record.decision.Cost = 1234567*time.Nanosecond, 0.0123456
			var want bytes.Buffer
			handler := slog.Handler(slog.NewJSONHandler(&want, nil))
			if format == "text" {
				handler = slog.NewTextHandler(&want, nil)
			}
			r.s.access = slog.New(handler)
			r.logLine(time.Now())

			box := &lineBox{Handler: handler, format: format}
			r.s.lines = box
			r.s.linePool.New = func() any { return &lineFields{json: format == "json"} }
			r.logLine(time.Now())
			got := times.ReplaceAllString(box.got.String(), "TIME")
			if w := times.ReplaceAllString(want.String(), "TIME"); got != w {
				t.Errorf("%s, with %q: got\n%s\nwant\n%s", format, odd, got, w)
			}
		}
	}
}

func TestTheTimeOfALineIsWrittenAsSlogWritesIt(t *testing.T) {
	zone := time.FixedZone("", 2*3600)
	for _, at := range []time.Time{
		time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), time.Date(2026, 1, 2, 3, 4, 5, 678912345, time.UTC), time.Date(2026, 1, 2, 3, 4, 5, 999999999, zone),
	} {
		for _, json := range []bool{true, false} {
			var want bytes.Buffer
			h := slog.Handler(slog.NewTextHandler(&want, nil))
			if json {
				h = slog.NewJSONHandler(&want, nil)
			}
			_ = h.Handle(context.Background(), slog.NewRecord(at, slog.LevelWarn, "request", 0))
			l := &lineFields{json: json}
			l.begin(at, slog.LevelWarn, "request")
			if got := string(l.end()); got != want.String() {
				t.Errorf("%v: got %s want %s", at, got, want.String())
			}
		}
	}
}

// BenchmarkAccessLine is one line, to nowhere.
func BenchmarkAccessLine(b *testing.B) {
	for name, lines := range map[string]LineTaker{"slog": nil, "line": &nowhere{}} {
		b.Run(name, func(b *testing.B) {
			_, r := benchRequest(-1)
			r.s.access = slog.New(slog.NewJSONHandler(io.Discard, nil))
			r.s.lines = lines
			r.s.linePool.New = func() any { return &lineFields{json: true} }
			b.ReportAllocs()
			for b.Loop() {
				r.logLine(time.Now())
			}
		})
	}
}

type nowhere struct{}

func (*nowhere) LineFormat() string { return "json" }
func (*nowhere) TakeLine([]byte)    {}

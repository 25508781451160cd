package main

import (
	"cmp"
	"io"
	"log/slog"

	"penstock/gateway"
)

// wholeLines is a log handler that also takes finished lines.
type wholeLines struct {
	slog.Handler
	w      io.Writer
	format string
}

var _ gateway.LineTaker = wholeLines{}

// LineFormat is the form that TakeLine wants.
func (h wholeLines) LineFormat() string { return h.format }

// TakeLine writes a line that is in that form already.
func (h wholeLines) TakeLine(line []byte) { _, _ = h.w.Write(line) }

// takeLines has a logger of newLogger's, for the same w and format, take
// finished lines too.
func (o *logOptions) takeLines(log *slog.Logger, w io.Writer, format string) *slog.Logger {
	return slog.New(wholeLines{log.Handler(), w, cmp.Or(o.format, format)})
}

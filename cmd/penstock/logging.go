package main

import (
	"cmp"
	"fmt"
	"io"
	"log/slog"

	"github.com/spf13/pflag"
)

// logOptions are the flags of the log. Empty: the configuration's, or the
// default (text, info).
type logOptions struct {
	format string
	level  string
}

func (o *logOptions) addFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.format, "log-format", "", "log lines on stderr as text or json (default: the configuration's, else text)")
	fs.StringVar(&o.level, "log-level", "", "least level logged: debug, info, warn or error (default: the configuration's, else info)")
}

func (o *logOptions) validate() error {
	switch o.format {
	case "", "text", "json":
	default:
		return fmt.Errorf("--log-format %q: want text or json", o.format)
	}
	if _, err := parseLevel(o.level); err != nil {
		return fmt.Errorf("--log-%w", err)
	}
	return nil
}

// newLogger writes to w as the flags say, and where they are silent as format
// and level say (a configuration's log block; empty is text, info). The level
// returned may be changed while the logger is in use.
func (o *logOptions) newLogger(w io.Writer, format, level string) (*slog.Logger, *slog.LevelVar) {
	lv := new(slog.LevelVar)
	o.setLevel(lv, level)
	opts := &slog.HandlerOptions{Level: lv}
	if cmp.Or(o.format, format) == "json" {
		return slog.New(slog.NewJSONHandler(w, opts)), lv
	}
	return slog.New(slog.NewTextHandler(w, opts)), lv
}

// setLevel follows a reloaded configuration, unless the flag has the say.
func (o *logOptions) setLevel(lv *slog.LevelVar, level string) {
	if l, err := parseLevel(cmp.Or(o.level, level)); err == nil {
		lv.Set(l)
	}
}

func parseLevel(s string) (slog.Level, error) {
	switch cmp.Or(s, "info") {
	case "debug":
		return slog.LevelDebug, nil
	case "info":
		return slog.LevelInfo, nil
	case "warn":
		return slog.LevelWarn, nil
	case "error":
		return slog.LevelError, nil
	}
	return 0, fmt.Errorf("level %q: want debug, info, warn or error", s)
}

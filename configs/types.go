package configs

import (
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"time"
)

// Size is a number of bytes, written as 64MiB, 16KiB or 1048576.
type Size int64

// sizeUnits from the largest, so that String finds the one that divides.
var sizeUnits = []struct {
	suffix string
	bytes  int64
}{
	{"TiB", 1 << 40},
	{"GiB", 1 << 30},
	{"MiB", 1 << 20},
	{"KiB", 1 << 10},
	{"TB", 1e12},
	{"GB", 1e9},
	{"MB", 1e6},
	{"KB", 1e3},
	{"B", 1},
}

// ParseSize reads a whole number of bytes with or without a unit.
func ParseSize(s string) (Size, error) {
	digits, unit := s, int64(1)
	for _, u := range sizeUnits {
		if rest, ok := strings.CutSuffix(s, u.suffix); ok {
			digits, unit = strings.TrimRight(rest, " "), u.bytes
			break
		}
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || n > (1<<63-1)/unit || n < -(1<<63-1)/unit {
		return 0, fmt.Errorf("size %q: want a whole number of bytes, as 64MiB, 16KiB or 1048576", s)
	}
	return Size(n * unit), nil
}

// String writes the size with the largest binary unit that divides it.
func (s Size) String() string {
	for _, u := range sizeUnits {
		if strings.HasSuffix(u.suffix, "iB") && s != 0 && int64(s)%u.bytes == 0 {
			return strconv.FormatInt(int64(s)/u.bytes, 10) + u.suffix
		}
	}
	return strconv.FormatInt(int64(s), 10)
}

// redacted stands for a secret wherever one would be printed.
const redacted = "[redacted]"

// Secret is a string that prints, logs and marshals as "[redacted]"; string(s)
// is the secret itself.
type Secret string

func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return redacted
}

// Format keeps every verb of fmt from printing it, %d and %x too.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(s.String())) }

// LogValue keeps slog from printing it.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// MarshalText keeps JSON and YAML from printing it.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// formatDuration writes a duration as a person would: 10m, not 10m0s.
func formatDuration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

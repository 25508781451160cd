package top

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// Colours of a terminal.
const (
	plain  = "\x1b[0m"
	bold   = "\x1b[1m"
	dim    = "\x1b[2m"
	red    = "\x1b[31m"
	green  = "\x1b[32m"
	yellow = "\x1b[33m"
)

// view writes updates as lines. height 0: as many as there are.
type view struct {
	width, height int
	color         bool
	lines         []string
}

// render is the update as lines that fit the terminal.
func (v *view) render(s *state, url string) []string {
	v.lines = nil
	v.head(s, url)
	v.replicas(s.Replicas)
	v.queues(s.Limits.Queues)
	v.keys(s)
	v.trouble(s)
	if v.height > 0 && len(v.lines) > v.height {
		v.lines = v.lines[:v.height]
	}
	return v.lines
}

// add adds a line, cut to the width, in a colour.
func (v *view) add(color, format string, args ...any) {
	text := printable(fmt.Sprintf(format, args...))
	if v.width > 0 && utf8.RuneCountInString(text) > v.width {
		text = string([]rune(text)[:max(0, v.width-1)]) + "…"
	}
	text = strings.TrimRight(text, " ")
	if v.color && color != "" && text != "" {
		text = color + text + plain
	}
	v.lines = append(v.lines, text)
}

// printable leaves out what could steer the terminal: names come from elsewhere.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f && r < 0xa0 {
			return -1
		}
		return r
	}, s)
}

func levelColor(level string) string {
	switch level {
	case "bad":
		return red
	case "warn":
		return yellow
	case "ok":
		return green
	}
	return ""
}

func (v *view) head(s *state, url string) {
	v.add(dim, "Penstock %s at %s, up for %s", s.Version, url, duration(float64(s.Time.Sub(s.StartedAt).Milliseconds())))
	v.add(levelColor(s.Summary.Level), "%s", s.Summary.Text)
	p := &s.Point
	first := "–"
	if p.First != nil {
		first = duration(p.First.P50) + ", 95 % within " + duration(p.First.P95)
	}
	v.add("", "Requests/s %s, refused %s, failed %s   First token %s", rate(p.Requests), rate(p.Refused), rate(p.Failed), first)
	v.add("", "Tokens/s   prompt %s, from cache %s, output %s   Cache hits %s", rate(p.Input), rate(p.Cached), rate(p.Output), share(p.Hit))
}

func (v *view) replicas(rs []replica) {
	v.add("", "")
	wide := len("REPLICA")
	for i := range rs {
		wide = max(wide, utf8.RuneCountInString(rs[i].ID))
	}
	wide = min(wide, max(16, v.width-64))
	v.add(bold, "%-*s %-9s %6s %6s %5s %5s %8s %8s %9s %6s", wide, "REPLICA", "STATE", "RUN", "QUEUED", "KV", "HITS", "FIRST", "95 %", "REQUESTS", "ERRORS")
	for i := range rs {
		r := &rs[i]
		first, slow := "–", "–"
		if r.FirstTokenMS != nil {
			first, slow = duration(r.FirstTokenMS.P50), duration(r.FirstTokenMS.P95)
		}
		color := ""
		switch {
		case r.State == "unhealthy":
			color = red
		case r.State != "healthy":
			color = yellow
		}
		v.add(color, "%-*s %-9s %6d %6d %5s %5s %8s %8s %9d %6d", wide, clip(r.ID, wide), r.State, r.InFlight, r.Waiting, r.kv(), share(r.HitActual), first, slow, r.RequestsTotal, r.FailuresTotal)
	}
}

// kv is the share of the KV cache in use, as the engine says it, else as bound here.
func (r *replica) kv() string {
	if r.KVTokens == 0 {
		return "–"
	}
	used := r.KVInFlight
	if r.Load != nil && r.Load.UsedTokens >= 0 {
		used = r.Load.UsedTokens
	}
	return share(new(float64(used) / float64(r.KVTokens)))
}

func (v *view) queues(qs []queue) {
	v.add("", "")
	v.add(bold, "%-28s %14s %12s", "QUEUE", "WAITING", "LONGEST")
	for _, q := range qs {
		color, longest := "", "–"
		if q.Waiting > 0 {
			longest = duration(q.OldestMS)
		}
		if q.Waiting*5 >= q.MaxLength*4 && q.Waiting > 0 {
			color = yellow
		}
		v.add(color, "%-28s %14s %12s", clip(q.Model, 28), fmt.Sprintf("%d of %d", q.Waiting, q.MaxLength), longest)
	}
}

func (v *view) keys(s *state) {
	v.add("", "")
	v.add(bold, "%-20s %5s %5s  %s", "KEY", "RUN", "WAIT", "USE OF LIMITS; REFUSED")
	for _, k := range s.Limits.Keys {
		var use []string
		for _, l := range k.Limits {
			on := ""
			if l.Model != "" {
				on = " on " + l.Model
			}
			for _, r := range l.Rates {
				use = append(use, fmt.Sprintf("%s %s/%s%s", strings.ReplaceAll(r.Kind, "_", " "), short(float64(r.Used)), short(float64(r.Burst)), on))
			}
			if l.Concurrency > 0 {
				use = append(use, fmt.Sprintf("at once %d/%d%s", l.Running, l.Concurrency, on))
			}
		}
		var refused []string
		for _, reason := range slices.Sorted(maps.Keys(k.Refusals)) {
			refused = append(refused, fmt.Sprintf("%s %d", strings.ReplaceAll(reason, "_", " "), k.Refusals[reason]))
		}
		text := strings.Join(use, ", ")
		if len(refused) > 0 {
			text += "; refused: " + strings.Join(refused, ", ")
		}
		v.add("", "%-20s %5d %5d  %s", clip(k.Key, 20), k.Running, k.Waiting, strings.TrimPrefix(text, "; "))
	}
	if more := s.KeysTotal - len(s.Limits.Keys); more > 0 {
		v.add(dim, "and %d keys that do less", more)
	}
}

func (v *view) trouble(s *state) {
	if len(s.Trouble) == 0 {
		return
	}
	v.add("", "")
	v.add(bold, "REFUSED AND FAILED LATELY")
	for _, t := range s.Trouble {
		text := t.Title
		if t.Count > 0 {
			text += fmt.Sprintf(" (%d)", t.Count)
		}
		if t.Key != "" {
			text += ", key " + t.Key
		}
		if t.Text != "" {
			text += ": " + t.Text
		}
		v.add(levelColor(t.Level), "%8s  %s", ago(s.Time.Sub(t.Last)), text)
	}
}

func clip(s string, n int) string {
	if utf8.RuneCountInString(s) <= n {
		return s
	}
	return string([]rune(s)[:n-1]) + "…"
}

// duration is a time in milliseconds as people read it.
func duration(ms float64) string {
	switch {
	case ms < 10:
		return fmt.Sprintf("%.1f ms", ms)
	case ms < 1000:
		return fmt.Sprintf("%.0f ms", ms)
	case ms < 60_000:
		return fmt.Sprintf("%.1f s", ms/1000)
	case ms < 3_600_000:
		return fmt.Sprintf("%d min %d s", int(ms)/60_000, int(ms)/1000%60)
	}
	return fmt.Sprintf("%d h %d min", int(ms)/3_600_000, int(ms)/60_000%60)
}

func ago(d time.Duration) string {
	switch s := int(d.Seconds()); {
	case s < 1:
		return "now"
	case s < 60:
		return fmt.Sprintf("%d s", s)
	default:
		return fmt.Sprintf("%d min", s/60)
	}
}

func share(v *float64) string {
	if v == nil {
		return "–"
	}
	return fmt.Sprintf("%.0f %%", math.Round(*v*100))
}

func rate(v float64) string {
	if v > 0 && v < 10 {
		return fmt.Sprintf("%.1f", v)
	}
	return short(v)
}

func short(v float64) string {
	switch {
	case v >= 10e6:
		return fmt.Sprintf("%.0fM", v/1e6)
	case v >= 1e6:
		return fmt.Sprintf("%.1fM", v/1e6)
	case v >= 10e3:
		return fmt.Sprintf("%.0fk", v/1e3)
	case v >= 1e3:
		return fmt.Sprintf("%.1fk", v/1e3)
	}
	return fmt.Sprintf("%.0f", v)
}

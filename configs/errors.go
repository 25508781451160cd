package configs

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"

	"github.com/agnivade/levenshtein"
)

// Error is one mistake in a configuration. Its text is one line that names
// the place, the key, the value (never a secret) and what was expected.
type Error struct {
	File string
	Line int    // from 1; 0 when the configuration did not come from a file
	Key  string // as models[0].engines[1].url; empty for the file as a whole
	Text string
}

func (e *Error) Error() string {
	var b strings.Builder
	if e.File != "" {
		b.WriteString(e.File + ":")
		if e.Line > 0 {
			fmt.Fprintf(&b, "%d:", e.Line)
		}
		b.WriteByte(' ')
	}
	if e.Key != "" {
		b.WriteString(e.Key + ": ")
	}
	b.WriteString(e.Text)
	return b.String()
}

// origin is where a configuration's keys stand.
type origin struct {
	file  string
	lines map[string]int
}

// ErrorAt is a mistake at key (as models[0].engines[1].url) that only its use
// has shown, in the form of those that Load reports. The text must not hold a
// secret.
func (c *Config) ErrorAt(key, text string) *Error {
	e := &Error{Key: key, Text: printable(text)}
	if c.origin != nil {
		e.File, e.Line = c.origin.file, lineAt(c.origin.lines, key)
	}
	return e
}

// lineAt is where key stands, or the nearest key above it.
func lineAt(lines map[string]int, key string) int {
	for key != "" {
		if line, ok := lines[key]; ok {
			return line
		}
		key = key[:max(0, strings.LastIndexAny(key, ".["))]
	}
	return 0
}

// maxProblems bounds the mistakes reported: a file that is no configuration at
// all should not fill the screen.
const maxProblems = 100

// problems collects the mistakes of one file.
type problems struct {
	file string
	list []*Error
	// failed are the keys already complained about: what follows from the
	// first mistake is not another one.
	failed map[string]bool
}

func newProblems(file string) *problems {
	return &problems{file: file, failed: map[string]bool{}}
}

func (p *problems) add(line int, key, format string, args ...any) {
	if p.failed[key] && key != "" {
		return
	}
	p.failed[key] = true
	text := restoreRefs(fmt.Sprintf(format, args...))
	p.list = append(p.list, &Error{File: p.file, Line: line, Key: printable(restoreRefs(key)), Text: printable(text)})
}

// err joins the mistakes in the order of their lines; nil when there is none.
func (p *problems) err() error {
	slices.SortStableFunc(p.list, func(a, b *Error) int { return cmp.Compare(a.Line, b.Line) })
	var errs []error
	for i, e := range p.list {
		if i == maxProblems {
			errs = append(errs, &Error{File: p.file, Text: fmt.Sprintf("and %d more", len(p.list)-i)})
			break
		}
		errs = append(errs, e)
	}
	return errors.Join(errs...)
}

// printable keeps a message on its one line.
func printable(s string) string {
	s = strings.ReplaceAll(s, "\t", `\t`)
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return '?'
		}
		return r
	}, s)
}

// nearest is the candidate that word was probably meant to be, if any is near.
func nearest(word string, candidates []string) (string, bool) {
	best, bestDistance := "", max(2, len(word)/3)+1
	for _, c := range candidates {
		if d := levenshtein.ComputeDistance(word, c); d < bestDistance && d < len(c) {
			best, bestDistance = c, d
		}
	}
	return best, best != ""
}

// quote shows a value in a message, shortened when it is long.
func quote(s string) string {
	const most = 80
	if r := []rune(s); len(r) > most {
		s = string(r[:most]) + "…"
	}
	return fmt.Sprintf("%q", restoreRefs(s))
}

// oneOf lists choices as "a, b or c".
func oneOf(choices []string) string {
	if len(choices) < 2 {
		return strings.Join(choices, "")
	}
	last := len(choices) - 1
	return strings.Join(choices[:last], ", ") + " or " + choices[last]
}

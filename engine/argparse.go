package engine

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/agnivade/levenshtein"
)

// flags checks arguments by the rules of Python's argparse, as far as they can
// be told from the help.
type flags struct {
	known options
	names []string
	// vLLM's parser takes underscores for hyphens, and --name.key for a part of
	// a JSON value.
	flexible bool
	negative bool // it has options such as -1, so that a negative number may be one
}

var negativeNumber = regexp.MustCompile(`^-(\d+|\d*\.\d+)$`)

func newFlags(known options, flexible bool) *flags {
	f := &flags{known: known, names: known.names(), flexible: flexible}
	f.negative = slices.ContainsFunc(f.names, negativeNumber.MatchString)
	return f
}

// check refuses what the program would refuse: unknown and ambiguous options,
// values where none are taken, and options without the value they need.
func (f *flags) check(args []string) error {
	var errs []error
	for i, arg := range args {
		if arg == "--" {
			break
		}
		option, err := f.resolve(arg)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if option == "" {
			continue // a value, or a positional argument
		}
		if err := f.values(arg, option, args[i+1:]); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// resolve finds the option that an argument stands for; "" when it is none.
func (f *flags) resolve(arg string) (option string, err error) {
	if len(arg) < 2 || arg[0] != '-' {
		return "", nil
	}
	name, _, _ := strings.Cut(arg, "=")
	for _, exact := range [...]string{arg, name} {
		if f.has(exact) {
			return exact, nil
		}
	}
	if f.flexible {
		name = flexibleName(name)
		if strings.HasPrefix(name, "-O") && !f.has("-O") {
			name = "--optimization-level" // -O3 and -O=3 stand for it
		}
		if f.has(name) {
			return name, nil
		}
	}
	found := f.candidates(name)
	switch {
	case len(found) == 1:
		return found[0], nil
	case len(found) > 1:
		return "", fmt.Errorf("ambiguous option %s could be %s", name, listOr(found))
	case negativeNumber.MatchString(arg) && !f.negative, strings.Contains(arg, " "):
		return "", nil
	}
	return "", f.unknown(name)
}

func (f *flags) has(name string) bool {
	_, ok := f.known[name]
	return ok
}

// candidates are the options that a name abbreviates. A single dash may also be
// followed by a one-letter option and its value.
func (f *flags) candidates(name string) []string {
	var found []string
	for _, n := range f.names {
		if strings.HasPrefix(n, name) || !strings.HasPrefix(name, "--") && n == name[:2] {
			found = append(found, n)
		}
	}
	return found
}

func flexibleName(name string) string {
	if !strings.HasPrefix(name, "--") {
		name, _, _ = strings.Cut(name, ".")
		return name
	}
	name, _, _ = strings.Cut(name, ".")
	return "--" + strings.ReplaceAll(strings.TrimPrefix(name, "--"), "_", "-")
}

func (f *flags) unknown(name string) error {
	if near := nearestName(name, f.names); near != "" {
		return fmt.Errorf("unknown option %s: did you mean %s?", name, near)
	}
	return fmt.Errorf("unknown option %s", name)
}

// values checks that an option gets the value that it takes, or none.
func (f *flags) values(arg, option string, after []string) error {
	attached := arg != option && (strings.Contains(arg, "=") || !strings.HasPrefix(arg, "--"))
	switch f.known[option] {
	case takesNone:
		if strings.HasPrefix(arg, "--") && strings.Contains(arg, "=") && !f.flexible {
			return fmt.Errorf("option %s takes no value, got %s", option, arg)
		}
	case takesOne, takesMore:
		if attached {
			return nil
		}
		if len(after) == 0 || after[0] == "--" {
			return fmt.Errorf("option %s needs a value", option)
		}
		if next, err := f.resolve(after[0]); err == nil && next != "" {
			return fmt.Errorf("option %s needs a value, got the option %s", option, after[0])
		}
	}
	return nil
}

// nearestName is the known name that a mistyped one is closest to; "" when
// none is close.
func nearestName(name string, names []string) string {
	best, least := "", max(2, len(name)/3)+1
	for _, n := range names {
		if d := levenshtein.ComputeDistance(name, n); d < least {
			best, least = n, d
		}
	}
	return best
}

func listOr(names []string) string {
	if len(names) == 1 {
		return names[0]
	}
	const most = 8
	if len(names) > most {
		return fmt.Sprintf("%s or %d others", strings.Join(names[:most], ", "), len(names)-most)
	}
	return strings.Join(names[:len(names)-1], ", ") + " or " + names[len(names)-1]
}

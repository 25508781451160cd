package engine

import (
	"regexp"
	"slices"
	"strings"
)

// arity is how many values an option takes.
type arity uint8

const (
	takesNone arity = iota
	takesOne
	takesMore // one or several
	takesSome // none, one or several; or not to be told from the text
)

// options are what a program's help tells of its options: by every name, the
// values that it takes.
type options map[string]arity

var (
	ansiCodes = regexp.MustCompile(`\x1b\[[0-9;]*m`)
	// Text wrapped at the hyphens of a name: no name ends with one.
	brokenName = regexp.MustCompile(`(-[A-Za-z0-9-]*-)[ \t]*\n[ \t]*([a-z0-9])`)
	usageMark  = regexp.MustCompile(`(?i)\busage:\s`)
	usageEnd   = regexp.MustCompile(`\n[ \t]*\n`)
	errorMark  = regexp.MustCompile(`:\s+error:\s`)
	optionName = regexp.MustCompile(`^--?[A-Za-z0-9][\w.+-]*$`)
	// A line of the list of options; descriptions are indented deeper.
	optionLine = regexp.MustCompile(`(?m)^ {1,10}(-{1,2}[A-Za-z0-9].*)$`)
	columnGap  = regexp.MustCompile(` {2,}`)
	// Options that are named before the usage: a wrapper's own.
	namedOption = regexp.MustCompile(`(^|[\s\x60(])(--[a-z][a-z0-9-]*[a-z0-9])`)
)

// readHelp reads the options out of what --help prints, or out of the usage
// that argparse prints with an error, however it is wrapped. Both the usage
// and the list below it count: the usage has every option, the list has their
// aliases.
func readHelp(text string) options {
	text = ansiCodes.ReplaceAllString(strings.ReplaceAll(text, "\r\n", "\n"), "")
	text = brokenName.ReplaceAllString(text, "$1$2")
	if first := usageMark.FindStringIndex(text); first != nil { // what follows an error is no help
		if end := errorMark.FindStringIndex(text[first[1]:]); end != nil {
			text = text[:first[1]+end[0]]
		}
	}
	var all options
	preamble := ""
	for _, at := range usageMark.FindAllStringIndex(text, -1) {
		usage := text[at[1]:]
		if end := usageEnd.FindStringIndex(usage); end != nil {
			usage = usage[:end[0]]
		}
		if o := readUsage(usage); len(o) > len(all) {
			all, preamble = o, text[:at[0]]
		}
	}
	if all == nil {
		all = make(options)
	}
	for _, m := range optionLine.FindAllStringSubmatch(text, -1) {
		all.readLine(m[1])
	}
	for _, m := range namedOption.FindAllStringSubmatch(preamble, -1) {
		if _, known := all[m[2]]; !known {
			all[m[2]] = takesSome
		}
	}
	return all
}

// readUsage reads "[--a A] [--b | --no-b] --c {x,y} [--d D [D ...]]".
func readUsage(usage string) options {
	o := make(options)
	words := usageWords(usage)
	for i := range words {
		if optionName.MatchString(words[i]) {
			o[words[i]] = usageArity(words[i+1:])
		}
	}
	return o
}

// usageWords splits at white space, with brackets and bars as words of their
// own. Choices in braces stay whole.
func usageWords(usage string) []string {
	var b strings.Builder
	depth := 0
	for _, r := range usage {
		switch {
		case r == '{':
			depth++
		case r == '}':
			depth--
		case depth > 0 && (r == ' ' || r == '\n' || r == '\t'):
			continue
		case depth == 0 && strings.ContainsRune("[]()|", r):
			b.WriteByte(' ')
			b.WriteRune(r)
			r = ' '
		}
		b.WriteRune(r)
	}
	return strings.Fields(b.String())
}

// usageArity looks at what follows an option.
func usageArity(after []string) arity {
	if len(after) == 0 || strings.ContainsAny(after[0], "])|(") || optionName.MatchString(after[0]) {
		return takesNone
	}
	if after[0] == "[" { // [--x [X]], or the next option after one without values
		if len(after) > 1 && !optionName.MatchString(after[1]) && after[1] != "(" {
			return takesSome
		}
		return takesNone
	}
	if len(after) > 1 && (after[1] == "]" || after[1] == "|" || after[1] == ")") {
		return takesOne
	}
	if len(after) > 2 && after[1] == "[" {
		if optionName.MatchString(after[2]) {
			return takesOne // a required option, and then the next
		}
		return takesMore // X [X ...]
	}
	return takesSome
}

// readLine reads "-a A, --all A   what it does".
func (o options) readLine(line string) {
	if gap := columnGap.FindStringIndex(line); gap != nil {
		line = line[:gap[0]]
	}
	found := make(options)
	most := takesNone
	for part := range strings.SplitSeq(line, ", ") {
		words := usageWords(part)
		if len(words) == 0 || !optionName.MatchString(words[0]) {
			return // prose that begins with a dash
		}
		a := takesNone
		switch {
		case len(words) == 2 && words[1] != "[":
			a = takesOne
		case len(words) > 2 && words[1] != "[" && words[2] == "[":
			a = takesMore
		case len(words) > 1:
			a = takesSome
		}
		if strings.HasPrefix(words[0], "--") && len(words) > 4 && !slices.Contains(words, "[") {
			return // prose too
		}
		found[words[0]] = a
		most = max(most, a)
	}
	for name := range found {
		if _, known := o[name]; !known {
			o[name] = most // "-a, --all A": an alias takes what the other takes
		}
	}
}

// names are all of them in order.
func (o options) names() []string {
	names := make([]string, 0, len(o))
	for name := range o {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

package configs

import (
	"bytes"
	"fmt"
	"regexp"
	"strings"
)

// Getenv looks up an environment variable, as os.LookupEnv does.
type Getenv = func(name string) (value string, ok bool)

// References to the environment, ${NAME}, are not plain YAML: inside a flow
// mapping, {key: ${NAME}}, their braces would end it. So before the file is
// parsed each one is put into private-use characters that mean nothing to
// YAML, and each scalar is expanded afterwards. Comments are thereby never
// expanded, a value can never become syntax, and the lines stay what they were.
const (
	refOpen   = '\uE000' // begins a reference
	litOpen   = '\uE001' // begins an escaped one: $${NAME} is the text ${NAME}
	refClose  = '\uE002'
	refByte   = '\uE100' // + a byte of what stands between the braces
	refLast   = '\uE1FF'
	escapeSeq = "$$"
)

var (
	refPattern  = regexp.MustCompile(`\$?\$\{[^}\n\r]*\}`)
	hidePattern = regexp.MustCompile("[\uE000\uE001][\uE100-\uE1FF]*\uE002")
	namePattern = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
)

// hideRefs replaces references by their private form.
func hideRefs(data []byte) []byte {
	return refPattern.ReplaceAllFunc(data, func(m []byte) []byte {
		var b bytes.Buffer
		open := refOpen
		if bytes.HasPrefix(m, []byte(escapeSeq)) {
			open, m = litOpen, m[1:]
		}
		b.WriteRune(open)
		for _, c := range m[2 : len(m)-1] {
			b.WriteRune(refByte + rune(c))
		}
		b.WriteRune(refClose)
		return b.Bytes()
	})
}

// isPrivate tells the characters that hideRefs uses; a file may not hold any.
func isPrivate(r rune) bool { return r >= refOpen && r <= refLast }

// restoreRefs is the inverse of hideRefs, for what is shown to people.
func restoreRefs(s string) string {
	return hidePattern.ReplaceAllStringFunc(s, func(m string) string {
		if strings.HasPrefix(m, string(litOpen)) {
			return "$${" + refName(m) + "}"
		}
		return "${" + refName(m) + "}"
	})
}

// refName is what stood between the braces.
func refName(hidden string) string {
	var b []byte
	for _, r := range hidden {
		if r >= refByte && r <= refLast {
			b = append(b, byte(r-refByte))
		}
	}
	return string(b)
}

// hasRef says whether s refers to the environment.
func hasRef(s string) bool { return strings.ContainsRune(s, refOpen) }

// expandRefs puts the environment's values in place of the references in s.
// The error names the variable, never a value.
func expandRefs(s string, getenv Getenv) (string, error) {
	if !strings.ContainsAny(s, string(refOpen)+string(litOpen)) {
		if strings.Contains(s, "${") {
			return "", fmt.Errorf("a reference that does not end: want ${NAME}")
		}
		return s, nil
	}
	var failure error
	out := hidePattern.ReplaceAllStringFunc(s, func(m string) string {
		name := refName(m)
		if strings.HasPrefix(m, string(litOpen)) {
			return "${" + name + "}"
		}
		value, err := lookup(name, getenv)
		if err != nil && failure == nil {
			failure = err
		}
		return value
	})
	return out, failure
}

func lookup(name string, getenv Getenv) (string, error) {
	if !namePattern.MatchString(name) {
		return "", fmt.Errorf("reference ${%s}: want ${NAME}, letters, digits and _ only", name)
	}
	value, ok := getenv(name)
	if !ok {
		return "", fmt.Errorf("environment variable %s is not set", name)
	}
	return value, nil
}

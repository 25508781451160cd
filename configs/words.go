package configs

import (
	"errors"
	"strings"
)

// Words takes the command line apart as a shell would, with quotes and
// backslashes, one at a line's end continues it; but without expanding
// anything: no shell is run.
func (l *Launch) Words() ([]string, error) {
	var words []string
	var word strings.Builder
	var quote rune // 0, ' or "
	begun, escaped := false, false
	for _, r := range l.Command {
		switch {
		case escaped && r == '\n':
			escaped = false
		case escaped:
			if quote == '"' && r != '"' && r != '\\' && r != '$' && r != '`' {
				word.WriteByte('\\')
			}
			word.WriteRune(r)
			begun, escaped = true, false
		case r == '\\' && quote != '\'':
			escaped = true
		case quote != 0 && r == quote:
			quote = 0
		case quote == 0 && (r == '\'' || r == '"'):
			begun, quote = true, r
		case quote == 0 && strings.ContainsRune(" \t\n\r", r):
			if begun {
				words = append(words, word.String())
				word.Reset()
				begun = false
			}
		default:
			begun = true
			word.WriteRune(r)
		}
	}
	if quote != 0 || escaped {
		return nil, errors.New("a quote or backslash at its end is left open")
	}
	if begun {
		words = append(words, word.String())
	}
	return words, nil
}

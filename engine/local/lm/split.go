package lm

// maxWord bounds a word in bytes, so that merging stays linear in the text
// whatever the text is (a megabyte of one letter, say).
const maxWord = 32

type class uint8

const (
	letter class = iota // ASCII letters and every byte of a non-ASCII character
	digit
	space
	punct
)

// classes gives the class of each byte.
var classes = func() (t [256]class) {
	for i := range t {
		c := byte(i)
		switch {
		case c >= 0x80, 'a' <= c|0x20 && c|0x20 <= 'z':
			t[i] = letter
		case '0' <= c && c <= '9':
			t[i] = digit
		case c <= ' ':
			t[i] = space
		default:
			t[i] = punct
		}
	}
	return t
}()

// nextWord returns the length of the first word of s, which is not empty: a run
// of letters, digits or punctuation, with the one space before it if there is
// one, or a run of white space. Words are cut at maxWord bytes, digits at three.
func nextWord(s string) int {
	i, c := 0, classes[s[0]]
	if s[0] == ' ' && len(s) > 1 && classes[s[1]] != space {
		i, c = 1, classes[s[1]]
	}
	limit := min(len(s), maxWord)
	if c == digit {
		limit = min(limit, i+3)
	}
	for i < limit && classes[s[i]] == c {
		i++
	}
	// The last space of a run belongs to the word after it.
	if c == space && i > 1 && i < len(s) && s[i-1] == ' ' && classes[s[i]] != space {
		i--
	}
	return i
}

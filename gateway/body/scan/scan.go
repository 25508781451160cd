package scan

import "fmt"

// MaxDepth is how deep arrays and objects may nest. Engines' own parsers recurse; a body deeper than this is
// an attack on them, not a request.
const MaxDepth = 128

// SyntaxError says where JSON ends and what was wrong there.
type SyntaxError struct {
	Offset int    // of the byte that could not be accepted, from the start of the text
	Reason string // what was expected
}

func (e *SyntaxError) Error() string { return fmt.Sprintf("at byte %d: %s", e.Offset, e.Reason) }

func fail(i int, reason string) (int, *SyntaxError) {
	return i, &SyntaxError{Offset: i, Reason: reason}
}

// Kind is what a value is, told by its first byte.
type Kind uint8

// The kinds of a value. Invalid is anything that begins no value, the end of the text included.
const (
	Invalid Kind = iota
	Null
	Bool
	Num
	Str
	Arr
	Obj
)

// String is the kind with its article, as error messages say it.
func (k Kind) String() string {
	switch k {
	case Null:
		return "null"
	case Bool:
		return "a boolean"
	case Num:
		return "a number"
	case Str:
		return "a string"
	case Arr:
		return "an array"
	case Obj:
		return "an object"
	default:
		return "nothing"
	}
}

// KindAt tells the kind of the value that begins at b[i].
func KindAt(b []byte, i int) Kind {
	if i >= len(b) {
		return Invalid
	}
	switch c := b[i]; {
	case c == '"':
		return Str
	case c == '{':
		return Obj
	case c == '[':
		return Arr
	case c == '-' || c-'0' <= 9:
		return Num
	case c == 't' || c == 'f':
		return Bool
	case c == 'n':
		return Null
	}
	return Invalid
}

// Space returns the first offset from i on that holds no white space.
func Space(b []byte, i int) int {
	for i < len(b) && b[i] <= ' ' && (b[i] == ' ' || b[i] == '\n' || b[i] == '\r' || b[i] == '\t') {
		i++
	}
	return i
}

// Number validates the number that begins at b[i] and returns the offset after it.
func Number(b []byte, i int) (end int, integer bool, err *SyntaxError) {
	if i < len(b) && b[i] == '-' {
		i++
	}
	j := digits(b, i)
	switch {
	case j == i:
		end, err = fail(i, "expected a digit")
		return end, false, err
	case b[i] == '0':
		j = i + 1 // no digit may follow a leading zero; what stands there is the next token's error
	}
	integer = true
	if j < len(b) && b[j] == '.' {
		integer = false
		if i, j = j+1, digits(b, j+1); j == i {
			end, err = fail(j, "expected a digit after the decimal point")
			return end, false, err
		}
	}
	if j < len(b) && (b[j] == 'e' || b[j] == 'E') {
		integer = false
		if j++; j < len(b) && (b[j] == '+' || b[j] == '-') {
			j++
		}
		if i, j = j, digits(b, j); j == i {
			end, err = fail(j, "expected a digit in the exponent")
			return end, false, err
		}
	}
	return j, integer, nil
}

func digits(b []byte, i int) int {
	for i < len(b) && b[i]-'0' <= 9 {
		i++
	}
	return i
}

// Literal validates true, false or null at b[i] and returns the offset after it.
func Literal(b []byte, i int) (int, *SyntaxError) {
	word := "null"
	switch b[i] {
	case 't':
		word = "true"
	case 'f':
		word = "false"
	}
	if len(b)-i < len(word) || string(b[i:i+len(word)]) != word {
		return fail(i, "expected true, false or null")
	}
	return i + len(word), nil
}

// scalar validates a value that is neither array nor object.
func scalar(b []byte, i int) (int, *SyntaxError) {
	switch KindAt(b, i) {
	case Str:
		end, _, err := String(b, i)
		return end, err
	case Num:
		end, _, err := Number(b, i)
		return end, err
	case Bool, Null:
		return Literal(b, i)
	}
	if i >= len(b) {
		return fail(i, "unexpected end of the JSON text")
	}
	return fail(i, "expected a value")
}

// Value validates the value that begins at b[i] (no white space before it) inside depth open arrays and
// objects, and returns the offset after it. It keeps its own stack, one bit a level, and so cannot overflow
// the goroutine's. It is one long loop since it is the hot path of every body.
func Value(b []byte, i, depth int) (int, *SyntaxError) {
	var objects [MaxDepth/64 + 1]uint64 // bit d: level d is an object
	d := depth
	for {
		// A value begins here.
		open := byte(0)
		if i < len(b) {
			open = b[i]
		}
		if open == '{' || open == '[' {
			if d++; d > MaxDepth {
				return fail(i, "nested too deeply")
			}
			i = Space(b, i+1)
			if open == '{' {
				objects[d/64] |= 1 << (d % 64)
			} else {
				objects[d/64] &^= 1 << (d % 64)
			}
			if i >= len(b) || b[i] != open+2 { // ']' and '}' follow their openers by two
				if open == '[' {
					continue
				}
				var err *SyntaxError
				if i, err = key(b, i); err != nil {
					return i, err
				}
				continue
			}
			i++
			d--
		} else {
			var err *SyntaxError
			if i, err = scalar(b, i); err != nil {
				return i, err
			}
		}
		// A value has ended: close what ends with it, or go on to the next.
		for {
			if d == depth {
				return i, nil
			}
			i = Space(b, i)
			object := objects[d/64]&(1<<(d%64)) != 0
			if i >= len(b) {
				return fail(i, "unexpected end of the JSON text")
			}
			if b[i] == ',' {
				i = Space(b, i+1)
				if object {
					var err *SyntaxError
					if i, err = key(b, i); err != nil {
						return i, err
					}
				}
				break
			}
			if object && b[i] != '}' {
				return fail(i, "expected a comma or } after an object's member")
			}
			if !object && b[i] != ']' {
				return fail(i, "expected a comma or ] after an array's element")
			}
			i++
			d--
		}
	}
}

// Key validates an object's key and its colon at b[i]. The key with its quotes is b[i:end]; its value begins
// at val.
func Key(b []byte, i int) (end int, escaped bool, val int, err *SyntaxError) {
	if i >= len(b) || b[i] != '"' {
		end, err = fail(i, "expected an object key in double quotes")
		return end, false, end, err
	}
	if end, escaped, err = String(b, i); err != nil {
		return end, escaped, end, err
	}
	if i = Space(b, end); i >= len(b) || b[i] != ':' {
		val, err = fail(i, "expected a colon after an object key")
		return end, escaped, val, err
	}
	return end, escaped, Space(b, i+1), nil
}

func key(b []byte, i int) (int, *SyntaxError) {
	_, _, val, err := Key(b, i)
	return val, err
}

// Valid says whether b is one JSON value and nothing else.
func Valid(b []byte) *SyntaxError {
	i, err := Value(b, Space(b, 0), 0)
	if err != nil {
		return err
	}
	if i = Space(b, i); i < len(b) {
		return &SyntaxError{Offset: i, Reason: "unexpected bytes after the JSON value"}
	}
	return nil
}

// Int is the value of the integer b, which Number has validated, and whether it fits.
func Int(b []byte) (int64, bool) {
	neg := len(b) > 0 && b[0] == '-'
	if neg {
		b = b[1:]
	}
	if len(b) == 0 || len(b) > 18 { // eighteen digits cannot overflow
		return 0, false
	}
	var n int64
	for _, c := range b {
		n = n*10 + int64(c-'0')
	}
	if neg {
		n = -n
	}
	return n, true
}

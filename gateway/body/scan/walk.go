package scan

// Members walks the members of a validated object, or the elements of a validated array:
//
//	for w := scan.Walk(b, i); w.Next(); {
//		… w.Key (an object's key without quotes, escapes left in), b[w.Start:w.End] (the value)
//	}
//
// On text that was never validated it stops at the first error and tells it in Err.
type Members struct {
	b          []byte
	i          int
	object     bool
	done       bool
	At         int    // where the member begins: its key's quote, or the value
	Key        []byte // without its quotes, escapes left in; nil in an array
	Start, End int    // the value
	Err        *SyntaxError
}

// Walk begins at the opening brace or bracket b[i].
func Walk(b []byte, i int) Members {
	w := Members{b: b, object: b[i] == '{'}
	w.i = Space(b, i+1)
	if w.i < len(b) && b[w.i] == b[i]+2 {
		w.i++
		w.done = true
	}
	return w
}

// Next moves to the next member and reports whether there is one.
func (w *Members) Next() bool {
	if w.done || w.Err != nil {
		return false
	}
	w.At = w.i
	if w.object {
		var end int
		if end, _, w.i, w.Err = Key(w.b, w.At); w.Err != nil {
			return false
		}
		w.Key = w.b[w.At+1 : end-1]
	}
	w.Start = w.i
	if w.End, w.Err = Value(w.b, w.i, 0); w.Err != nil {
		return false
	}
	w.i = Space(w.b, w.End)
	switch {
	case w.i >= len(w.b):
		_, w.Err = fail(w.i, "unexpected end of the JSON text")
	case w.b[w.i] == ',':
		w.i = Space(w.b, w.i+1)
	case w.object && w.b[w.i] == '}', !w.object && w.b[w.i] == ']':
		w.i++
		w.done = true
	default:
		_, w.Err = fail(w.i, "expected a comma or the end of the array or object")
	}
	return true
}

// Offset is where the walk stands: after the closing brace or bracket once Next has said false without error.
func (w *Members) Offset() int { return w.i }

package scan

// Cursor reads JSON in one pass where the shape is known, validating as it goes. Its error sticks: after it,
// loops end and values are empty, so it is looked at once, at the end.
//
//	c := scan.NewCursor(b)
//	for c.Open('{'); c.Next(); {
//		switch string(c.Key()) {
//		case "choices": …
//		default: c.Skip()
//		}
//	}
type Cursor struct {
	B   []byte
	I   int // before the next token, white space skipped
	Err *SyntaxError

	closers [MaxDepth]byte
	depth   int
	first   bool // the array or object was just opened
}

// NewCursor begins before the first value of b.
func NewCursor(b []byte) *Cursor { return &Cursor{B: b, I: Space(b, 0)} }

// Kind is the next value's.
func (c *Cursor) Kind() Kind {
	if c.Err != nil {
		return Invalid
	}
	return KindAt(c.B, c.I)
}

func (c *Cursor) fail(reason string) bool {
	if c.Err == nil {
		c.Err = &SyntaxError{Offset: c.I, Reason: reason}
	}
	return false
}

// Open steps into the array or object that begins here with brace.
func (c *Cursor) Open(brace byte) bool {
	switch {
	case c.Err != nil:
		return false
	case c.I >= len(c.B) || c.B[c.I] != brace:
		return c.fail("expected " + string(rune(brace)))
	case c.depth == MaxDepth:
		return c.fail("nested too deeply")
	}
	c.closers[c.depth] = brace + 2
	c.depth++
	c.first = true
	c.I = Space(c.B, c.I+1)
	return true
}

// Next steps to the next member or element and says whether there is one; if not, it has stepped out.
func (c *Cursor) Next() bool {
	if c.Err != nil {
		return false
	}
	if c.I = Space(c.B, c.I); c.I >= len(c.B) {
		return c.fail("unexpected end of the JSON text")
	}
	first, b := c.first, c.B[c.I]
	c.first = false
	switch {
	case first && b != c.closers[c.depth-1]:
		return true
	case !first && b == ',':
		c.I = Space(c.B, c.I+1)
		return true
	case b == c.closers[c.depth-1]:
		c.depth--
		c.I++
		return false
	}
	return c.fail("expected a comma or the end of the array or object")
}

// Key reads a member's key (without quotes, escapes left in) and steps to its value.
func (c *Cursor) Key() []byte {
	if c.Err != nil {
		return nil
	}
	end, _, val, err := Key(c.B, c.I)
	if err != nil {
		c.Err = err
		return nil
	}
	key := c.B[c.I+1 : end-1]
	c.I = val
	return key
}

// Skip validates a value, steps over it and returns its place.
func (c *Cursor) Skip() (start, end int) {
	if c.Err != nil {
		return 0, 0
	}
	start = c.I
	c.I, c.Err = Value(c.B, start, c.depth)
	return start, c.I
}

// End checks that nothing but white space is left.
func (c *Cursor) End() {
	if c.I = Space(c.B, c.I); c.Err == nil && c.I < len(c.B) {
		c.fail("unexpected bytes after the JSON value")
	}
}

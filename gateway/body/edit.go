package body

import (
	"io"
	"slices"
	"unsafe"
)

// Edits is a list of changes to a body's top-level fields. The zero value has none; Reset empties it for the
// next request. A field set twice has the last value.
type Edits struct {
	list []edit
	cuts []cut
}

type edit struct {
	name  string
	value []byte // nil: delete
	list  bool   // value is the elements of an array
	usage bool   // stream_options.include_usage
	at    place  // while they are applied: where the body has it
	done  bool   // and whether it has become a cut
}

// cut replaces the body's bytes from start to end with value.
type cut struct {
	start, end int32
	value      []byte
	list       bool
}

// Reset forgets the edits.
func (e *Edits) Reset() {
	clear(e.list)
	clear(e.cuts)
	e.list, e.cuts = e.list[:0], e.cuts[:0]
}

// Empty says that there is nothing to change.
func (e *Edits) Empty() bool { return len(e.list) == 0 }

// Set makes the field name have the JSON value raw, in its old place or, if it is new, at the end. name must
// need no escapes, and raw must be valid JSON and stay as it is while the segments are in use.
func (e *Edits) Set(name string, raw []byte) { e.put(edit{name: name, value: raw}) }

// SetList makes the field an array of the elements, JSON values with commas between them: a stretch of an
// array in the body, say.
func (e *Edits) SetList(name string, elements []byte) {
	e.put(edit{name: name, value: elements, list: true})
}

// Each tells of every field that is set, and the value's pieces before, in and after it.
func (e *Edits) Each(set func(name string, before, value, after []byte)) {
	for i := range e.list {
		if ed := &e.list[i]; ed.value != nil {
			before, after := brackets(ed.list)
			set(ed.name, before, ed.value, after)
		}
	}
}

func brackets(list bool) (before, after []byte) {
	if !list {
		return nil, nil
	}
	return literal(`[`), literal(`]`)
}

// Delete takes the field out, if it is there.
func (e *Edits) Delete(name string) { e.put(edit{name: name}) }

// SetIncludeUsage makes stream_options.include_usage true and leaves the other stream options.
func (e *Edits) SetIncludeUsage() { e.put(edit{name: "stream_options", usage: true}) }

func (e *Edits) put(n edit) {
	i := slices.IndexFunc(e.list, func(o edit) bool { return o.name == n.name })
	if i < 0 {
		e.list = append(e.list, n)
		return
	}
	e.list[i] = n
}

// Apply appends to segs the body with the edits made: pieces of the body, and the new values between them. The
// body's own bytes are neither copied nor changed.
func (v *View) Apply(e *Edits, segs Segments) Segments {
	if v.multipart {
		return v.applyForm(e, segs)
	}
	e.cuts = e.cuts[:0]
	for i := range e.list {
		e.list[i].at, e.list[i].done = v.find(e.list[i].name), false
	}
	last, left := v.last, v.members
	// Deletions that reach the end take the comma before them, others the comma after: so those at the end are
	// found first, from the back.
	for found := true; found; {
		found = false
		for i := range e.list {
			ed := &e.list[i]
			if !ed.usage && ed.value == nil && !ed.done && ed.at.end == last {
				if last = ed.at.prev; last == 0 {
					last = v.open
				}
				left--
				found, ed.done = true, true
			}
		}
	}
	if last != v.last {
		e.cuts = append(e.cuts, cut{start: last, end: v.last})
	}
	for i := range e.list {
		if ed := &e.list[i]; !ed.done {
			e.place(v, ed, &left)
		}
	}
	slices.SortStableFunc(e.cuts, func(a, b cut) int { return int(a.start) - int(b.start) })
	at := int32(0)
	added := false
	for _, c := range e.cuts {
		if !added && c.start >= last {
			segs, at, added = e.add(v, segs, at, last, left), last, true
		}
		segs = segs.push(v.Body[at:c.start])
		before, after := brackets(c.list)
		segs = segs.push(before).push(c.value).push(after)
		at = c.end
	}
	if !added {
		segs, at = e.add(v, segs, at, last, left), last
	}
	return segs.push(v.Body[at:])
}

// place turns an edit of a field that the body has into a cut. What it does not place is new.
func (e *Edits) place(v *View, ed *edit, left *int) {
	p := ed.at
	switch {
	case p.end == 0:
		ed.done = ed.value == nil && !ed.usage // nothing to delete
		return
	case ed.usage:
		e.cuts = append(e.cuts, v.usageCut(p))
	case ed.value == nil:
		e.cuts = append(e.cuts, cut{start: p.key, end: v.afterComma(p.end)})
		*left--
	default:
		e.cuts = append(e.cuts, cut{start: p.val, end: p.end, value: ed.value, list: ed.list})
	}
	ed.done = true
}

// usageCut makes include_usage true in the stream_options at p.
func (v *View) usageCut(p place) cut {
	switch {
	case v.options < 0: // null
		return cut{start: p.val, end: p.end, value: literal(`{"include_usage":true}`)}
	case v.usage.end > 0:
		return cut{start: v.usage.val, end: v.usage.end, value: literal(`true`)}
	case v.options == 0:
		return cut{start: p.val + 1, end: p.val + 1, value: literal(`"include_usage":true`)}
	}
	return cut{start: p.val + 1, end: p.val + 1, value: literal(`"include_usage":true,`)}
}

// afterComma is the offset of the member that follows one ending at i.
func (v *View) afterComma(i int32) int32 {
	for v.Body[i] != ',' {
		i++
	}
	return i + 1
}

// add writes the body up to at, and the new fields there; left is how many old ones stand before them.
func (e *Edits) add(v *View, segs Segments, from, at int32, left int) Segments {
	segs = segs.push(v.Body[from:at])
	for i := range e.list {
		ed := &e.list[i]
		if ed.done {
			continue
		}
		if left > 0 {
			segs = segs.push(literal(`,"`))
		} else {
			segs = segs.push(literal(`"`))
		}
		left++
		value := ed.value
		if ed.usage {
			value = literal(`{"include_usage":true}`)
		}
		before, after := brackets(ed.list)
		segs = append(segs, literal(ed.name), literal(`":`)).push(before).push(value).push(after)
	}
	return segs
}

// literal is s as bytes, for reading only.
func literal(s string) []byte { return unsafe.Slice(unsafe.StringData(s), len(s)) }

// Segments are the pieces of a body, in order. They are written as they are, as often as it takes.
type Segments [][]byte

func (s Segments) push(p []byte) Segments {
	if len(p) == 0 {
		return s
	}
	return append(s, p)
}

// Len is the length of the body.
func (s Segments) Len() int {
	n := 0
	for _, p := range s {
		n += len(p)
	}
	return n
}

// AppendTo copies the body to the end of dst.
func (s Segments) AppendTo(dst []byte) []byte {
	for _, p := range s {
		dst = append(dst, p...)
	}
	return dst
}

// WriteTo writes the body.
func (s Segments) WriteTo(w io.Writer) (int64, error) {
	var n int64
	for _, p := range s {
		m, err := w.Write(p)
		n += int64(m)
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

// Reader reads segments from their beginning; Reset starts it again. It is for clients that take a body as a
// stream.
type Reader struct {
	segs Segments
	i    int // in segs[0]
}

// Reset makes r read s.
func (r *Reader) Reset(s Segments) { r.segs, r.i = s, 0 }

// Read implements io.Reader.
func (r *Reader) Read(p []byte) (int, error) {
	n := 0
	for len(r.segs) > 0 {
		m := copy(p[n:], r.segs[0][r.i:])
		n, r.i = n+m, r.i+m
		if r.i < len(r.segs[0]) {
			return n, nil
		}
		r.segs, r.i = r.segs[1:], 0
	}
	if n == 0 && len(p) > 0 {
		return 0, io.EOF
	}
	return n, nil
}

// WriteTo implements io.WriterTo: what is left is written without a copy.
func (r *Reader) WriteTo(w io.Writer) (int64, error) {
	var n int64
	for len(r.segs) > 0 {
		m, err := w.Write(r.segs[0][r.i:])
		n, r.i = n+int64(m), r.i+m
		if err != nil {
			return n, err
		}
		r.segs, r.i = r.segs[1:], 0
	}
	return n, nil
}

package body

import (
	"bytes"
	"mime"
)

// form reads a multipart/form-data body (audio transcriptions): its model and stream fields, each file a
// medium. The boundary is the first line, whatever the header says; the engine checks the rest.
func (v *View) form() *Error {
	b := v.Body
	line, _, found := bytes.Cut(b, []byte("\r\n"))
	if !found || !bytes.HasPrefix(line, []byte("--")) || len(line) > 72 { // RFC 2046: 70 characters at most
		return invalid("", "The request body is not multipart form data: expected it to begin with a boundary.")
	}
	v.multipart = true
	delimiter := append([]byte("\r\n"), line...)
	for at := len(line) + 2; ; {
		head := bytes.Index(b[at:], []byte("\r\n\r\n"))
		if head < 0 {
			return invalid("", "The request body is not multipart form data: a part has no end of headers.")
		}
		val := at + head + 4
		size := bytes.Index(b[val:], delimiter)
		if size < 0 {
			return invalid("", "The request body is not multipart form data: the last boundary is missing.")
		}
		if err := v.formField(b[at:at+head], val, val+size); err != nil {
			return err
		}
		if at = val + size + len(delimiter); bytes.HasPrefix(b[at:], []byte("--")) {
			return nil
		}
		at += 2
		if at > len(b) {
			return invalid("", "The request body is not multipart form data: it ends after a boundary.")
		}
	}
}

// formField reads one part with these headers and the value b[val:end].
func (v *View) formField(headers []byte, val, end int) *Error {
	name, file := disposition(headers)
	switch {
	case file:
		v.Media++
		return nil
	case len(name) == 0:
		return invalid("", "The request body is not multipart form data: a part has no name.")
	}
	value := v.Body[val:end]
	f := fieldOf(name)
	if f == unknown {
		return nil
	}
	if f.steers() && v.steers == nil {
		v.steers = name
	}
	if v.at[f].end > 0 && f != fEngine {
		return duplicate(string(name))
	}
	v.at[f] = place{key: int32(val), val: int32(val), end: int32(end)}
	switch f {
	case fModel:
		v.Model = value
	case fUser:
		v.User = value
	case fStream:
		v.Stream = len(value) > 0 && (value[0]|0x20 == 't' || value[0] == '1')
	}
	return nil
}

// disposition reads the name of a part from its headers, quoted or, as .NET writes it, not, and whether it is a
// file. What engines read as a field must not look like something else here: who may ask for what hangs on it.
func disposition(headers []byte) (name []byte, file bool) {
	for line := range bytes.SplitSeq(headers, []byte("\r\n")) {
		key, value, _ := bytes.Cut(line, []byte{':'})
		if !bytes.EqualFold(bytes.TrimSpace(key), []byte("Content-Disposition")) {
			continue
		}
		_, params, err := mime.ParseMediaType(string(value))
		_, file = params["filename"]
		file = file || err != nil && bytes.Contains(value, []byte("filename"))
		name = []byte(params["name"])
	}
	return name, file
}

// applyForm makes the edits that a form can take: a field that is there gets another value, without the quotes
// of a JSON string. Others are left out: engines read them from JSON bodies alone.
func (v *View) applyForm(e *Edits, segs Segments) Segments {
	at := int32(0)
	for i := range e.list {
		ed := &e.list[i]
		f := fieldOf([]byte(ed.name))
		if p := v.at[f]; f == fModel && p.end > 0 && len(ed.value) > 1 {
			segs = segs.push(v.Body[at:p.val])
			segs = segs.push(ed.value[1 : len(ed.value)-1])
			at = p.end
		}
	}
	return segs.push(v.Body[at:])
}

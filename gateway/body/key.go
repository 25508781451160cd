package body

import (
	"bytes"
	"encoding/binary"
	"io"
	"math/bits"
	"unicode/utf8"

	"github.com/zeebo/xxh3"

	"penstock/gateway/body/scan"
)

// KeyWriter takes the prompt, piece by piece; where pieces are cut means nothing. The router's KeyBuilder is
// one. What it was seeded with (model, LoRA, cache salt) is the caller's affair.
type KeyWriter interface {
	io.Writer
	Token(id uint64)
	Media(hash uint64)
}

// The bytes that keep the pieces of a conversation apart in its key. A text could hold them too; the worst that
// follows is a prefix believed equal that is not, and the engine decides that anyway.
const (
	markTools   = 0x1c
	markPart    = 0x1d
	markMessage = 0x1e
	markContent = 0x1f
)

// feedSize is how much is gathered before the KeyWriter is called.
const feedSize = 4 << 10

// Key feeds the whole prompt to w: tools, system prompt, then message by message in order, so that the key of a
// conversation that goes on extends the key it had; or the prompts one after another. Text is fed in one
// spelling, so that the same text has the same key however a client escapes it or wraps it into a part.
func (v *View) Key(w KeyWriter) {
	f := v.feeder(w)
	f.preamble(v)
	for i := range v.messages {
		f.message(&v.messages[i])
	}
	for i := range v.Prompts {
		if i > 0 {
			f.mark(markMessage)
		}
		f.prompt(&v.Prompts[i])
	}
	f.flush()
	v.feed = f.buf[:0]
}

// KeyPrompt feeds the prompt i of a batch; 0 is the whole of a body that is none.
func (v *View) KeyPrompt(w KeyWriter, i int) {
	if len(v.Prompts) == 0 {
		v.Key(w)
		return
	}
	f := v.feeder(w)
	f.preamble(v)
	f.prompt(&v.Prompts[i])
	f.flush()
	v.feed = f.buf[:0]
}

// feeder gathers small pieces, for a call for each would cost more than copying them.
type feeder struct {
	w   KeyWriter
	b   []byte // the body
	buf []byte
}

func (v *View) feeder(w KeyWriter) feeder {
	if v.feed == nil {
		v.feed = make([]byte, 0, feedSize)
	}
	return feeder{w: w, b: v.Body, buf: v.feed[:0]}
}

func (f *feeder) flush() {
	if len(f.buf) > 0 {
		_, _ = f.w.Write(f.buf) // a KeyWriter cannot fail
		f.buf = f.buf[:0]
	}
}

func (f *feeder) mark(c byte) {
	if len(f.buf) == cap(f.buf) {
		f.flush()
	}
	f.buf = append(f.buf, c)
}

// write passes long pieces on as they are and gathers short ones.
func (f *feeder) write(p []byte) {
	if len(f.buf)+len(p) > cap(f.buf) {
		f.flush()
		if len(p) > feedSize/4 {
			_, _ = f.w.Write(p)
			return
		}
	}
	f.buf = append(f.buf, p...)
}

// text writes the inside of a JSON string as a compact encoder spells it: everything that can stand for itself
// does, the rest has its short escape. Most clients send just that, and then the string is passed on as it is.
func (f *feeder) text(raw []byte) {
	// Where escapes are far apart, the runtime's vectors find them faster than a look at every eight bytes.
	find := unusual
	if bytes.Count(raw, []byte{'\\'}) < len(raw)/sparse {
		find = unusualSparse
	}
	for {
		i := find(raw)
		if i < 0 {
			f.write(raw)
			return
		}
		f.write(raw[:i])
		for raw = raw[i:]; len(raw) > 1 && raw[0] == '\\' && (raw[1] == 'u' || raw[1] == '/'); {
			r, n := scan.Unescape(raw)
			if len(f.buf)+maxEscape > cap(f.buf) {
				f.flush()
			}
			f.buf = appendCompact(f.buf, r)
			raw = raw[n:]
		}
	}
}

// maxEscape is the longest spelling of one character, \u0000.
const maxEscape = 6

// appendCompact appends r as a compact JSON encoder spells it inside a string.
func appendCompact(b []byte, r rune) []byte {
	switch {
	case r == '"' || r == '\\':
		return append(b, '\\', byte(r))
	case r >= 0x20:
		return utf8.AppendRune(b, r)
	case r == '\b':
		return append(b, `\b`...)
	case r == '\f':
		return append(b, `\f`...)
	case r == '\n':
		return append(b, `\n`...)
	case r == '\r':
		return append(b, `\r`...)
	case r == '\t':
		return append(b, `\t`...)
	}
	const hex = "0123456789abcdef"
	return append(b, '\\', 'u', '0', '0', hex[r>>4], hex[r&15])
}

// unusual is the offset of the first escape in raw that a compact encoder may not have written, \u or \/; -1:
// there is none. It looks at eight bytes at a time, since text has escapes everywhere but few of these.
func unusual(raw []byte) int {
	for i := 0; ; {
		for ; i+8 <= len(raw); i += 7 {
			x := binary.LittleEndian.Uint64(raw[i:])
			next := x >> 8
			if zeros(x^(ones*'\\'))&(zeros(next^(ones*'u'))|zeros(next^(ones*'/'))) != 0 {
				break
			}
		}
		end := min(i+8, len(raw))
		for ; i < end-1; i++ {
			if raw[i] == '\\' && (raw[i+1] == 'u' || raw[i+1] == '/') && begins(raw, i) {
				return i
			}
		}
		if end == len(raw) {
			return -1
		}
	}
}

// sparse is the distance between escapes, in the mean, from which on unusualSparse is the faster one.
const sparse = 40

// unusualSparse is unusual by way of bytes.IndexByte.
func unusualSparse(raw []byte) int {
	for i := 0; ; i += 2 {
		n := bytes.IndexByte(raw[i:], '\\')
		if n < 0 || i+n+1 >= len(raw) {
			return -1
		}
		if i += n; raw[i+1] == 'u' || raw[i+1] == '/' {
			return i
		}
	}
}

const (
	ones  = 0x0101010101010101
	highs = 0x8080808080808080
)

// zeros marks the bytes of x that are 0 in their high bits, and perhaps others above one that is.
func zeros(x uint64) uint64 { return (x - ones) &^ x & highs }

// begins says whether the backslash at raw[i] begins an escape: it does not where it ends one.
func begins(raw []byte, i int) bool {
	n := 0
	for n < i && raw[i-1-n] == '\\' {
		n++
	}
	return n%2 == 0
}

// value writes a JSON value in one canonical spelling: no white space, strings in theirs. cache_control, which
// clients move from message to message, is left out.
func (f *feeder) value(i int) {
	switch scan.KindAt(f.b, i) {
	case scan.Str:
		end, _, _ := scan.String(f.b, i)
		f.mark('"')
		f.text(f.b[i+1 : end-1])
		f.mark('"')
	case scan.Arr, scan.Obj:
		open := f.b[i]
		f.mark(open)
		for w := scan.Walk(f.b, i); w.Next(); {
			if string(w.Key) == "cache_control" {
				continue
			}
			if open == '{' {
				f.text(w.Key)
				f.mark(':')
			}
			f.value(w.Start)
			f.mark(',')
		}
		f.mark(open + 2)
	default:
		end, _ := scan.Value(f.b, i, 0)
		f.write(f.b[i:end])
	}
}

// preamble writes what stands before every message or prompt.
func (f *feeder) preamble(v *View) {
	conversation := v.Endpoint == Chat || v.Endpoint == Messages || v.Endpoint == Responses
	for _, at := range [...]field{fTools, fFunctions} {
		if p := v.at[at]; conversation && p.end > 0 && f.b[p.val] == '[' {
			f.mark(markTools)
			f.value(int(p.val))
		}
	}
	for _, at := range [...]field{fSystem, fInstructions} {
		if p := v.at[at]; conversation && p.end > 0 && f.b[p.val] != 'n' {
			f.head("system")
			f.content(int(p.val), int(p.end), 0)
		}
	}
	for _, at := range [...]field{fImageData, fAudioData, fVideoData} {
		if p := v.at[at]; v.Endpoint == Generate && p.end > 0 {
			f.media(int(p.val))
		}
	}
}

func (f *feeder) head(role string) {
	f.mark(markMessage)
	f.write([]byte(role))
	f.mark(markContent)
}

// message writes role, content and tool calls, in this order whatever the body's.
func (f *feeder) message(m *message) {
	switch {
	case m.role.there():
		f.mark(markMessage)
		f.text(m.role.inner(f.b))
		f.mark(markContent)
	case m.content.there():
		f.head("user")
	default:
		f.mark(markMessage)
		f.content(int(m.whole.start), int(m.whole.end), 0)
	}
	if m.content.there() {
		f.content(int(m.content.start), int(m.content.end), 0)
	}
	if m.calls.there() {
		f.mark(markTools)
		f.value(int(m.calls.start))
	}
}

// content writes a string, parts, or one part, which ends at end.
func (f *feeder) content(i, end, level int) {
	switch scan.KindAt(f.b, i) {
	case scan.Str:
		f.text(f.b[i+1 : end-1])
	case scan.Arr:
		if i = scan.Space(f.b, i+1); f.b[i] == ']' {
			return
		}
		for {
			if i = scan.Space(f.b, f.part(i, level)); f.b[i] == ']' {
				return
			}
			f.mark(markPart)
			i = scan.Space(f.b, i+1)
		}
	default:
		f.part(i, level)
	}
}

// part writes one content part and returns the offset after it.
func (f *feeder) part(i, level int) int {
	switch scan.KindAt(f.b, i) {
	case scan.Obj:
	case scan.Str: // some engines take strings for parts
		end, _, _ := scan.String(f.b, i)
		f.text(f.b[i+1 : end-1])
		return end
	default:
		f.value(i)
		end, _ := scan.Value(f.b, i, 0)
		return end
	}
	var p part
	w := scan.Walk(f.b, i)
	for w.Next() {
		p.field(w.Key, f.b, w.Start, w.End)
	}
	switch p.form() {
	case partText:
		f.text(p.text[1 : len(p.text)-1])
	case partMedia:
		f.flush()
		f.w.Media(f.hash(i, 0))
	default:
		f.other(i, level)
	}
	return w.Offset()
}

// other writes a part that is neither text nor a medium, but may hold parts.
func (f *feeder) other(i, level int) {
	f.mark('{')
	for w := scan.Walk(f.b, i); w.Next(); {
		if string(w.Key) == "cache_control" {
			continue
		}
		f.text(w.Key)
		f.mark(':')
		holds := string(w.Key) == "content" || string(w.Key) == "output"
		if holds && level < nestedParts && (scan.KindAt(f.b, w.Start) == scan.Arr || scan.KindAt(f.b, w.Start) == scan.Obj) {
			f.content(w.Start, w.End, level+1)
		} else {
			f.value(w.Start)
		}
		f.mark(',')
	}
	f.mark('}')
}

// media writes /generate's media, each string one.
func (f *feeder) media(i int) {
	switch scan.KindAt(f.b, i) {
	case scan.Arr:
		for w := scan.Walk(f.b, i); w.Next(); {
			f.media(w.Start)
		}
	case scan.Null:
	default:
		f.flush()
		f.w.Media(f.hash(i, 0))
	}
}

// hash is the hash of a value, by what its strings stand for.
func (f *feeder) hash(i int, h uint64) uint64 {
	switch scan.KindAt(f.b, i) {
	case scan.Str:
		end, escaped, _ := scan.String(f.b, i)
		return mix(h, hashText(f.b[i+1:end-1], escaped))
	case scan.Arr, scan.Obj:
		for w := scan.Walk(f.b, i); w.Next(); {
			if string(w.Key) != "cache_control" {
				h = f.hash(w.Start, mix(h, xxh3.Hash(w.Key)))
			}
		}
		return h
	default:
		end, _ := scan.Value(f.b, i, 0)
		return mix(h, xxh3.Hash(f.b[i:end]))
	}
}

func mix(h, x uint64) uint64 {
	const odd = 0x9e3779b97f4a7c15
	return bits.RotateLeft64(h, 29)*odd + x
}

// hashText hashes what raw stands for, piece by piece where it has escapes.
func hashText(raw []byte, escaped bool) uint64 {
	if !escaped {
		return xxh3.Hash(raw)
	}
	h := xxh3.New()
	for {
		i := bytes.IndexByte(raw, '\\')
		if i < 0 {
			_, _ = h.Write(raw)
			return h.Sum64()
		}
		_, _ = h.Write(raw[:i])
		r, n := scan.Unescape(raw[i:])
		var c [utf8.UTFMax]byte
		_, _ = h.Write(c[:utf8.EncodeRune(c[:], r)])
		raw = raw[i+n:]
	}
}

// prompt writes one prompt.
func (f *feeder) prompt(p *Prompt) {
	switch p.Kind {
	case Text:
		f.text(f.b[p.Start+1 : p.End-1])
	case Tokens:
		f.flush()
		f.tokens(p.Start + 1)
	default:
		f.content(p.Start, p.End, 0)
	}
}

// tokens writes the ids that begin at i.
func (f *feeder) tokens(i int) {
	for {
		for i < len(f.b) && f.b[i]-'0' > 9 {
			if f.b[i] == ']' {
				return
			}
			i++
		}
		var id uint64
		for ; i < len(f.b) && f.b[i]-'0' <= 9; i++ {
			id = id*10 + uint64(f.b[i]-'0')
		}
		f.w.Token(id)
	}
}

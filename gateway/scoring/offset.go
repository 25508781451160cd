package scoring

import (
	"bytes"
	"strconv"
	"unicode/utf8"

	"penstock/gateway/body/scan"
)

// offsets tells where in a text each of its tokens begins, in code points.
//
// Most tokens are the text's next characters. A token that is a part of a character is spelled by engines in
// several ways. Where each of its bytes has a character, or is written out as in bytes:\xc3, the bytes are
// known, and its offset is that of the character it is a part of. As U+FFFD they are not: each is taken for one
// byte, which it nearly always is, and the next token that can be found shows where the text really goes on. A
// token that stands for no text (a special one) begins and ends where it is.
type offsets struct {
	all    []byte // the whole text
	text   []byte // what of it is ahead
	points int    // code points that have begun
	run    int    // code points of the tokens that were not found, since the last that was,
	known  place  // which ended here
	token  []byte
}

// place is where a text is found to go on.
type place struct {
	text   []byte
	points int
}

// reset begins with a text, given as JSON strings (their quotes included) that follow each other.
func (o *offsets) reset(strings ...[]byte) {
	o.all, o.points, o.run = o.all[:0], 0, 0
	o.text = o.all
	for _, s := range strings {
		o.extend(s)
	}
}

// extend adds a JSON string to the end of the text, before the first token.
func (o *offsets) extend(s []byte) {
	o.all = scan.AppendDecoded(o.all, inner(s))
	o.text = o.all
}

// next is the offset of the next token, given as a JSON string.
func (o *offsets) next(token []byte) int {
	o.token = scan.AppendDecoded(o.token[:0], inner(token))
	t := o.token
	if o.run > 0 && !bytes.ContainsRune(t, utf8.RuneError) {
		o.resync(t)
	}
	at := o.points
	if len(o.text) > 0 && !utf8.RuneStart(o.text[0]) {
		at-- // inside a character
	}
	if o.run == 0 && (o.found(t) || o.foundBytes(t)) {
		return at
	}
	if partial(t) {
		o.guess(t)
	}
	return at
}

// guess steps over a token that cannot be found: a byte for each U+FFFD.
func (o *offsets) guess(t []byte) {
	if o.run == 0 {
		o.known = place{o.text, o.points}
	}
	o.run += utf8.RuneCount(t)
	n := min(bytes.Count(t, []byte("\ufffd")), len(o.text))
	o.found(o.text[:n])
}

// found steps over t if it is what comes next.
func (o *offsets) found(t []byte) bool {
	if !bytes.HasPrefix(o.text, t) {
		return false
	}
	for _, c := range t {
		if utf8.RuneStart(c) {
			o.points++
		}
	}
	o.text = o.text[len(t):]
	return true
}

// foundBytes steps over the bytes that t spells.
func (o *offsets) foundBytes(t []byte) bool {
	var buf [utf8.UTFMax * 4]byte // no more than a few characters are ever in parts
	var b []byte
	if hex, ok := bytes.CutPrefix(t, []byte("bytes:")); ok {
		b = writtenOut(buf[:0], hex)
	} else {
		b = inAlphabet(buf[:0], t)
	}
	return len(b) > 0 && o.found(b)
}

// writtenOut reads bytes as in \xc3\xa9; nothing of anything else.
func writtenOut(b, t []byte) []byte {
	for ; len(t) >= 4 && t[0] == '\\' && t[1] == 'x' && len(b) < cap(b); t = t[4:] {
		c, err := strconv.ParseUint(string(t[2:4]), 16, 8)
		if err != nil {
			return nil
		}
		b = append(b, byte(c))
	}
	if len(t) > 0 {
		return nil
	}
	return b
}

// inAlphabet reads characters that each stand for a byte; nothing of anything else.
func inAlphabet(b, t []byte) []byte {
	for len(t) > 0 && len(b) < cap(b) {
		r, size := utf8.DecodeRune(t)
		c, ok := alphabetByte(r)
		if !ok {
			return nil
		}
		b = append(b, c)
		t = t[size:]
	}
	if len(t) > 0 {
		return nil
	}
	return b
}

// alphabetByte is the byte that a character stands for where a token is spelled by bytes: that of Latin-1 (as
// SGLang writes them), or, from U+0100 on, that of byte-level BPE's own alphabet, which has these for the 68
// bytes that do not print, in order.
func alphabetByte(r rune) (byte, bool) {
	switch {
	case r < 0x100:
		return byte(r), true
	case r >= 0x100 && r <= 0x120:
		return byte(r - 0x100), true
	case r >= 0x121 && r <= 0x142:
		return byte(r - 0x121 + 0x7f), true
	case r == 0x143:
		return 0xad, true
	}
	return 0, false
}

// resync finds t again after tokens that were not found: where it was guessed to be, else as many characters
// after what is known as these tokens could have made up.
func (o *offsets) resync(t []byte) {
	if len(o.text) != len(o.known.text) && bytes.HasPrefix(o.text, t) {
		o.run = 0
		return
	}
	rest := o.known.text
	for k := 0; k <= o.run; k++ {
		if k > 0 && bytes.HasPrefix(rest, t) {
			o.text, o.points, o.run = rest, o.known.points+k, 0
			return
		}
		if len(rest) == 0 {
			break
		}
		_, size := utf8.DecodeRune(rest)
		rest = rest[size:]
	}
	if bytes.HasPrefix(o.known.text, t) {
		o.text, o.points, o.run = o.known.text, o.known.points, 0
	}
}

// partial says whether a token may be part of a character: it has something beyond ASCII.
func partial(t []byte) bool {
	for _, c := range t {
		if c >= utf8.RuneSelf {
			return true
		}
	}
	return false
}

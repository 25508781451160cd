package lm

import (
	"strings"
)

// The special tokens come first, so that their ids do not depend on the text.
const (
	// EndOfText separates documents in other models' vocabularies; this one only pads with it.
	EndOfText uint32 = iota
	// StartTurn opens a turn of a chat.
	StartTurn
	// EndTurn closes a turn of a chat and a document: it ends a generation.
	EndTurn
	firstByte
)

// firstMerge is the id of the first learned token; the 256 bytes come before it.
const firstMerge = firstByte + 256

var specialText = [firstByte]string{"<|endoftext|>", "<|im_start|>", "<|im_end|>"}

// Tokenizer turns text into tokens by byte-pair merging and back. It is
// immutable and safe for concurrent use.
type Tokenizer struct {
	text  []string // of each token
	pairs pairTable
}

// Size is the number of tokens in the vocabulary.
func (t *Tokenizer) Size() int { return len(t.text) }

// Text returns a token's bytes; "" for an id outside the vocabulary.
func (t *Tokenizer) Text(id uint32) string {
	if int(id) >= len(t.text) {
		return ""
	}
	return t.text[id]
}

// Special tells whether id is one of the special tokens.
func Special(id uint32) bool { return id < firstByte }

// Encode appends the tokens of s to dst. The texts of special tokens become
// those tokens, as raw prompts need it.
func (t *Tokenizer) Encode(dst []uint32, s string) []uint32 {
	for {
		at, id := nextSpecial(s)
		if at < 0 {
			return t.EncodePlain(dst, s)
		}
		dst = t.EncodePlain(dst, s[:at])
		dst = append(dst, id)
		s = s[at+len(specialText[id]):]
	}
}

func nextSpecial(s string) (at int, id uint32) {
	from := 0
	for {
		i := strings.Index(s[from:], "<|")
		if i < 0 {
			return -1, 0
		}
		from += i
		for id, text := range specialText {
			if strings.HasPrefix(s[from:], text) {
				return from, uint32(id)
			}
		}
		from += 2
	}
}

// EncodePlain appends the tokens of s to dst; nothing in s becomes a special
// token, as the contents of chat messages need it.
func (t *Tokenizer) EncodePlain(dst []uint32, s string) []uint32 {
	for s != "" {
		n := nextWord(s)
		dst = t.encodeWord(dst, s[:n])
		s = s[n:]
	}
	return dst
}

// encodeWord merges the bytes of one word, the earliest learned pair first.
func (t *Tokenizer) encodeWord(dst []uint32, w string) []uint32 {
	if len(w) == 1 {
		return append(dst, firstByte+uint32(w[0]))
	}
	var buf [maxWord]uint32
	// merged[i] is what buf[i] and buf[i+1] merge into, or none.
	var merged [maxWord]uint32
	n := len(w)
	for i := range n {
		buf[i] = firstByte + uint32(w[i])
	}
	for i := range n - 1 {
		merged[i] = t.pairs.get(buf[i], buf[i+1])
	}
	for {
		at, best := -1, uint32(none)
		for i := range n - 1 {
			if merged[i] < best {
				at, best = i, merged[i]
			}
		}
		if at < 0 {
			return append(dst, buf[:n]...)
		}
		buf[at] = best
		copy(buf[at+1:n-1], buf[at+2:n])
		copy(merged[at+1:n-1], merged[at+2:n])
		n--
		if at > 0 {
			merged[at-1] = t.pairs.get(buf[at-1], best)
		}
		if at < n-1 {
			merged[at] = t.pairs.get(best, buf[at+1])
		}
	}
}

// Decode appends the bytes of tokens to dst. Ids outside the vocabulary add nothing.
func (t *Tokenizer) Decode(dst []byte, tokens []uint32) []byte {
	for _, id := range tokens {
		dst = append(dst, t.Text(id)...)
	}
	return dst
}

// none marks a pair that does not merge.
const none = 1<<32 - 1

// pairTable maps a pair of tokens to what they merge into, by open addressing:
// encoding looks up a pair about twice per byte.
type pairTable struct {
	keys   []uint64
	values []uint32
	shift  uint
}

func newPairTable(pairs map[uint64]uint32) pairTable {
	bits := uint(4)
	for 1<<bits < 4*len(pairs) {
		bits++
	}
	t := pairTable{keys: make([]uint64, 1<<bits), values: make([]uint32, 1<<bits), shift: 64 - bits}
	for i := range t.keys {
		t.keys[i] = 1<<64 - 1
	}
	for k, v := range pairs {
		i := t.slot(k)
		for t.keys[i] != 1<<64-1 {
			i = (i + 1) & (len(t.keys) - 1)
		}
		t.keys[i], t.values[i] = k, v
	}
	return t
}

func (t *pairTable) slot(k uint64) int { return int(k * 0x9E3779B97F4A7C15 >> t.shift) }

func (t *pairTable) get(a, b uint32) uint32 {
	k := pairKey(a, b)
	for i := t.slot(k); ; i = (i + 1) & (len(t.keys) - 1) {
		switch t.keys[i] {
		case k:
			return t.values[i]
		case 1<<64 - 1:
			return none
		}
	}
}

func pairKey(a, b uint32) uint64 { return uint64(a)<<32 | uint64(b) }

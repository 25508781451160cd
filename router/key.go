package router

import (
	"encoding/binary"
	"math/bits"
	"slices"

	"github.com/zeebo/xxh3"
)

const (
	// bytesPerToken is what a token is worth in a key until a pool has learned
	// better: a block of 64 tokens is 256 bytes of text, and a token id counts 4.
	bytesPerToken = 4
	// defaultBlockTokens is the size of a block of the key.
	defaultBlockTokens = 64
	// defaultImageTokens is what an image counts in the key.
	defaultImageTokens = 1000
	// A prompt's first evenBlocks blocks are of one unit. From there on a block
	// is twice as long after each doubling of the depth, so that it never is more
	// than a coarseness-th of what comes before it: a long prompt costs a few
	// hundred blocks, and a match is off by 3 % at most.
	evenBlocks = 64
	coarseness = 32
)

// unitsAt is how many units (of Options.BlockTokens) the first n blocks of a
// prompt cover.
func unitsAt(n int) int {
	if n <= evenBlocks {
		return n
	}
	level, rest := (n-evenBlocks)/coarseness, (n-evenBlocks)%coarseness
	return (evenBlocks + 2*rest) << level
}

// blockUnits is the length of a prompt's block i in units.
func blockUnits(i int) int {
	if i < evenBlocks {
		return 1
	}
	return 2 << ((i - evenBlocks) / coarseness)
}

// BlockEnds says whether a block ends after so many units of a prompt. A chain
// of hashes, one for each unit, is a key when the others are left out.
func BlockEnds(units int) bool {
	if units <= evenBlocks {
		return units > 0
	}
	return units&(1<<bits.Len(uint((units-1)/evenBlocks))-1) == 0
}

// Key is a prompt as the index knows it: one chained hash for each whole block,
// so that a single hash stands for everything up to the end of its block. Blocks
// grow with depth (BlockEnds).
type Key struct {
	// Hashes are chained: Hashes[i] depends on all of the prompt up to the end of block i.
	Hashes []uint64
	// Bytes is the length of the whole prompt, the last partial block included;
	// a token id counts as 4, an image as 4 × its tokens.
	Bytes int
}

// Clone copies a key that must outlive its builder's next Reset.
func (k Key) Clone() Key { return Key{Hashes: slices.Clone(k.Hashes), Bytes: k.Bytes} }

// KeyBuilder cuts a prompt into units, hashes them as a chain, and keeps the
// hashes at the ends of blocks. It is meant to be reused: after the first prompts it allocates nothing.
type KeyBuilder struct {
	hashes []uint64
	buf    []byte // the current partial unit; cap is the unit's size
	chain  uint64
	units  int
	bytes  int
	image  int // tokens that Media counts
}

// NewKeyBuilder makes a builder of units of blockTokens tokens' worth of bytes
// (0: 64); an image counts as imageTokens (0: 1000). All builders of one pool
// must agree on both.
func NewKeyBuilder(blockTokens, imageTokens int) *KeyBuilder {
	if blockTokens <= 0 {
		blockTokens = defaultBlockTokens
	}
	if imageTokens <= 0 {
		imageTokens = defaultImageTokens
	}
	return &KeyBuilder{buf: make([]byte, 0, blockTokens*bytesPerToken), image: imageTokens}
}

// Reset starts a new prompt. Prompts of different models, LoRA adapters or
// cache salts share no block.
func (b *KeyBuilder) Reset(model, lora, salt string) {
	b.hashes, b.buf, b.bytes, b.units = b.hashes[:0], b.buf[:0], 0, 0
	// Chained one by one, so that ("ab", "c") is not ("a", "bc").
	b.chain = xxh3.HashStringSeed(salt, xxh3.HashStringSeed(lora, xxh3.HashString(model)))
}

// Write adds text. It never fails.
func (b *KeyBuilder) Write(p []byte) (int, error) {
	n := len(p)
	b.bytes += n
	if len(b.buf) > 0 {
		take := min(cap(b.buf)-len(b.buf), len(p))
		b.buf = append(b.buf, p[:take]...)
		if p = p[take:]; len(b.buf) < cap(b.buf) {
			return n, nil
		}
		b.unit(b.buf)
		b.buf = b.buf[:0]
	}
	for len(p) >= cap(b.buf) {
		b.unit(p[:cap(b.buf)])
		p = p[cap(b.buf):]
	}
	b.buf = append(b.buf, p...)
	return n, nil
}

// WriteString adds text. It never fails.
func (b *KeyBuilder) WriteString(s string) (int, error) {
	n := len(s)
	for len(s) > 0 {
		if len(b.buf) == 0 && len(s) >= cap(b.buf) {
			b.link(xxh3.HashString(s[:cap(b.buf)]))
			s = s[cap(b.buf):]
			continue
		}
		take := min(cap(b.buf)-len(b.buf), len(s))
		b.buf = append(b.buf, s[:take]...)
		if s = s[take:]; len(b.buf) == cap(b.buf) {
			b.unit(b.buf)
			b.buf = b.buf[:0]
		}
	}
	b.bytes += n
	return n, nil
}

// Token adds one token id.
func (b *KeyBuilder) Token(id uint64) {
	// A unit is a whole number of ids as long as nothing but ids was written;
	// ids above 32 bits do not occur in a vocabulary, their upper half is folded in.
	var p [bytesPerToken]byte
	binary.LittleEndian.PutUint32(p[:], uint32(id)^uint32(id>>32))
	_, _ = b.Write(p[:]) // it cannot fail
}

// Tokens adds token ids.
func (b *KeyBuilder) Tokens(ids []uint64) {
	for _, id := range ids {
		b.Token(id)
	}
}

// Media adds an image, audio or file part by the hash of its bytes; it counts
// as the builder's tokens for an image, whatever its length.
func (b *KeyBuilder) Media(hash uint64) {
	var p [8]byte
	binary.LittleEndian.PutUint64(p[:], hash)
	for n := b.image * bytesPerToken; n > 0; n -= len(p) {
		_, _ = b.Write(p[:min(n, len(p))])
	}
}

// Key is the prompt written since Reset. Its hashes are the builder's own: they
// are valid until the next Reset.
func (b *KeyBuilder) Key() Key { return Key{Hashes: b.hashes, Bytes: b.bytes} }

func (b *KeyBuilder) unit(p []byte) { b.link(xxh3.Hash(p)) }

// link chains a unit's hash onto all before it. The chain is not the hash's
// seed: xxh3 would derive a secret from it for each unit of more than 240 bytes.
func (b *KeyBuilder) link(hash uint64) {
	const m = 0x9fb21c651e98df25 // odd, its bits well mixed
	x := (bits.RotateLeft64(b.chain, 25) ^ hash) * m
	x ^= x >> 29
	x *= m
	b.chain = x ^ x>>32
	if b.units++; BlockEnds(b.units) {
		b.hashes = append(b.hashes, b.chain)
	}
}

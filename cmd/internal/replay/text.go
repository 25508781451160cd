package replay

import (
	"strconv"
	"strings"
)

// bytesOfToken is the text that stands for one token: a word and its space.
const bytesOfToken = 4

// prompt is the text of a row: equal blocks give equal text, so that a prompt
// shares exactly the prefixes that the trace says. The last block is cut to the
// prompt's length.
func (t *Trace) prompt(row *Row) string {
	var b strings.Builder
	length := row.Input * bytesOfToken
	b.Grow(length + 16)
	for _, block := range row.Blocks {
		blockText(&b, uint64(block), min(t.BlockTokens*bytesOfToken, length-b.Len()))
	}
	// A row may name fewer blocks than its length has: the rest is its own.
	if rest := length - b.Len(); rest > 0 {
		blockText(&b, mix(1, uint64(row.number)), rest)
	}
	return b.String()
}

// blockText writes size bytes of words that a block's number determines.
func blockText(b *strings.Builder, block uint64, size int) {
	end := b.Len() + size
	for i := uint64(0); b.Len() < end; i++ {
		word := strconv.FormatUint(mix(block+1, i)%46656, 36) + " "
		b.WriteString(word[:min(len(word), end-b.Len())])
	}
}

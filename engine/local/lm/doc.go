// Package lm is the small language model of the embedded engine: a byte-level
// tokenizer and an n-gram model with back-off, both learned at start from a
// text that ships with it and was written for it.
//
// In reading order:
//
//   - corpus.go: the text, its documents
//   - split.go: how text is cut into words before merging
//   - tokenizer.go: byte-pair merges, learned from the text; exact round trip of any bytes
//   - detok.go: tokens back to text, never half a UTF-8 character
//   - build.go: counting n-grams into a trie
//   - model.go: states, exact probabilities
//   - dist.go: the whole distribution at one state, sparsely
//   - sample.go: temperature, top_p, top_k, min_p
//
// A Tokenizer and a Model are immutable once built and may be used by any
// number of goroutines; a State is a value; a Scratch and a Sampler belong to
// one goroutine at a time.
package lm

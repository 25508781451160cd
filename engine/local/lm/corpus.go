package lm

import (
	_ "embed"
	"strings"
	"sync"
)

//go:embed corpus.txt
var corpus string

// documentMark separates the documents of the corpus; it is no part of the text.
const documentMark = "\n%%\n"

// Text returns the text that the model was learned from, without the marks
// between its documents.
func Text() string { return strings.Join(documents(), "\n\n") }

func documents() []string {
	var docs []string
	for d := range strings.SplitSeq(corpus, documentMark) {
		if d = strings.TrimSpace(d); d != "" {
			docs = append(docs, d)
		}
	}
	return docs
}

// shared is built once per process, when first asked for, and never changes:
// learning takes some ten milliseconds, and a test may start dozens of engines.
var shared = sync.OnceValue(func() *Model { return Build(documents(), VocabSize, Order) })

// Shared returns the model of the embedded text. It is built at the first call.
func Shared() *Model { return shared() }

package score

import (
	"unicode"
	"unicode/utf8"
)

// window is one request's prompt: ids, or, without a tokenizer, text. Of its tokens the last count are scored;
// of a text's, whose number the endpoint alone knows, all but the first.
type window struct {
	ids   []int
	text  string
	count int
}

// result is what a window came to.
type result struct {
	done   bool
	tokens int     // scored
	sum    float64 // of their log-probabilities
}

// rolling cuts a document's tokens into windows of at most size tokens such that each token is predicted once,
// from at least context tokens before it where it has so many. The last window is filled up with context from
// before. With context 1 these are the windows of lm-evaluation-harness at max_length = size + 1 (it keeps one
// token for what the engine generates). prefix stands before the document; without it (-1) the first token is not predicted, for want of something to predict it
// from.
func rolling(ids []int, size, context, prefix int) []window {
	if prefix >= 0 {
		ids = append([]int{prefix}, ids...)
	}
	if len(ids) < 2 {
		return nil
	}
	first := min(size, len(ids))
	windows := []window{{ids: ids[:first], count: first - 1}}
	for end := first; end < len(ids); {
		count := min(len(ids)-end, size-context)
		end += count
		windows = append(windows, window{ids: ids[max(0, end-size):end], count: count})
	}
	return windows
}

// pieces cuts a text at white space into pieces of about size bytes. Each begins with its space, as tokenizers
// have it.
func pieces(text string, size int) []window {
	var windows []window
	for len(text) > size {
		at := lastSpace(text[:size])
		if at == 0 {
			at = size
			for at > 1 && !utf8.RuneStart(text[at]) {
				at--
			}
		}
		windows = append(windows, window{text: text[:at]})
		text = text[at:]
	}
	return append(windows, window{text: text})
}

// lastSpace is the offset of the last white space after something else; 0: there is none.
func lastSpace(s string) int {
	for i := len(s); i > 0; {
		r, n := utf8.DecodeLastRuneInString(s[:i])
		i -= n
		if unicode.IsSpace(r) {
			return i
		}
	}
	return 0
}

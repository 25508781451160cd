package e2e

import (
	"fmt"
	"math"
	"strings"

	"penstock/engine/local/lm"
)

// The model that the local engines serve, asked without any engine.

// ids are the tokens of a text, as an engine reads a raw prompt.
func ids(text string) []uint32 { return lm.Shared().Encode(nil, text) }

// spelled is the text of tokens.
func spelled(tokens []uint32) string { return string(lm.Shared().Decode(nil, tokens)) }

// logprobs are the log-probabilities of tokens, the first of which has none (NaN).
func logprobs(tokens []uint32) []float64 {
	m := lm.Shared()
	s, out := m.Begin(), make([]float64, len(tokens))
	for i, w := range tokens {
		out[i] = math.NaN()
		if i > 0 {
			out[i] = m.LogProb(s, w)
		}
		s = m.Advance(s, w)
	}
	return out
}

// greedy says whether the tokens from the given one on are the likeliest ones.
func greedy(tokens []uint32, from int) bool {
	m := lm.Shared()
	s, x := m.Begin(), m.NewScratch()
	for i, w := range tokens {
		if i >= from {
			best := x.Dist(m, s).Top(nil, 1)[0]
			if best.Token != w && m.LogProb(s, w) < math.Log(best.P) {
				return false
			}
		}
		s = m.Advance(s, w)
	}
	return true
}

// proseText is text of many words that differs from that of any other number: parts of what the model learned from,
// among words that it never saw.
func proseText(n, words int) string {
	known := strings.Fields(lm.Text())
	var b strings.Builder
	for i := range words {
		if i%17 == 16 {
			fmt.Fprintf(&b, "mark%d-%d ", n, i)
			continue
		}
		b.WriteString(known[(n*7919+i)%len(known)])
		b.WriteByte(" \n"[max(0, i%40-38)])
	}
	return strings.TrimSpace(b.String())
}

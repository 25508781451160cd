package bench

import (
	"time"

	"penstock/cmd/internal/replay"
)

// fromTrace makes the requests of a trace: equal blocks become equal text.
func (p *Phase) fromTrace(e *Endpoint, seed, base uint64) ([]script, error) {
	t, err := replay.Load(p.Trace, p.Limit)
	if err != nil {
		return nil, err
	}
	perBlock := e.scale.wordsIn(t.BlockTokens)
	scripts := make([]script, len(t.Rows))
	for i, row := range t.Rows {
		if p.Speed > 0 {
			scripts[i].at = time.Duration((row.At - t.Rows[0].At) / p.Speed * float64(time.Millisecond))
		}
		scripts[i].turns = []ask{{output: row.Output, text: func() []byte {
			left, b := row.Input, []byte(nil)
			for _, block := range row.Blocks { // the last may be a part of one
				tokens := min(left, t.BlockTokens)
				n := min(perBlock, e.scale.wordsIn(tokens))
				b = e.vocab.source(seed, base|uint64(block)).appendFirst(b, n, perBlock)
				left -= tokens
			}
			if left > 0 { // a prompt longer than its blocks ends in text of its own
				b = e.vocab.source(seed, base|streamPrefix|uint64(i)).append(b, e.scale.wordsIn(left))
			}
			return b
		}}}
	}
	return scripts, nil
}

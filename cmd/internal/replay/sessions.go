package replay

import (
	"cmp"
	"encoding/json"
	"slices"

	"github.com/zeebo/xxh3"
)

const (
	// sessionBlock is the block size of traces made of text, in tokens of 4 bytes.
	sessionBlock = 64
	// betweenSessions and betweenTurns place conversations that carry no times, in ms.
	betweenSessions, betweenTurns = 2000.0, 10000.0
)

// conversation is a session of turns with times, or a list of messages.
type conversation struct {
	Turns []struct {
		At        float64 `json:"t_ms"`
		User      string  `json:"user"`
		Assistant string  `json:"assistant"`
	} `json:"turns"`
	Messages []json.RawMessage `json:"messages"`
}

// fromConversations makes a request of every turn: all that was said before it
// is its prompt.
func fromConversations(talks []conversation, limit int) *Trace {
	var rows []rawRow
	for i, c := range talks {
		if len(c.Turns) > 0 {
			rows = append(rows, c.fromTurns()...)
		} else {
			rows = append(rows, c.fromMessages(betweenSessions*float64(i))...)
		}
	}
	slices.SortStableFunc(rows, func(a, b rawRow) int { return cmp.Compare(a.At, b.At) })
	if limit > 0 {
		rows = rows[:min(limit, len(rows))]
	}
	t := newBuilder(sessionBlock)
	for _, r := range rows {
		t.add(r.At, r.Input, r.Output, r.IDs)
	}
	return t.Trace
}

func (c *conversation) fromTurns() []rawRow {
	var text []byte
	var rows []rawRow
	for _, turn := range c.Turns {
		text = append(append(text, "user\n"...), turn.User...)
		rows = append(rows, textRow(turn.At, text, len(turn.Assistant)))
		text = append(append(text, "assistant\n"...), turn.Assistant...)
	}
	return rows
}

func (c *conversation) fromMessages(at float64) []rawRow {
	var text []byte
	var rows []rawRow
	for _, m := range c.Messages {
		var who struct {
			Role string `json:"role"`
		}
		if json.Unmarshal(m, &who) == nil && who.Role == "assistant" {
			rows = append(rows, textRow(at, text, len(m)))
			at += betweenTurns
		}
		text = append(append(text, m...), '\n')
	}
	return rows
}

// textRow is a request whose blocks are hashes of the text itself.
func textRow(at float64, text []byte, answer int) rawRow {
	const bytesPerToken = 4
	r := rawRow{At: at, Input: max(1, len(text)/bytesPerToken), Output: max(1, answer/bytesPerToken)}
	for block := range slices.Chunk(text, sessionBlock*bytesPerToken) {
		r.IDs = append(r.IDs, xxh3.Hash(block))
	}
	return r
}

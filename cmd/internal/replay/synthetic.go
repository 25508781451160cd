package replay

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
)

const (
	// syntheticRequests is the length of a synthetic trace without a limit.
	syntheticRequests = 5000
	// syntheticBlock is its block size in tokens.
	syntheticBlock = 64
)

// Synthetic makes a trace of a kind, the same for the same seed:
//
//   - chat: people in conversations of a few turns, under one of eight system prompts
//   - shared-prefix: questions on popular documents, which come in waves
//   - agents: tool loops whose context grows to 150,000 tokens and more
//   - unrelated: prompts that share nothing
//
// Eight replicas of the default size are well used at speed 1 and overloaded at 2.
func Synthetic(kind string, seed uint64, limit int) (*Trace, error) {
	g := &generator{rnd: rand.New(rand.NewPCG(seed, 0x73796e7468)), limit: limit}
	if limit <= 0 {
		g.limit = syntheticRequests
	}
	switch kind {
	case "chat":
		g.chat()
	case "shared-prefix":
		g.sharedPrefix()
	case "agents":
		g.agents()
	case "unrelated":
		g.unrelated()
	default:
		return nil, fmt.Errorf("synthetic trace %q: want chat, shared-prefix, agents or unrelated", kind)
	}
	return g.trace(), nil
}

// generator collects rows in any order of time.
type generator struct {
	rnd   *rand.Rand
	limit int
	ids   uint64
	rows  []rawRow
}

// fresh is a piece of new text of so many blocks.
func (g *generator) fresh(tokens int) []uint64 {
	ids := make([]uint64, max(1, tokens/syntheticBlock))
	for i := range ids {
		g.ids++
		ids[i] = g.ids
	}
	return ids
}

// around is log-normal with the given median; sigma 0.7 makes the 90th percentile 2.5 times that.
func (g *generator) around(median, sigma float64) float64 {
	return median * math.Exp(sigma*g.rnd.NormFloat64())
}

// zipf is a number below n, the first the most popular.
func (g *generator) zipf(n int) int {
	return int(math.Pow(float64(n)+1, g.rnd.Float64())) - 1
}

func (g *generator) ask(at float64, ids []uint64, output float64) {
	tail := g.rnd.IntN(syntheticBlock) // the last block is partial
	g.rows = append(g.rows, rawRow{At: at, Input: len(ids)*syntheticBlock - tail, Output: max(1, int(output)), IDs: slices.Clone(ids)})
}

// trace orders the requests and keeps as many as wanted, from a time on when
// sessions of every age are under way.
func (g *generator) trace() *Trace {
	slices.SortStableFunc(g.rows, func(a, b rawRow) int { return cmp.Compare(a.At, b.At) })
	t := newBuilder(syntheticBlock)
	for _, r := range g.rows[:min(g.limit, len(g.rows))] {
		t.add(r.At, r.Input, r.Output, r.IDs)
	}
	return t.Trace
}

func (g *generator) chat() {
	systems := make([][]uint64, 8)
	for i := range systems {
		systems[i] = g.fresh(int(g.around(1500, 0.6)))
	}
	for start := 0.0; len(g.rows) < 2*g.limit; start += g.rnd.ExpFloat64() * 80 {
		text := slices.Clone(systems[g.zipf(len(systems))])
		if g.rnd.IntN(3) == 0 {
			text = append(text, g.fresh(int(g.around(8000, 1)))...) // something pasted
		}
		for at := start; ; at += g.around(25_000, 0.8) {
			text = append(text, g.fresh(int(g.around(250, 1)))...)
			answer := g.around(300, 0.7)
			g.ask(at, text, answer)
			text = append(text, g.fresh(int(answer))...)
			if g.rnd.Float64() < 0.2 {
				break
			}
		}
	}
}

func (g *generator) sharedPrefix() {
	documents := make([][]uint64, 100)
	for i := range documents {
		documents[i] = g.fresh(int(g.around(10_000, 0.8)))
	}
	for at := 0.0; len(g.rows) < g.limit; at += g.rnd.ExpFloat64() * 120 {
		wave := 1
		if g.rnd.IntN(20) == 0 {
			wave += g.rnd.IntN(20) // many ask about the same at once
		}
		document := documents[g.zipf(len(documents))]
		for range wave {
			g.ask(at, append(slices.Clone(document), g.fresh(int(g.around(400, 1)))...), g.around(200, 0.8))
		}
	}
}

func (g *generator) agents() {
	tools := g.fresh(6000)
	for start := 0.0; len(g.rows) < 2*g.limit; start += g.rnd.ExpFloat64() * 3500 {
		text := append(slices.Clone(tools), g.fresh(int(g.around(6000, 1)))...)
		turns := 1 + int(g.around(35, 0.7))
		for at := start; turns > 0 && len(text)*syntheticBlock < 200_000; turns-- {
			answer := g.around(250, 0.8)
			g.ask(at, text, answer)
			text = append(text, g.fresh(int(answer))...)
			text = append(text, g.fresh(int(g.around(1800, 1)))...) // what the tool said
			at += 30*answer + g.around(4000, 1.2)                   // the answer, then the tool
		}
	}
}

func (g *generator) unrelated() {
	for at := 0.0; len(g.rows) < g.limit; at += g.rnd.ExpFloat64() * 60 {
		g.ask(at, g.fresh(int(g.around(5000, 1.1))), g.around(250, 0.8))
	}
}

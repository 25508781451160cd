package local

import (
	"slices"
	"strings"
	"sync"

	"penstock/engine/local/lm"
)

// gen is one sequence being generated: one choice of one prompt. The scheduler
// calls Next, the request's goroutine reads what has come; mu is between them.
type gen struct {
	call   *call
	model  *lm.Model
	prompt []uint32
	most   int      // tokens it may generate
	led    bool     // a leader read the prompt and knows what was cached
	first  lm.State // after the prompt
	state  lm.State
	draw   *lm.Sampler
	wake   chan struct{} // capacity 1, shared by the gens of one exchange

	mu      sync.Mutex
	detok   lm.Detok
	text    []byte
	tokens  []uint32
	shown   []int32 // after each token, how much of text may be shown
	sum     float64 // log-probability of the tokens, kept for best_of only
	cached  int     // prompt tokens that were in the cache
	reason  string  // finish_reason; "" while running
	matched string  // the stop string that ended it
	eos     bool    // the end token ended it
}

// reasonAbort is the finish reason of what was aborted.
const reasonAbort = "abort"

func newGen(m *lm.Model, c *call, p []uint32, most, which int, wake chan struct{}) *gen {
	g := &gen{call: c, model: m, prompt: p, most: most, wake: wake}
	g.first = m.Resume(p)
	g.state = g.first
	g.draw = m.NewSampler(c.how, c.seed, uint64(which))
	return g
}

// Prefilled notes what was cached.
func (g *gen) Prefilled(cached int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.led {
		g.cached = cached
	}
	if g.most == 0 && g.reason == "" {
		g.reason = "length"
	}
}

// Next generates one token and tells whether it was the last one.
func (g *gen) Next() (token uint32, done bool) {
	w := g.draw.Next(g.state)
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.reason != "" { // aborted
		return w, true
	}
	if g.call.bestOf > g.call.n {
		g.sum += g.model.LogProb(g.state, w)
	}
	g.state = g.model.Advance(g.state, w)
	g.tokens = append(g.tokens, w)
	from := len(g.text)
	free := g.call.ignoreEOS || len(g.tokens) <= g.call.minTokens
	switch {
	case w == lm.EndTurn && !free:
		g.reason, g.eos = "stop", true
	case lm.Special(w):
		// A special token has no text of its own in an answer.
	default:
		g.text = g.detok.Append(g.text, g.model.Text(w))
	}
	g.checkStops(w, from)
	if g.reason == "" && len(g.tokens) >= g.most {
		g.reason = "length"
	}
	if g.reason != "" && g.matched == "" {
		g.text = g.detok.Flush(g.text)
	}
	g.shown = append(g.shown, int32(g.showable()))
	return w, g.reason != ""
}

// checkStops ends the text at a stop string or stop token.
func (g *gen) checkStops(w uint32, from int) {
	if g.reason != "" || len(g.tokens) <= g.call.minTokens {
		return
	}
	if slices.Contains(g.call.stopIDs, w) {
		g.reason = "stop"
		if !g.call.keepStop {
			g.text = g.text[:from]
		}
		return
	}
	at := -1
	for _, stop := range g.call.stops {
		start := max(0, from-len(stop)+1)
		if i := strings.Index(string(g.text[start:]), stop); i >= 0 && (at < 0 || start+i < at) {
			at, g.matched = start+i, stop
		}
	}
	if at < 0 {
		return
	}
	g.reason = "stop"
	if g.call.keepStop {
		at += len(g.matched)
	}
	g.text = g.text[:at]
}

// showable is how much text no stop string can take back any more.
func (g *gen) showable() int {
	if g.reason != "" || g.call.keepStop {
		return len(g.text)
	}
	held := 0
	for _, stop := range g.call.stops {
		for k := min(len(stop)-1, len(g.text)); k > held; k-- {
			if string(g.text[len(g.text)-k:]) == stop[:k] {
				held = k
				break
			}
		}
	}
	return len(g.text) - held
}

// Signal tells the request's goroutine that there is something to read.
func (g *gen) Signal() {
	select {
	case g.wake <- struct{}{}:
	default:
	}
}

package bench

import (
	"math/rand/v2"
	"time"
)

// script is a request, or the requests of a conversation in their order.
type script struct {
	at    time.Duration // when it begins; with a rate or a trace's times
	turns []ask
}

// ask is one message of the user and the answer that is wanted.
type ask struct {
	text   func() []byte
	output int
}

// seeds of the streams of random numbers.
const (
	streamArrivals = 1 << 54
	streamPrefix   = 1 << 53
)

// plan makes the requests of a phase for an endpoint. Prompts share what the
// phase says they share and nothing else: no run and no endpoint repeats those
// of another, so that no cache of an engine behind two of them falsifies.
func (p *Phase) plan(e *Endpoint, seed, run uint64) ([]script, error) {
	base := e.number<<56 | run<<40
	if p.Trace != "" {
		return p.fromTrace(e, seed, base)
	}
	if p.Sessions > 0 {
		return p.sessions(e, seed, base), nil
	}
	scripts := make([]script, p.requests())
	for i := range scripts {
		scripts[i].turns = []ask{p.ask(e, seed, base, i, e.scale.wordsFor(p.Input))}
	}
	p.arrivals(scripts, seed, base)
	return scripts, nil
}

// ask is request i, of so many words.
func (p *Phase) ask(e *Endpoint, seed, base uint64, i, words int) ask {
	return ask{output: p.Output, text: func() []byte {
		var b []byte
		if p.Prefixes > 0 {
			n := min(words-1, e.scale.wordsIn(p.PrefixTokens))
			b = e.vocab.source(seed, base|streamPrefix|uint64(i%p.Prefixes)).append(b, n)
			words -= n
		}
		return e.vocab.source(seed, base|uint64(i)).append(b, words)
	}}
}

// sessions are conversations: each turn asks for something new after all that
// was said.
func (p *Phase) sessions(e *Endpoint, seed, base uint64) []script {
	scripts := make([]script, p.Sessions)
	plain := *p
	plain.Prefixes = 0
	for i := range scripts {
		first := p.ask(e, seed, base, i, e.scale.wordsFor(p.Input))
		scripts[i].turns = append(scripts[i].turns, first)
		for k := 1; k < p.Turns; k++ {
			scripts[i].turns = append(scripts[i].turns, plain.ask(e, seed, base, i+k*p.Sessions, e.scale.wordsIn(p.Input)))
		}
	}
	p.arrivals(scripts, seed, base)
	return scripts
}

// arrivals gives each script its time: a Poisson process of the phase's rate.
func (p *Phase) arrivals(scripts []script, seed, base uint64) {
	if p.Rate <= 0 {
		return
	}
	rnd := rand.New(rand.NewPCG(seed, base|streamArrivals))
	at := 0.0
	for i := range scripts {
		scripts[i].at = time.Duration(at * float64(time.Second))
		at += rnd.ExpFloat64() / p.Rate
	}
}

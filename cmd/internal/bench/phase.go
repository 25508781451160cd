package bench

import (
	"cmp"
	"fmt"
	"math"
	"strings"
)

// Phase is a load: so many requests of such lengths, so many at once or at
// such a rate.
type Phase struct {
	Name     string
	Batch    int     // requests at once; with a rate: at most, 0 without bound
	Requests int     // in all; 0: Batch
	Rate     float64 // requests/s in the mean, arriving at random (Poisson); 0: a new one when one ends
	Input    int     // tokens of a prompt
	Output   int     // tokens of an answer

	Prefixes     int // how many different beginnings the prompts have; 0: none is shared
	PrefixTokens int // how long they are, of Input

	Sessions int // conversations, each of Turns requests that hold all that was said before
	Turns    int

	Trace string  // file; its requests in place of all the above
	Limit int     // requests of the trace, 0: all
	Speed float64 // how many times as fast as the trace's times; 0: as Batch lets them

	scoring bool // prompt log-probabilities instead of answers
}

// Defaults of a phase by flags.
const (
	defaultInput, defaultOutput = 256, 256
	defaultTurns                = 4
)

// namedPhases are the phases of earlier rows, and one that asks for prompt
// log-probabilities.
func namedPhases() []Phase {
	return []Phase{
		{Name: "single", Batch: 1, Input: 256, Output: 256},
		{Name: "decode_medium", Batch: 512, Input: 256, Output: 256},
		{Name: "decode_long", Batch: 16, Input: 8192, Output: 256},
		{Name: "throughput_8k", Batch: 929, Input: 8192, Output: 1024},
		{Name: "scoring", Batch: 4, Input: 256, scoring: true},
	}
}

// PhaseNames lists the phases that have a name.
func PhaseNames() string {
	var names []string
	for _, p := range namedPhases() {
		names = append(names, p.Name)
	}
	return strings.Join(names, ", ")
}

// phaseNamed reads a name, all, or NAME=BATCHxINPUTxOUTPUT.
func phaseNamed(s string) ([]Phase, error) {
	if s == "all" {
		return namedPhases(), nil
	}
	name, sizes, own := strings.Cut(s, "=")
	if own {
		p := Phase{Name: name}
		var rest string
		n, _ := fmt.Sscanf(sizes, "%dx%dx%d%s", &p.Batch, &p.Input, &p.Output, &rest)
		if name == "" || n != 3 || p.Batch < 1 || p.Input < 1 || p.Output < 1 {
			return nil, fmt.Errorf("--phase %s: want NAME=BATCHxINPUTxOUTPUT as in mine=16x8192x256", s)
		}
		return []Phase{p}, nil
	}
	for _, p := range namedPhases() {
		if p.Name == s {
			return []Phase{p}, nil
		}
	}
	return nil, fmt.Errorf("--phase %s: want all, NAME=BATCHxINPUTxOUTPUT, or some of %s", s, PhaseNames())
}

// set tells whether flags describe a phase.
func (p *Phase) set() bool { return *p != Phase{Name: p.Name, Speed: p.Speed} }

// complete fills in what flags left out, and finds what cannot be.
func (p Phase) complete() (Phase, error) {
	p.Name = cmp.Or(p.Name, "custom")
	for _, n := range []struct {
		flag  string
		value float64
	}{
		{"concurrency", float64(p.Batch)},
		{"requests", float64(p.Requests)},
		{"rate", p.Rate},
		{"input-len", float64(p.Input)},
		{"output-len", float64(p.Output)},
		{"prefixes", float64(p.Prefixes)},
		{"prefix-len", float64(p.PrefixTokens)},
		{"sessions", float64(p.Sessions)},
		{"turns", float64(p.Turns)},
		{"limit", float64(p.Limit)},
		{"speed", p.Speed},
	} {
		if !(n.value >= 0 && n.value <= math.MaxFloat64) { // JSON, which the figures are written as, has no infinity
			return p, fmt.Errorf("--%s %g: want 0 or more, and a number", n.flag, n.value)
		}
	}
	switch {
	case p.Trace != "" && (p.Sessions > 0 || p.Rate > 0 || p.PrefixTokens > 0):
		return p, fmt.Errorf("--trace %s: has its own times, prefixes and sessions", p.Trace)
	case (p.PrefixTokens > 0) != (p.Prefixes > 0):
		return p, fmt.Errorf("--prefixes and --prefix-len: want both or neither")
	case p.Turns > 0 && p.Sessions == 0:
		return p, fmt.Errorf("--turns: want --sessions with it")
	}
	if p.Trace == "" {
		p.Input = cmp.Or(p.Input, defaultInput)
		p.Output = cmp.Or(p.Output, defaultOutput)
	}
	if p.PrefixTokens > p.Input {
		return p, fmt.Errorf("--prefix-len %d: more than --input-len %d", p.PrefixTokens, p.Input)
	}
	if p.Rate == 0 && (p.Trace == "" || p.Speed == 0) {
		p.Batch = cmp.Or(p.Batch, 1)
	}
	if p.Sessions > 0 {
		p.Turns = cmp.Or(p.Turns, defaultTurns)
		p.Requests = p.Sessions * p.Turns
	}
	if p.Rate > 0 && p.Requests == 0 {
		return p, fmt.Errorf("--rate %g: want --requests with it", p.Rate)
	}
	p.Requests = cmp.Or(p.Requests, p.Batch)
	return p, nil
}

// requests is how many the phase has, as far as is known without its trace.
func (p *Phase) requests() int { return cmp.Or(p.Requests, p.Batch) }

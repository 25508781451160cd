package lm

import (
	"cmp"
	"slices"
)

// Scratch is working memory for distributions. It belongs to one goroutine.
type Scratch struct {
	slot  []int32 // of each token, its place in the list plus one
	chain []int32
	d     Dist
}

// NewScratch makes working memory for m.
func (m *Model) NewScratch() *Scratch {
	return &Scratch{slot: make([]int32, m.Size())}
}

// Choice is one token with its probability.
type Choice struct {
	Token uint32
	P     float64
}

// Dist is the distribution of the next token at one state: a short list of
// those that some context tells apart, and alpha times the distribution without
// context for all others. It is valid until its Scratch is used again.
type Dist struct {
	m     *Model
	state State
	slot  []int32
	list  []Choice
	alpha float64
}

// Dist computes the distribution after s.
func (x *Scratch) Dist(m *Model, s State) *Dist {
	for _, c := range x.d.list {
		x.slot[c.Token] = 0
	}
	d := &x.d
	*d = Dist{m: m, state: s, slot: x.slot, list: d.list[:0], alpha: 1}
	x.chain = x.chain[:0]
	for n := s.node; n != root; n = m.link[n] {
		x.chain = append(x.chain, n)
	}
	for _, n := range slices.Backward(x.chain) {
		d.scale(m.gamma[n])
		for e := m.first[n]; e < m.first[n+1]; e++ {
			d.add(m.succ[e], m.mass[e])
		}
	}
	if w, ok := m.plan(s); ok {
		d.scale(1 - planMass)
		d.add(w, planMass)
	}
	return d
}

func (d *Dist) scale(by float64) {
	d.alpha *= by
	for i := range d.list {
		d.list[i].P *= by
	}
}

func (d *Dist) add(w uint32, p float64) {
	if d.slot[w] == 0 {
		d.list = append(d.list, Choice{w, d.alpha * d.m.uni[w]})
		d.slot[w] = int32(len(d.list))
	}
	d.list[d.slot[w]-1].P += p
}

// P is a token's probability, to a rounding error; Model.Prob is exact to the bit.
func (d *Dist) P(w uint32) float64 {
	if i := d.slot[w]; i > 0 {
		return d.list[i-1].P
	}
	return d.alpha * d.m.uni[w]
}

// Best is the likeliest token, the smaller id among equals.
func (d *Dist) Best() uint32 {
	best := Choice{P: -1}
	for _, c := range d.list {
		if c.P > best.P || c.P == best.P && c.Token < best.Token {
			best = c
		}
	}
	for _, w := range d.m.byUni {
		if d.slot[w] == 0 {
			if p := d.alpha * d.m.uni[w]; p > best.P || p == best.P && w < best.Token {
				return w
			}
			break
		}
	}
	return best.Token
}

// Top appends the n likeliest tokens to dst, the likeliest first, with the
// probabilities that Model.Prob gives.
func (d *Dist) Top(dst []Choice, n int) []Choice {
	from := len(dst)
	for _, c := range d.list {
		dst = insert(dst, from, n, c)
	}
	for _, w := range d.m.byUni {
		if d.slot[w] != 0 {
			continue
		}
		c := Choice{w, d.alpha * d.m.uni[w]}
		if len(dst)-from == n && (n == 0 || byProbability(c, dst[len(dst)-1]) > 0) {
			break // the tail descends
		}
		dst = insert(dst, from, n, c)
	}
	for i := range dst[from:] {
		dst[from+i].P = d.m.Prob(d.state, dst[from+i].Token)
	}
	return dst
}

// insert keeps the n likeliest in dst[from:], in order.
func insert(dst []Choice, from, n int, c Choice) []Choice {
	if len(dst)-from == n {
		if n == 0 || byProbability(c, dst[len(dst)-1]) > 0 {
			return dst
		}
		dst = dst[:len(dst)-1]
	}
	i, _ := slices.BinarySearchFunc(dst[from:], c, byProbability)
	return slices.Insert(dst, from+i, c)
}

// byProbability orders the likeliest first, the smaller id among equals.
func byProbability(a, b Choice) int {
	switch {
	case a.P > b.P:
		return -1
	case a.P < b.P:
		return 1
	}
	return cmp.Compare(a.Token, b.Token)
}

// Rank is a token's place among all by probability, 1 for the likeliest;
// tokens as likely as w do not come before it.
func (d *Dist) Rank(w uint32) int {
	p := d.P(w)
	rank := 1
	for _, c := range d.list {
		if c.P > p {
			rank++
		}
	}
	// The tail is alpha times uni in the order of byUni.
	n, _ := slices.BinarySearchFunc(d.m.byUni, p, func(v uint32, p float64) int {
		if d.alpha*d.m.uni[v] > p {
			return -1
		}
		return 1
	})
	rank += n
	for _, c := range d.list { // they are not in the tail
		if d.alpha*d.m.uni[c.Token] > p {
			rank--
		}
	}
	return rank
}

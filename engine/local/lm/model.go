package lm

import (
	"math"
	"sync"
)

// Model gives exact probabilities of the next token. After a context it backs
// off to shorter ones by absolute discounting: with c the count of a context
// and its successor, and T that of the context,
//
//	p(w | context) = max(c-D, 0)/T + gamma(context) · p(w | context without its oldest token)
//
// down to a uniform distribution, so every token has a probability and they
// sum to one.
//
// Where a sentence begins, an n-gram alone would always go on in the same way.
// There a hash over all tokens so far picks one of the text's own beginnings,
// and its tokens get planMass of the probability: still a function of the
// tokens before, still exact, and two prompts get two answers. One beginning
// in endEvery is the end of the turn, so that greedy generation ends too.
//
// A Model is immutable and safe for concurrent use.
type Model struct {
	*Tokenizer
	order int

	// The trie of contexts, breadth first; node 0 is the empty context.
	depth []int8
	link  []int32   // the context without its oldest token
	gamma []float64 // what is left for the shorter context
	best  []uint32  // the likeliest token
	first []int32   // the successors of node n are succ[first[n]:first[n+1]]
	succ  []uint32  // sorted
	mass  []float64 // discounted share of the successor
	child []int32   // the context that both make, or -1
	top   []int32   // the root's children by token, or -1

	uni   []float64 // without context
	byUni []uint32  // all tokens, the likeliest first

	ends      []bool // a sentence may end with this token
	header    []uint32
	openings  []start // how documents begin: for a turn's beginning
	followers []start // how later sentences begin

	samplers sync.Pool
	heats    heats
}

// start is how a sentence begins.
type start [startLen]uint32

const (
	root = 0
	// planMass is the probability of the planned token where a sentence begins.
	planMass = 0.6
	// endEvery: one sentence in so many is the last.
	endEvery = 6
	noPlan   = -1
	endPlan  = -2 // end the turn
)

// State is all that the model knows of the tokens so far. It is a value: copy
// it to go on in two ways. Begin makes the first.
type State struct {
	hash  uint64
	node  int32
	plan  int32 // index of the planned start (openings after followers), or noPlan, endPlan
	at    int8  // how much of the plan has come
	inTag int8  // how much of the header of an answer has come
}

// Begin is the state before the first token.
func (m *Model) Begin() State { return State{hash: 0x9E3779B97F4A7C15, plan: noPlan} }

// Advance returns the state after one more token.
func (m *Model) Advance(s State, w uint32) State {
	w = m.known(w)
	s.mix(w)
	s.node = m.next(s.node, w)
	s.at++
	if s.plan < 0 || m.planned(s.plan, s.at-1) != w || s.at == startLen {
		s.plan, s.at = noPlan, 0
	}
	switch w {
	case m.header[s.inTag]:
		s.inTag++
	case m.header[0]:
		s.inTag = 1
	default:
		s.inTag = 0
	}
	if int(s.inTag) == len(m.header) {
		s.inTag = 0
		s.pick(len(m.followers), len(m.openings))
	} else if m.ends[w] {
		s.pick(0, len(m.followers))
		if s.hash>>40%endEvery == 0 {
			s.plan = endPlan
		}
	}
	return s
}

func (s *State) mix(w uint32) {
	s.hash = (s.hash ^ uint64(w) + 1) * 0xD6E8FEB86659FD93
	s.hash ^= s.hash >> 29
}

// known is w, or EndOfText if w is no token.
func (m *Model) known(w uint32) uint32 {
	if int(w) >= m.Size() {
		return EndOfText
	}
	return w
}

// AdvanceAll is Advance over several tokens.
func (m *Model) AdvanceAll(s State, tokens []uint32) State {
	for _, w := range tokens {
		s = m.Advance(s, w)
	}
	return s
}

func (s *State) pick(from, n int) {
	if n > 0 {
		s.plan, s.at = int32(from+int(s.hash>>8%uint64(n))), 0
	}
}

// planned is the plan's token at a place.
func (m *Model) planned(plan int32, at int8) uint32 {
	switch n := int32(len(m.followers)); {
	case plan == endPlan:
		return EndTurn
	case plan < n:
		return m.followers[plan][at]
	default:
		return m.openings[plan-n][at]
	}
}

// plan returns the token that the state plans, if it plans one.
func (m *Model) plan(s State) (w uint32, ok bool) {
	if s.plan == noPlan {
		return 0, false
	}
	return m.planned(s.plan, s.at), true
}

// next is the longest context that ends with w and is in the trie.
func (m *Model) next(node int32, w uint32) int32 {
	for node != root {
		if int(m.depth[node]) < m.order-1 {
			if e := m.edge(node, w); e >= 0 {
				return m.child[e]
			}
		}
		node = m.link[node]
	}
	return max(m.top[w], root)
}

// edge finds w among a context's successors: its index, or -1.
func (m *Model) edge(node int32, w uint32) int32 {
	lo, hi := m.first[node], m.first[node+1]
	for lo < hi {
		mid := (lo + hi) >> 1
		if m.succ[mid] < w {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	if lo < m.first[node+1] && m.succ[lo] == w {
		return lo
	}
	return -1
}

// Prob is the probability of w after s.
func (m *Model) Prob(s State, w uint32) float64 {
	if int(w) >= m.Size() {
		return 0
	}
	p := m.ngram(s.node, w)
	if planned, ok := m.plan(s); ok {
		p *= 1 - planMass
		if planned == w {
			p += planMass
		}
	}
	return p
}

func (m *Model) ngram(node int32, w uint32) float64 {
	if node == root {
		return m.uni[w]
	}
	p := m.gamma[node] * m.ngram(m.link[node], w)
	if e := m.edge(node, w); e >= 0 {
		p += m.mass[e]
	}
	return p
}

// LogProb is the natural logarithm of Prob.
func (m *Model) LogProb(s State, w uint32) float64 { return math.Log(m.Prob(s, w)) }

// Greedy is the likeliest token after s.
func (m *Model) Greedy(s State) uint32 {
	// A planned token has more than planMass, all others less than the rest.
	if w, ok := m.plan(s); ok {
		return w
	}
	return m.best[s.node]
}

// Resume is AdvanceAll from Begin, in a fraction of the time: all but the hash
// is forgotten within window tokens.
func (m *Model) Resume(tokens []uint32) State {
	const window = 16
	s := m.Begin()
	n := max(0, len(tokens)-window)
	for _, w := range tokens[:n] {
		s.mix(m.known(w))
	}
	return m.AdvanceAll(s, tokens[n:])
}

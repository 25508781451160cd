package lm

import (
	"cmp"
	"slices"
)

const (
	// VocabSize bounds the vocabulary of the shared model.
	VocabSize = 2048
	// Order is the length of the longest n-gram counted: a token depends on the
	// Order-1 before it (and, at a sentence's beginning, see Model, on all).
	Order = 5
	// discount is taken from every count and given to the shorter context.
	discount = 0.6
	// startLen is how many tokens of a sentence's beginning are kept as a start.
	startLen = 3
)

// Build learns a tokenizer and a model from documents.
func Build(docs []string, vocab, order int) *Model {
	tok := Train(docs, vocab)
	var stream []uint32
	m := &Model{Tokenizer: tok, order: order}
	m.ends = sentenceEnds(tok)
	m.header = tok.EncodePlain([]uint32{StartTurn}, "assistant\n")
	for _, d := range docs {
		from := len(stream)
		stream = append(tok.EncodePlain(stream, d), EndTurn)
		m.addStarts(stream[from:])
	}
	m.learn(stream)
	return m
}

// sentenceEnds tells of each token whether a sentence may be over after it.
func sentenceEnds(tok *Tokenizer) []bool {
	ends := make([]bool, tok.Size())
	for id := range ends {
		s := tok.Text(uint32(id))
		for len(s) > 1 && (s[len(s)-1] == '"' || s[len(s)-1] == ')') {
			s = s[:len(s)-1]
		}
		ends[id] = s != "" && (s[len(s)-1] == '.' || s[len(s)-1] == '?' || s[len(s)-1] == '!')
	}
	return ends
}

// addStarts collects how a document and each of its paragraphs and sentences
// begin, prose only: those that go on within code make no sense elsewhere.
func (m *Model) addStarts(doc []uint32) {
	for i := 0; i+startLen < len(doc); i++ {
		here := m.Text(doc[i])
		switch {
		case i == 0 || m.Text(doc[i-1]) == "\n\n":
			if 'A' <= here[0] && here[0] <= 'Z' {
				m.openings = append(m.openings, start(doc[i:i+startLen]))
			}
		case m.ends[doc[i-1]] && classes[here[0]] != space:
			// a full stop within a name or a number
		case m.ends[doc[i-1]]:
			m.followers = append(m.followers, start(doc[i:i+startLen]))
		}
	}
}

// edge is one counted n-gram: the token after a context, and the context that
// both make together.
type edge struct {
	token uint32
	node  int32
	count int
}

// learn counts all n-grams of the stream, which is read as a ring so that every
// context has a successor, and turns the counts into the model's tables.
func (m *Model) learn(stream []uint32) {
	g := newGrams()
	at := make([]int32, len(stream)) // the context node of the length grown so far, ending before each position
	for length := range m.order {
		if length > 0 {
			at = g.grow(stream, at, length, m.order)
		}
		g.tally(stream, at)
	}
	m.flatten(g)
	m.linkSuffixes()
	m.unigrams()
	m.greedy()
}

type grams struct {
	depth []int8
	edges []map[uint32]*edge // of each context
}

func newGrams() *grams {
	return &grams{depth: []int8{0}, edges: []map[uint32]*edge{{}}}
}

// tally counts, for each position, the token there after the context before it.
func (g *grams) tally(stream []uint32, at []int32) {
	for i, w := range stream {
		e := g.edges[at[i]][w]
		if e == nil {
			e = &edge{token: w, node: -1}
			g.edges[at[i]][w] = e
		}
		e.count++
	}
}

// grow returns, for each position, the context that is one token longer.
func (g *grams) grow(stream []uint32, at []int32, length, order int) []int32 {
	longer := make([]int32, len(at))
	n := len(stream)
	for i := range stream {
		// The longer context before i ends with stream[i-1], and is the child, by
		// that token, of the shorter context before i-1.
		prev := (i - 1 + n) % n
		e := g.edges[at[prev]][stream[prev]]
		if e.node < 0 {
			e.node = int32(len(g.edges))
			g.edges = append(g.edges, map[uint32]*edge{})
			g.depth = append(g.depth, int8(length))
		}
		longer[i] = e.node
	}
	return longer
}

// flatten lays the successors of all contexts out in arrays, sorted by token.
func (m *Model) flatten(g *grams) {
	m.depth = g.depth
	m.first = make([]int32, len(g.edges)+1)
	m.gamma = make([]float64, len(g.edges))
	for node, set := range g.edges {
		list := make([]*edge, 0, len(set))
		total := 0
		for _, e := range set {
			list = append(list, e)
			total += e.count
		}
		slices.SortFunc(list, func(a, b *edge) int { return cmp.Compare(a.token, b.token) })
		for _, e := range list {
			m.succ = append(m.succ, e.token)
			m.mass = append(m.mass, (float64(e.count)-discount)/float64(total))
			m.child = append(m.child, e.node)
		}
		m.gamma[node] = discount * float64(len(list)) / float64(total)
		m.first[node+1] = int32(len(m.succ))
	}
}

// linkSuffixes finds, for each context, the one that lacks its oldest token.
func (m *Model) linkSuffixes() {
	m.link = make([]int32, len(m.depth))
	for node := range m.depth { // parents come before their children
		for e := m.first[node]; e < m.first[node+1]; e++ {
			c := m.child[e]
			if c < 0 || node == root {
				continue // a child of the root links to the root
			}
			m.link[c] = m.child[m.edge(m.link[node], m.succ[e])]
		}
	}
}

// unigrams makes the dense distribution without context: counts, discounted,
// over a uniform one.
func (m *Model) unigrams() {
	v := m.Size()
	m.uni = make([]float64, v)
	for i := range m.uni {
		m.uni[i] = m.gamma[root] / float64(v)
	}
	for e := m.first[root]; e < m.first[root+1]; e++ {
		m.uni[m.succ[e]] += m.mass[e]
	}
	m.byUni = make([]uint32, v)
	for i := range m.byUni {
		m.byUni[i] = uint32(i)
	}
	slices.SortStableFunc(m.byUni, func(a, b uint32) int { return cmp.Compare(m.uni[b], m.uni[a]) })
	m.top = make([]int32, v)
	for i := range m.top {
		m.top[i] = -1
	}
	for e := m.first[root]; e < m.first[root+1]; e++ {
		m.top[m.succ[e]] = m.child[e]
	}
}

// greedy finds the likeliest token after each context, the smaller id among equals.
func (m *Model) greedy() {
	m.best = make([]uint32, len(m.depth))
	s := m.NewScratch()
	for node := range m.best {
		d := s.Dist(m, State{node: int32(node), plan: noPlan})
		m.best[node] = d.Best()
	}
}

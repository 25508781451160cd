package lm

import (
	"cmp"
	"container/heap"
	"slices"
)

// Train learns a tokenizer of at most size tokens from texts: the most frequent
// pair of neighbouring tokens within words is merged, again and again, until
// the vocabulary is full or no pair occurs twice. The result depends only on
// the texts and the size.
func Train(texts []string, size int) *Tokenizer {
	tr := newTrainer(texts)
	text := make([]string, firstMerge, size)
	copy(text, specialText[:])
	for i := range 256 {
		text[int(firstByte)+i] = string([]byte{byte(i)})
	}
	pairs := make(map[uint64]uint32)
	for len(text) < size {
		p, ok := tr.best()
		if !ok {
			break
		}
		id := uint32(len(text))
		text = append(text, text[p>>32]+text[uint32(p)])
		pairs[p] = id
		tr.merge(p, id)
	}
	return &Tokenizer{text: text, pairs: newPairTable(pairs)}
}

type trainer struct {
	words  [][]uint32
	counts []int                   // of each word
	pairs  map[uint64]int          // how often each pair occurs now
	where  map[uint64]map[int]bool // the words that may hold it
	queue  pairHeap                // with stale entries, checked when taken
}

func newTrainer(texts []string) *trainer {
	seen := make(map[string]int)
	var order []string
	for _, s := range texts {
		for s != "" {
			n := nextWord(s)
			if seen[s[:n]] == 0 {
				order = append(order, s[:n])
			}
			seen[s[:n]]++
			s = s[n:]
		}
	}
	tr := &trainer{pairs: make(map[uint64]int), where: make(map[uint64]map[int]bool)}
	for i, w := range order {
		tokens := make([]uint32, len(w))
		for j := range len(w) {
			tokens[j] = firstByte + uint32(w[j])
		}
		tr.words = append(tr.words, tokens)
		tr.counts = append(tr.counts, seen[w])
		tr.count(i, 1)
	}
	for p, n := range tr.pairs {
		tr.queue = append(tr.queue, pairCount{p, n})
	}
	heap.Init(&tr.queue)
	return tr
}

// count adds the pairs of word i to the counts, sign times.
func (tr *trainer) count(i, sign int) {
	w := tr.words[i]
	for j := range len(w) - 1 {
		p := pairKey(w[j], w[j+1])
		tr.pairs[p] += sign * tr.counts[i]
		if tr.where[p] == nil {
			tr.where[p] = make(map[int]bool)
		}
		tr.where[p][i] = true
	}
}

// best takes the most frequent pair, if one occurs at least twice.
func (tr *trainer) best() (uint64, bool) {
	for len(tr.queue) > 0 {
		top := heap.Pop(&tr.queue).(pairCount)
		if n := tr.pairs[top.pair]; n != top.n {
			if n > 1 {
				heap.Push(&tr.queue, pairCount{top.pair, n})
			}
			continue
		}
		return top.pair, top.n > 1
	}
	return 0, false
}

// merge replaces the pair p by id wherever it stands.
func (tr *trainer) merge(p uint64, id uint32) {
	touched := make(map[uint64]bool)
	for i := range tr.where[p] {
		tr.count(i, -1)
		w := tr.words[i]
		out := w[:0]
		for j := 0; j < len(w); j++ {
			if j+1 < len(w) && pairKey(w[j], w[j+1]) == p {
				out = append(out, id)
				j++
			} else {
				out = append(out, w[j])
			}
		}
		tr.words[i] = out
		tr.count(i, 1)
		for j := range len(out) - 1 {
			if out[j] == id || out[j+1] == id {
				touched[pairKey(out[j], out[j+1])] = true
			}
		}
	}
	delete(tr.pairs, p)
	delete(tr.where, p)
	for q := range touched {
		heap.Push(&tr.queue, pairCount{q, tr.pairs[q]})
	}
}

type pairCount struct {
	pair uint64
	n    int
}

// pairHeap has the most frequent pair on top, the smaller pair first among equals.
type pairHeap []pairCount

func (h pairHeap) Len() int { return len(h) }
func (h pairHeap) Less(i, j int) bool {
	return cmp.Or(cmp.Compare(h[j].n, h[i].n), cmp.Compare(h[i].pair, h[j].pair)) < 0
}
func (h pairHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *pairHeap) Push(x any)   { *h = append(*h, x.(pairCount)) }
func (h *pairHeap) Pop() any {
	last := (*h)[len(*h)-1]
	*h = slices.Delete(*h, len(*h)-1, len(*h))
	return last
}

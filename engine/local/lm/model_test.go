package lm

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// contexts are histories of all sorts: of the text, of chats, of nonsense.
func contexts(m *Model) [][]uint32 {
	rng := rand.New(rand.NewPCG(1, 2))
	text := m.Encode(nil, Text())
	var all [][]uint32
	all = append(all, nil)
	for range 60 {
		at := rng.IntN(len(text) - 40)
		all = append(all, text[at:at+rng.IntN(40)])
	}
	for _, s := range []string{
		"<|im_start|>user\nWhat is a gate?<|im_end|>\n<|im_start|>assistant\n", "It ends here.", "He asked, why?", "\x00\xff",
		"<|im_end|>", "水水水", "the the the the the",
	} {
		all = append(all, m.Encode(nil, s))
	}
	for range 60 {
		noise := make([]uint32, rng.IntN(30))
		for i := range noise {
			noise[i] = uint32(rng.IntN(m.Size()))
		}
		all = append(all, noise)
	}
	return all
}

func TestProbabilitiesSumToOneAtEveryPosition(t *testing.T) {
	m := Shared()
	positions := 0
	for _, c := range contexts(m) {
		s := m.Begin()
		for i := 0; ; i++ {
			sum := 0.0
			for w := range m.Size() {
				p := math.Exp(m.LogProb(s, uint32(w)))
				if !(p > 0) {
					t.Fatalf("p(%d) after %v: got %v, want above 0", w, c[:i], p)
				}
				sum += p
			}
			if math.Abs(sum-1) > 1e-9 {
				t.Fatalf("sum of exp(logprob) after %v: got %v, want 1 within 1e-9", c[:i], sum)
			}
			positions++
			if i == len(c) {
				break
			}
			s = m.Advance(s, c[i])
		}
	}
	t.Logf("%d positions", positions)
}

func TestDistributionAgreesWithSingleProbabilities(t *testing.T) {
	m := Shared()
	x := m.NewScratch()
	for _, c := range contexts(m) {
		s := m.AdvanceAll(m.Begin(), c)
		d := x.Dist(m, s)
		all := make([]Choice, m.Size())
		for w := range all {
			all[w] = Choice{uint32(w), m.Prob(s, uint32(w))}
			if math.Abs(d.P(uint32(w))-all[w].P) > 1e-15 {
				t.Fatalf("p(%d) after %v: got %v from the distribution, %v alone", w, c, d.P(uint32(w)), all[w].P)
			}
		}
		slices.SortFunc(all, byProbability)
		if got := d.Top(nil, 20); !sameChoices(got, all[:20]) {
			t.Fatalf("top 20 after %v: got %v, want %v", c, got, all[:20])
		}
		if got := m.Greedy(s); m.Prob(s, got) < all[0].P-1e-15 {
			t.Fatalf("greedy after %v: got %d with %v, want the likeliest, with %v", c, got, m.Prob(s, got), all[0].P)
		}
		for _, i := range []int{0, 1, 7, 200, len(all) - 1} {
			want := 1 + slices.IndexFunc(all, func(o Choice) bool { return math.Abs(o.P-all[i].P) < 1e-15 })
			if got := d.Rank(all[i].Token); got != want {
				t.Fatalf("rank of %d after %v: got %d, want %d", all[i].Token, c, got, want)
			}
		}
	}
}

// sameChoices compares up to the order of equals.
func sameChoices(a, b []Choice) bool {
	for i := range a {
		if a[i].P != b[i].P && math.Abs(a[i].P-b[i].P) > 1e-15 {
			return false
		}
	}
	return len(a) == len(b)
}

func TestResumeIsAdvanceAll(t *testing.T) {
	m := Shared()
	for _, c := range contexts(m) {
		for range 3 {
			if got, want := m.Resume(c), m.AdvanceAll(m.Begin(), c); got != want {
				t.Fatalf("Resume(%v): got %+v, want %+v", c, got, want)
			}
			c = append(slices.Clone(c), c...)
		}
	}
}

func FuzzResumeIsAdvanceAll(f *testing.F) {
	f.Add("The gate opens. The water falls.<|im_start|>assistant\nIt")
	m := Shared()
	f.Fuzz(func(t *testing.T, s string) {
		c := m.Encode(nil, s)
		if got, want := m.Resume(c), m.AdvanceAll(m.Begin(), c); got != want {
			t.Errorf("Resume of %q: got %+v, want %+v", s, got, want)
		}
	})
}

// answer generates until the end of the turn or limit tokens.
func answer(m *Model, how Sampling, seed uint64, question string, limit int) (tokens []uint32, ended bool) {
	s := m.Resume(m.Encode(nil, "<|im_start|>user\n"+question+"<|im_end|>\n<|im_start|>assistant\n"))
	draw := m.NewSampler(how, seed, 0)
	for range limit {
		w := draw.Next(s)
		if w == EndTurn {
			return tokens, true
		}
		tokens = append(tokens, w)
		s = m.Advance(s, w)
	}
	return tokens, false
}

func TestGreedyAnswersEndAndDependOnTheQuestion(t *testing.T) {
	m := Shared()
	distinct := make(map[string]bool)
	longest, total := 0, 0
	const n = 300
	for i := range n {
		q := "Question number " + string(m.Decode(nil, []uint32{firstMerge + uint32(i)}))
		tokens, ended := answer(m, Sampling{}, 0, q, 5000)
		if !ended {
			t.Errorf("greedy answer to %q: no end within 5000 tokens", q)
		}
		distinct[string(m.Decode(nil, tokens))] = true
		longest, total = max(longest, len(tokens)), total+len(tokens)
	}
	t.Logf("%d questions, %d answers, %d tokens in the mean, %d at most", n, len(distinct), total/n, longest)
	if len(distinct) < n/2 {
		t.Errorf("greedy answers to %d questions: got %d different ones, want at least half", n, len(distinct))
	}
}

// A greedy answer moves through the contexts along one arrow from each until a
// sentence ends. A ring without such an end would be an endless answer.
func TestNoGreedyRingWithoutASentencesEnd(t *testing.T) {
	m := Shared()
	for node := range m.best {
		at := int32(node)
		for steps := 0; ; steps++ {
			w := m.best[at]
			if m.ends[w] || w == EndTurn {
				break
			}
			if at = m.next(at, w); steps > len(m.best) {
				t.Fatalf("greedy from context %d goes round for ever, by way of %q", node, m.Text(w))
			}
		}
	}
}

func TestSameSeedSameAnswer(t *testing.T) {
	m := Shared()
	for _, how := range []Sampling{{}, {Temperature: 0.7, TopP: 0.9}, {Temperature: 1, TopP: 1}, {Temperature: 1.3, TopP: 1, TopK: 40}, {Temperature: 1, TopP: 1, MinP: 0.05}} {
		a, _ := answer(m, how, 42, "Why?", 200)
		b, _ := answer(m, how, 42, "Why?", 200)
		if !slices.Equal(a, b) {
			t.Errorf("%+v with seed 42 twice: got different answers", how)
		}
		c, _ := answer(m, how, 43, "Why?", 200)
		if how.Temperature > 0 && slices.Equal(a, c) {
			t.Errorf("%+v with seeds 42 and 43: got the same answer", how)
		}
	}
}

func TestSamplesFollowTheDistribution(t *testing.T) {
	m := Shared()
	x := m.NewScratch()
	s := m.Resume(m.Encode(nil, "When the water comes down"))
	for _, how := range []Sampling{
		{Temperature: 1, TopP: 1},
		{Temperature: 0.6, TopP: 1},
		{Temperature: 1.7, TopP: 1},
		{Temperature: 1, TopP: 0.8},
		{Temperature: 0.8, TopP: 1, TopK: 5},
		{Temperature: 1, TopP: 1, MinP: 0.1},
	} {
		want := expected(x.Dist(m, s), how)
		draw := m.NewSampler(how, 7, 0)
		const n = 40000
		counts := make(map[uint32]float64)
		for range n {
			counts[draw.Next(s)]++
		}
		off := 0.0 // half the sum of differences: the total variation
		for w := range m.Size() {
			got := counts[uint32(w)] / n
			if got > 0 && want[w] == 0 {
				t.Fatalf("%+v drew token %d, which it excludes", how, w)
			}
			off += math.Abs(got-want[w]) / 2
		}
		support := 0.0
		for _, p := range want {
			support += math.Sqrt(p)
		}
		// A sample of n differs by about this much from what it is drawn from.
		if most := 1.3 * support / math.Sqrt(2*math.Pi*n); off > most {
			t.Errorf("%+v: the drawn frequencies differ from the distribution by %.3f, want at most %.3f", how, off, most)
		}
	}
}

// expected is the definition of sampling, computed the long way.
func expected(d *Dist, how Sampling) []float64 {
	all := make([]Choice, len(d.m.uni))
	total := 0.0
	for w := range all {
		all[w] = Choice{uint32(w), math.Pow(d.P(uint32(w)), 1/how.Temperature)}
		total += all[w].P
	}
	slices.SortFunc(all, byProbability)
	out := make([]float64, len(all))
	sum := 0.0
	var kept []Choice
	for i, c := range all {
		if i > 0 && (how.TopK > 0 && i >= how.TopK || sum >= how.TopP*total || c.P < how.MinP*all[0].P) {
			break
		}
		kept = append(kept, c)
		sum += c.P
	}
	for _, c := range kept {
		out[c.Token] = c.P / sum
	}
	return out
}

func BenchmarkNext(b *testing.B) {
	m := Shared()
	for _, bc := range []struct {
		name string
		how  Sampling
	}{
		{"greedy", Sampling{}},
		{"temperature", Sampling{Temperature: 1, TopP: 1}},
		{"warm", Sampling{Temperature: 0.7, TopP: 1}},
		{"top_p", Sampling{Temperature: 0.7, TopP: 0.9}},
		{"top_k", Sampling{Temperature: 1, TopP: 1, TopK: 40}},
	} {
		b.Run(bc.name, func(b *testing.B) {
			draw := m.NewSampler(bc.how, 1, 0)
			s := m.Begin()
			b.ReportAllocs()
			for b.Loop() {
				s = m.Advance(s, draw.Next(s))
			}
		})
	}
}

func BenchmarkResume(b *testing.B) {
	m := Shared()
	c := m.Encode(nil, Text())
	b.ReportAllocs()
	for b.Loop() {
		m.Resume(c)
	}
	b.ReportMetric(float64(len(c)), "tokens/op")
}

func BenchmarkScore(b *testing.B) {
	m := Shared()
	c := m.Encode(nil, Text())[:2048]
	b.ReportAllocs()
	for b.Loop() {
		s := m.Begin()
		for _, w := range c {
			m.LogProb(s, w)
			s = m.Advance(s, w)
		}
	}
}

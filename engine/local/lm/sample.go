package lm

import (
	"math"
	"math/rand/v2"
	"slices"
	"sync"
)

// Sampling is how a token is drawn from a distribution.
type Sampling struct {
	Temperature float64 // 0: always the likeliest
	TopP        float64 // the likeliest tokens that together have this probability; 1: all
	TopK        int     // so many likeliest tokens; 0 or less: all
	MinP        float64 // tokens at least this part of the likeliest one's probability; 0: all
}

// Sampler draws tokens, the same ones from the same seed. It belongs to one goroutine.
type Sampler struct {
	m      *Model
	how    Sampling
	greedy bool
	rng    rand.PCG
	x      *Scratch
	hot    *heated
	sorted []Choice // the listed tokens in order
	kept   []Choice
}

// heated is the contextless distribution at one temperature.
type heated struct {
	power []float64 // to the power 1/temperature, relative to the largest
	sums  []float64 // running sums in the order of byUni
}

// NewSampler makes a sampler; which tells apart several choices of one seed.
func (m *Model) NewSampler(how Sampling, seed, which uint64) *Sampler {
	s, _ := m.samplers.Get().(*Sampler)
	if s == nil {
		s = &Sampler{m: m, x: m.NewScratch()}
	}
	s.how, s.greedy = how, how.Temperature <= 0 || how.TopK == 1
	if !s.greedy {
		s.rng.Seed(seed, which)
		s.hot = m.heat(how.Temperature)
	}
	return s
}

// Release gives the sampler's memory to the next one; it must not be used again.
func (s *Sampler) Release() { s.m.samplers.Put(s) }

// heats are the temperatures in use lately.
type heats struct {
	mu sync.Mutex
	by map[float64]*heated
}

// maxHeats bounds the temperatures remembered; clients use a handful.
const maxHeats = 64

func (m *Model) heat(t float64) *heated {
	m.heats.mu.Lock()
	defer m.heats.mu.Unlock()
	if h := m.heats.by[t]; h != nil {
		return h
	}
	if m.heats.by == nil || len(m.heats.by) == maxHeats {
		m.heats.by = make(map[float64]*heated)
	}
	h := &heated{power: m.uni, sums: make([]float64, len(m.uni))}
	if t != 1 {
		h.power = make([]float64, len(m.uni))
		for w, p := range m.uni {
			h.power[w] = math.Exp(math.Log(p/m.uni[m.byUni[0]]) / t)
		}
	}
	sum := 0.0
	for i, w := range m.byUni {
		sum += h.power[w]
		h.sums[i] = sum
	}
	m.heats.by[t] = h
	return h
}

// Next draws the token after st.
func (s *Sampler) Next(st State) uint32 {
	if s.greedy {
		return s.m.Greedy(st)
	}
	d := s.x.Dist(s.m, st)
	tail := s.warm(d)
	if s.how.TopP >= 1 && s.how.TopK <= 0 && s.how.MinP <= 0 {
		return s.drawAll(d, tail)
	}
	return s.drawTop(d, tail)
}

// warm raises the listed probabilities to the power 1/temperature, relative to
// the largest of all so that nothing underflows, and returns by what power[w]
// must be multiplied for the tokens that are not listed.
func (s *Sampler) warm(d *Dist) float64 {
	t := s.how.Temperature
	if t == 1 {
		return d.alpha
	}
	most := s.m.uni[s.m.byUni[0]]
	largest := d.P(d.Best())
	for i := range d.list {
		d.list[i].P = math.Exp(math.Log(d.list[i].P/largest) / t)
	}
	return math.Exp(math.Log(d.alpha*most/largest) / t)
}

func (s *Sampler) float() float64 { return float64(s.rng.Uint64()>>11) / (1 << 53) }

// drawAll draws from the whole vocabulary.
func (s *Sampler) drawAll(d *Dist, tail float64) uint32 {
	listed, shadow := 0.0, 0.0 // shadow: what the listed tokens would weigh in the tail
	for _, c := range d.list {
		listed += c.P
		shadow += s.hot.power[c.Token]
	}
	all := s.hot.sums[len(s.hot.sums)-1]
	rest := max(0, tail*(all-shadow))
	r := s.float() * (listed + rest)
	for _, c := range d.list {
		if r -= c.P; r < 0 {
			return c.Token
		}
	}
	for range 64 { // the listed tokens are drawn again
		i, _ := slices.BinarySearch(s.hot.sums, s.float()*all)
		if w := s.m.byUni[min(i, len(s.hot.sums)-1)]; d.slot[w] == 0 {
			return w
		}
	}
	return d.Best()
}

// drawTop draws from the likeliest tokens that the limits leave.
func (s *Sampler) drawTop(d *Dist, tail float64) uint32 {
	total := 0.0
	shadow := 0.0
	for _, c := range d.list {
		total += c.P
		shadow += s.hot.power[c.Token]
	}
	total += max(0, tail*(s.hot.sums[len(s.hot.sums)-1]-shadow))
	kept, sum := s.keep(d, tail, total)
	r := s.float() * sum
	for _, c := range kept {
		if r -= c.P; r < 0 {
			return c.Token
		}
	}
	return kept[len(kept)-1].Token
}

// keep lists the likeliest tokens in descending order as far as the limits go.
func (s *Sampler) keep(d *Dist, tail, total float64) (kept []Choice, sum float64) {
	list := append(s.sorted[:0], d.list...)
	slices.SortFunc(list, byProbability)
	s.sorted = list
	kept = s.kept[:0]
	defer func() { s.kept = kept }()
	next, limit := 0, s.how.TopK
	if limit <= 0 {
		limit = len(s.hot.power)
	}
	for len(kept) < limit {
		for next < len(s.m.byUni) && d.slot[s.m.byUni[next]] != 0 {
			next++
		}
		var c Choice
		fromTail := next < len(s.m.byUni) && (len(list) == 0 || tail*s.hot.power[s.m.byUni[next]] > list[0].P)
		switch {
		case fromTail:
			w := s.m.byUni[next]
			c = Choice{w, tail * s.hot.power[w]}
			next++
		case len(list) > 0:
			c, list = list[0], list[1:]
		default:
			return kept, sum
		}
		if len(kept) > 0 && (sum >= s.how.TopP*total || c.P < s.how.MinP*kept[0].P) {
			break
		}
		kept = append(kept, c)
		sum += c.P
	}
	return kept, sum
}

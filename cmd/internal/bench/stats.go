package bench

import (
	"math"
	"slices"
	"time"
)

// spread is a set of values in order.
type spread []float64

func spreadOf(values []float64) spread {
	s := spread(slices.DeleteFunc(values, math.IsNaN))
	slices.Sort(s)
	return s
}

// seconds collects a duration of each sample where it has one.
func seconds(samples []*sample, of func(*sample) []time.Duration) spread {
	var v []float64
	for _, s := range samples {
		for _, d := range of(s) {
			v = append(v, d.Seconds())
		}
	}
	return spreadOf(v)
}

// at is the quantile q, between neighbours in proportion; 0 of nothing.
func (s spread) at(q float64) float64 {
	if len(s) == 0 {
		return 0
	}
	x := q * float64(len(s)-1)
	i := int(x)
	if i+1 >= len(s) {
		return s[len(s)-1]
	}
	return s[i] + (x-float64(i))*(s[i+1]-s[i])
}

func (s spread) median() float64 { return s.at(0.5) }

func (s spread) mean() float64 {
	if len(s) == 0 {
		return 0
	}
	sum := 0.0
	for _, v := range s {
		sum += v
	}
	return sum / float64(len(s))
}

func (s spread) deviation() float64 {
	if len(s) == 0 {
		return 0
	}
	mean, sum := s.mean(), 0.0
	for _, v := range s {
		sum += (v - mean) * (v - mean)
	}
	return math.Sqrt(sum / float64(len(s)))
}

func ttft(s *sample) []time.Duration    { return positive(s.ttft) }
func latency(s *sample) []time.Duration { return positive(s.latency) }
func gaps(s *sample) []time.Duration    { return s.gaps }

// tpot is the time of each token after the first.
func tpot(s *sample) []time.Duration {
	if s.ttft == 0 || s.out < 2 {
		return nil
	}
	return positive((s.latency - s.ttft) / time.Duration(s.out-1))
}

func positive(d time.Duration) []time.Duration {
	if d <= 0 {
		return nil
	}
	return []time.Duration{d}
}

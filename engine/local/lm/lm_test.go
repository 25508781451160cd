package lm

import (
	"math"
	"testing"
	"time"
)

func TestQuick(t *testing.T) {
	t0 := time.Now()
	m := Shared()
	t.Log(time.Since(t0), m.Size(), len(m.depth), len(m.succ), len(m.followers), len(m.openings))
	p := m.Encode(nil, "<|im_start|>user\nWhat is a gate?<|im_end|>\n<|im_start|>assistant\n")
	for _, temp := range []float64{0, 0.7, 1} {
		s := m.AdvanceAll(m.Begin(), p)
		sm := m.NewSampler(Sampling{Temperature: temp, TopP: 0.9}, 1, 0)
		var out []uint32
		for range 300 {
			w := sm.Next(s)
			if w == EndTurn {
				break
			}
			out = append(out, w)
			s = m.Advance(s, w)
		}
		t.Log(temp, len(out), string(m.Decode(nil, out)))
	}
	x := m.NewScratch()
	s := m.Begin()
	for _, w := range p {
		s = m.Advance(s, w)
		if sum := x.Dist(m, s).Sum(); math.Abs(sum-1) > 1e-9 {
			t.Fatal(sum)
		}
	}
}

package sched

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// sink is a sequence that notes when its tokens came in simulated time.
type sink struct {
	now         *time.Time
	left        int
	cached      int
	first, last time.Time
}

func (s *sink) Prefilled(cached int) { s.cached = cached }
func (s *sink) Signal()              {}
func (s *sink) Next() (uint32, bool) {
	if s.first.IsZero() {
		s.first = *s.now
	}
	s.last = *s.now
	s.left--
	return uint32(s.left), s.left == 0
}

// simulation runs cores in simulated time, each in its own.
type simulation struct {
	cores []*Core
	start time.Time
	now   time.Time
	next  uint32
}

func simulate(p Profile, ranks int) *simulation {
	s := &simulation{start: time.Unix(1e9, 0)}
	for range ranks {
		s.cores = append(s.cores, NewCore(Config{Profile: p}))
	}
	return s
}

// fresh makes a prompt that shares no prefix with any other.
func (s *simulation) fresh(n int) []uint32 {
	p := make([]uint32, n)
	for i := range p {
		s.next++
		p[i] = s.next
	}
	return p
}

type row struct {
	ttft, tpot   float64 // medians, s
	meanTTFT     float64
	meanTPOT     float64
	wall, output float64 // s, tokens/s
}

// burst sends n requests at once, round robin, and runs them to their end.
func (s *simulation) burst(t *testing.T, n, in, out int) row {
	t.Helper()
	var all []*sink
	for i := range n {
		q := &sink{now: &s.now, left: out}
		all = append(all, q)
		if err := s.cores[i%len(s.cores)].Add(&Task{Prompt: s.fresh(in), Max: out, Seq: q}, s.start); err != nil {
			t.Fatalf("Add: %v", err)
		}
	}
	end := s.start
	for _, c := range s.cores {
		s.now = s.start
		for {
			e, ok := c.Start(s.now)
			if !ok {
				if e = c.Next(); e.IsZero() {
					break
				}
				s.now = e
				continue
			}
			s.now = e
			c.Finish(s.now)
		}
		if s.now.After(end) {
			end = s.now
		}
	}
	var ttft, tpot []float64
	for _, q := range all {
		if q.left != 0 {
			t.Fatalf("a request of %d tokens has %d left at the end", out, q.left)
		}
		ttft = append(ttft, q.first.Sub(s.start).Seconds())
		tpot = append(tpot, q.last.Sub(q.first).Seconds()/float64(out-1))
	}
	slices.Sort(ttft)
	slices.Sort(tpot)
	wall := end.Sub(s.start).Seconds()
	s.start = end
	return row{
		ttft: (ttft[(n-1)/2] + ttft[n/2]) / 2, tpot: (tpot[(n-1)/2] + tpot[n/2]) / 2, meanTTFT: mean(ttft), meanTPOT: mean(tpot),
		wall: wall, output: float64(n*out) / wall,
	}
}

func mean(v []float64) float64 {
	sum := 0.0
	for _, x := range v {
		sum += x
	}
	return sum / float64(len(v))
}

// shared finds the recordings of real deployments, or skips the test.
func shared(t *testing.T, name string, into any) {
	t.Helper()
	dir := os.Getenv("PENSTOCK_SHARED")
	if dir == "" {
		wd, err := os.Getwd()
		if err != nil {
			t.Fatal(err)
		}
		dir = filepath.Join(wd, "..", "..", "..", "..", "shared")
	}
	b, err := os.ReadFile(filepath.Join(dir, "seeds", name))
	if err != nil {
		t.Skipf("the measured rows are not here: %v", err)
	}
	if err := json.Unmarshal(b, into); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
}

func within(t *testing.T, what string, got, want float64) {
	t.Helper()
	off := got/want - 1
	t.Logf("%-32s measured %10.4f  simulated %10.4f  %+.1f %%", what, want, got, 100*off)
	if math.Abs(off) > 0.15 {
		t.Errorf("%s: got %v, want %v within 15 %%, is off by %.1f %%", what, got, want, 100*off)
	}
}

func TestProfilesReproduceTheMeasuredRows(t *testing.T) {
	t.Run(GLM52, func(t *testing.T) {
		var file struct {
			Rows []struct {
				Phase     string
				BatchSize int     `json:"batch_size"`
				Input     int     `json:"input_len"`
				Output    int     `json:"output_len"`
				TTFT      float64 `json:"ttft_med"`
				TPOT      float64 `json:"tpot_med"`
				OutTput   float64 `json:"out_tput"`
			} `json:"sglang_dp4_glm52"`
		}
		shared(t, "bench_endpoints_rows.json", &file)
		p, err := ProfileNamed(GLM52)
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range file.Rows {
			got := simulate(p, 4).burst(t, want.BatchSize, want.Input, want.Output)
			within(t, want.Phase+" output tokens/s", got.output, want.OutTput)
			within(t, want.Phase+" total s", got.wall, float64(want.BatchSize*want.Output)/want.OutTput)
			if want.TTFT > 0 {
				within(t, want.Phase+" median TTFT s", got.ttft, want.TTFT)
			}
			if want.TPOT > 0 {
				within(t, want.Phase+" median TPOT s", got.tpot, want.TPOT)
			}
		}
	})
	t.Run(Qwen3, func(t *testing.T) {
		var rows []struct {
			Duration float64 `json:"duration"`
			Output   float64 `json:"output_throughput"`
			TTFT     float64 `json:"mean_ttft_ms"`
			TPOT     float64 `json:"mean_tpot_ms"`
		}
		shared(t, "bench_serving_qwen3_30b_dp1.json", &rows)
		p, err := ProfileNamed(Qwen3)
		if err != nil {
			t.Fatal(err)
		}
		s := simulate(p, 1)
		wall := 0.0
		var got row
		for range 8 { // eight at a time: all end together, and the next eight begin
			got = s.burst(t, 8, 512, 128)
			wall += got.wall
		}
		for _, want := range rows {
			within(t, "duration s", wall, want.Duration)
			within(t, "output tokens/s", got.output, want.Output)
			within(t, "mean TTFT s", got.meanTTFT, want.TTFT/1000)
			within(t, "mean TPOT s", got.meanTPOT, want.TPOT/1000)
		}
	})
}

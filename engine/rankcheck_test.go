package engine

import (
	"maps"
	"math/rand/v2"
	"testing"
	"time"
)

// dealer says on which rank an engine really runs a request.
type dealer func(sent, nth int) int

// drive sends requests through a rank check as windows of n, to random ranks
// of four, and returns how many it took to find the ranks ignored; 0: never.
func drive(t *testing.T, n, requests int, deal dealer, foreign float64) int {
	t.Helper()
	const ranks = 4
	rng := rand.New(rand.NewPCG(1, 2))
	counters := make(map[int]float64)
	for r := range ranks {
		counters[r] = 7
	}
	now := time.Unix(0, 0)
	var c rankCheck
	reading := func() int {
		if !c.close(now) {
			return 0
		}
		copied := make(map[int]float64)
		maps.Copy(copied, counters)
		missed, _ := c.read(copied, now)
		return missed
	}
	reading()
	for i := range requests {
		rank := rng.IntN(ranks)
		w := c.begin()
		counters[deal(rank, i)]++
		if rng.Float64() < foreign {
			counters[rng.IntN(ranks)]++
		}
		c.end(w, rank, now)
		if (i+1)%n == 0 {
			now = now.Add(time.Second)
			if reading() > 0 {
				return i + 1
			}
		}
	}
	return 0
}

func honest(sent, _ int) int   { return sent }
func inTurn(_, nth int) int    { return nth % 4 }
func toFirst(_, _ int) int     { return 0 }
func byChance(_, nth int) int  { return int(uint32(nth*2654435761)>>16) % 4 }
func nextDoor(sent, _ int) int { return (sent + 1) % 4 }

func TestIgnoredRanksAreFoundOut(t *testing.T) {
	for name, deal := range map[string]dealer{"dealt in turn": inTurn, "all to the first": toFirst, "by chance": byChance, "off by one": nextDoor} {
		for _, perWindow := range []int{4, 20, 50} {
			for _, foreign := range []float64{0, 0.2} {
				if foreign > 0 && perWindow > 20 {
					continue // others' requests fill the small gaps that long windows leave
				}
				got := drive(t, perWindow, 2000, deal, foreign)
				if got == 0 || got > 400 {
					t.Errorf("engine that deals %s, %d requests per poll, %v of others': found after %d requests, want within 400",
						name, perWindow, foreign, got)
				}
			}
		}
	}
}

func TestHonestRanksAreNotAccused(t *testing.T) {
	for _, perWindow := range []int{1, 4, 50} {
		for _, foreign := range []float64{0, 0.5, 1} {
			if got := drive(t, perWindow, 20000, honest, foreign); got != 0 {
				t.Errorf("honest engine, %d requests per poll, %v of others': accused after %d requests", perWindow, foreign, got)
			}
		}
	}
}

func TestRestartedCountersAccuseNobody(t *testing.T) {
	var c rankCheck
	now := time.Unix(0, 0)
	c.close(now)
	c.read(map[int]float64{0: 500, 1: 500}, now)
	for range 100 {
		c.end(c.begin(), 0, now)
	}
	now = now.Add(time.Second)
	c.close(now)
	if missed, total := c.read(map[int]float64{0: 0, 1: 3}, now); missed != 0 || total != 0 {
		t.Errorf("counters that fell: got %d of %d missed, want 0 of 0", missed, total)
	}
}

func TestRequestsThatSpanAReadingAreNotCounted(t *testing.T) {
	var c rankCheck
	now := time.Unix(0, 0)
	if w := c.begin(); w != 0 {
		t.Errorf("before the first reading: got window %d, want none", w)
	}
	c.close(now)
	c.read(map[int]float64{0: 0, 1: 0}, now)
	long := c.begin()
	for range 60 {
		c.end(c.begin(), 1, now)
	}
	now = now.Add(time.Second)
	c.close(now)
	between := c.begin()
	c.read(map[int]float64{0: 0, 1: 60}, now)
	c.end(long, 0, now)
	c.end(between, 0, now)
	c.opened = now.Add(-time.Hour)
	if c.close(now) {
		t.Error("a window without a request of its own is worth a reading")
	}
}

// attempt sends one ranked request to a replica of a fake that counts it as deal says.
func attempt(e *fake, r *Replica, rank int) {
	a := r.Begin(true)
	e.set(func(e *fake) { e.requests[rank]++ })
	a.End(true)
}

func TestURLThatIgnoresRanksBecomesOneReplica(t *testing.T) {
	for _, kind := range []Kind{KindSGLang, KindVLLM} {
		t.Run(string(kind), func(t *testing.T) {
			e := newFake(t, kind, 4)
			eng := at(e)
			eng.ID = "e"
			f, rec := startFleet(t, quick(served("m", eng)))
			n := 0
			eventually(t, "one replica instead of four", func() bool {
				all := f.Replicas()
				if len(all) == 1 {
					return true
				}
				attempt(e, all[n%4], 0)
				n++
				return false
			})
			r := f.Replicas()[0]
			want := Capacity{KVTokens: 4000, MaxRunning: 256, PageSize: 16, RunningBy: "engine"}
			if kind == KindVLLM {
				want = Capacity{KVTokens: 3968, MaxRunning: 1024, PageSize: 16, RunningBy: "learned"}
			}
			if r.ID() != "e" || r.Rank() != -1 || !r.RanksIgnored() || !r.Usable() || r.Capacity() != want {
				t.Errorf("the one replica: got id %s, rank %d, ignored %v, usable %v, %+v; want e, -1, true, true, %+v",
					r.ID(), r.Rank(), r.RanksIgnored(), r.Usable(), r.Capacity(), want)
			}
			if a := r.Address("/v1/completions"); a != (Addressing{Ok: true}) {
				t.Errorf("address of the one replica: got %+v, want no rank", a)
			}
			if rec.count(RanksIgnored) != 1 || rec.count(Removed) != 4 || rec.count(Added) != 5 {
				t.Errorf("events: got %d ranks_ignored, %d removed, %d added; want 1, 4, 5",
					rec.count(RanksIgnored), rec.count(Removed), rec.count(Added))
			}
		})
	}
}

func TestRanksOffIsOneReplica(t *testing.T) {
	e := newFake(t, KindSGLang, 4)
	f, _ := startFleet(t, quick(served("m", at(e))))
	if n := len(f.Replicas()); n != 4 {
		t.Fatalf("replicas with dp_ranks left out: got %d, want 4", n)
	}
	eng := at(e)
	eng.DPRanks = "off"
	apply(t, f, quick(served("m", eng)))
	eventually(t, "one replica with dp_ranks: off", func() bool { return len(f.Replicas()) == 1 })
	if c := f.Replicas()[0].Capacity(); c.KVTokens != 4000 || c.MaxRunning != 256 {
		t.Errorf("capacity of all ranks as one: got %+v, want 4000 tokens and 256 running", c)
	}
}

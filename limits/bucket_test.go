package limits

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// ledger is the plain truth about a bucket: every charge that was made, as it
// turned out, played from the beginning.
type ledger struct {
	events []ledgerEvent
}

type ledgerEvent struct {
	at, seq, units int64
}

func (l *ledger) add(at, seq, units int64) {
	l.events = append(l.events, ledgerEvent{at, seq, units})
}

// less reduces the charge seq as if it had been smaller from the start.
func (l *ledger) less(seq, units int64) {
	i := slices.IndexFunc(l.events, func(e ledgerEvent) bool { return e.seq == seq })
	l.events[i].units -= units
}

// used plays all charges.
func (l *ledger) used(now, limit int64) int64 {
	var used, at int64
	for _, e := range l.events {
		used = max(0, used-(e.at-at)*limit) + e.units
		at = e.at
	}
	return max(0, used-(now-at)*limit)
}

// TestRefundIsAsIfNeverCharged compares a bucket with the ledger after every
// step of random histories in which charges settle in any order.
func TestRefundIsAsIfNeverCharged(t *testing.T) {
	for seed := range fewer(2000) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		r := rate{limit: 1 + rnd.Int64N(5000), burst: 1 + rnd.Int64N(20000)}
		r.whole = r.burst
		var b bucket
		var truth ledger
		type open struct{ seq, cost int64 }
		var live []open
		now, seq := int64(1000), int64(0)
		b.set(now, r)
		for step := range 120 {
			if rnd.IntN(3) > 0 {
				now += rnd.Int64N(20000)
			}
			b.set(now, r)
			if cost := rnd.Int64N(r.burst/4 + 2); rnd.IntN(2) == 0 && b.wait(cost, 0, r) == 0 {
				seq++
				newest := int64(0)
				if len(live) > 0 {
					newest = live[len(live)-1].seq
				}
				b.charge(seq, cost, newest)
				truth.add(now, seq, cost*unit)
				live = append(live, open{seq, cost})
			} else if len(live) > 0 {
				i := rnd.IntN(len(live))
				o := live[i]
				live = slices.Delete(live, i, i+1)
				var next, newest int64
				if i < len(live) {
					next = live[i].seq
				}
				if len(live) > 0 {
					newest = live[len(live)-1].seq
				}
				delta := rnd.Int64N(o.cost+1) - o.cost
				if rnd.IntN(4) == 0 {
					delta = rnd.Int64N(r.burst)
				}
				seq++
				before := truth.used(now, r.limit)
				b.settle(now, o.seq, next, newest, seq, delta)
				if delta < 0 {
					truth.less(o.seq, -delta*unit)
				} else {
					truth.add(now, seq, max(0, min(delta*unit, 2*r.burst*unit-before)))
				}
			}
			if want := truth.used(now, r.limit); b.used != want {
				t.Fatalf("seed %d step %d: used %d units, want %d", seed, step, b.used, want)
			}
			checkLayers(t, &b, len(live))
		}
	}
}

func checkLayers(t *testing.T, b *bucket, live int) {
	t.Helper()
	var sum int64
	for i, l := range b.layers {
		sum += l.amount
		if l.amount <= 0 || i > 0 && l.seq <= b.layers[i-1].seq {
			t.Fatalf("layers %v: want ascending numbers and something in each", b.layers)
		}
	}
	if sum != b.used || len(b.layers) > live+1 {
		t.Fatalf("%d layers with %d units for %d under way, want at most one more, and %d", len(b.layers), sum, live, b.used)
	}
}

// TestDebtIsBoundedByOneBurst settles far above the reservation.
func TestDebtIsBoundedByOneBurst(t *testing.T) {
	r := rate{limit: 60, burst: 100, whole: 100}
	var b bucket
	b.set(1000, r)
	b.charge(1, 100, 0)
	b.settle(1000, 1, 0, 0, 2, 5000)
	if got := (r.burst*unit - b.used) / unit; got != -100 {
		t.Fatalf("level %d, want -100", got)
	}
	// 60 per minute: a debt of 100 and one more takes 101 s.
	if got := b.wait(1, 0, r); got != 101_000 {
		t.Errorf("wait %d ms, want 101000", got)
	}
}

func TestChangedLimitKeepsWhatWasUsed(t *testing.T) {
	var b bucket
	old, fresh := rate{limit: 600, burst: 600, whole: 600}, rate{limit: 60, burst: 300, whole: 300}
	b.set(0, old)
	b.charge(1, 600, 0)
	b.set(10_000, fresh) // ten seconds at the old rate gave 100 back
	if got := b.used / unit; got != 500 {
		t.Fatalf("used %d, want 500", got)
	}
	if got := b.wait(1, 0, fresh); got != 201_000 {
		t.Errorf("wait %d ms, want 201000 at the new rate", got)
	}
}

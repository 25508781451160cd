package limits

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	"penstock/configs"
)

// TestRedisAndMemoryDecideTheSame plays the same random histories on both and
// compares every answer: admitted or not, refusals to the last field, and the
// state for the headers.
func TestRedisAndMemoryDecideTheSame(t *testing.T) {
	t.Parallel()
	srv := startRedis(t)
	refused, admitted := 0, 0
	for seed := range uint64(60) {
		rnd := rand.New(rand.NewPCG(seed, 11))
		mem := memoryLimiter(t)
		red := playedLimiter(t, srv.addr(), fmt.Sprint("same", seed))
		lim := [3]*configs.Limits{randomLimits(rnd), randomLimits(rnd), randomLimits(rnd)}
		now := epochTime()
		var open [][2]*Reservation
		for step := range 80 {
			now = now.Add(time.Duration(rnd.Int64N(2_000_000)) * time.Microsecond / time.Duration(1+rnd.IntN(20)))
			if rnd.IntN(40) == 0 {
				lim[rnd.IntN(3)] = randomLimits(rnd) // a reload
			}
			q := randomRequest(rnd, 2, lim)
			if rnd.IntN(8) == 0 {
				q.ahead = Cost{Requests: 1, Input: rnd.Int64N(1000)}
			}
			a, errA := mem.Reserve(t.Context(), now, q)
			b, errB := red.Reserve(t.Context(), now, q)
			where := fmt.Sprintf("seed %d step %d: %+v", seed, step, q.Cost)
			if (errA == nil) != (errB == nil) {
				t.Fatalf("%s: memory says %v, Redis %v", where, errA, errB)
			}
			if errA != nil {
				fa, _ := errors.AsType[*Refusal](errA)
				fb, _ := errors.AsType[*Refusal](errB)
				fa.Mode, fb.Mode = 0, 0
				if !reflect.DeepEqual(fa, fb) {
					t.Fatalf("%s: memory refuses with\n%+v, Redis with\n%+v", where, fa, fb)
				}
				refused++
			} else {
				if a.State() != b.State() {
					t.Fatalf("%s: memory's state is\n%+v, Redis'\n%+v", where, a.State(), b.State())
				}
				open = append(open, [2]*Reservation{a, b})
				admitted++
			}
			for len(open) > 0 && rnd.IntN(2) == 0 {
				i := rnd.IntN(len(open))
				act := randomActual(rnd)
				now = now.Add(time.Duration(rnd.Int64N(50)) * time.Millisecond)
				open[i][0].Settle(now, act)
				open[i][1].Settle(now, act)
				red.redis.at.Store(now.UnixMicro())
				if !red.redis.flush() {
					t.Fatal("Redis did not settle")
				}
				open = append(open[:i], open[i+1:]...)
			}
		}
		sameStates(t, mem, red, now)
	}
	if refused < 500 || admitted < 500 {
		t.Errorf("%d refused and %d admitted, want hundreds of both", refused, admitted)
	}
}

// sameStates compares the buckets to the last layer.
func sameStates(t *testing.T, mem, red *Limiter, now time.Time) {
	t.Helper()
	mem.memory.each(func(e *entry) {
		v, err := red.redis.client.HMGet(t.Context(), red.redis.prefix+"b:"+e.subject.name(), "v", "1", "2", "3", "4").Result()
		if err != nil {
			t.Fatal(err)
		}
		for k := range e.buckets {
			packed, _ := v[k+1].(string)
			if len(packed) != 16*len(e.buckets[k].layers) {
				t.Errorf("%v bucket %d: %d layers in memory, %d in Redis", e.subject, k, len(e.buckets[k].layers), len(packed)/16)
			}
		}
		if live, _ := v[0].(string); len(live) != 8*len(e.live) {
			t.Errorf("%v: %d under way in memory, %d in Redis", e.subject, len(e.live), len(live)/8)
		}
	})
}

// TestNothingLeaksInRedis ends requests of two gateways in every way, and wants
// no record, no slot and no reservation left.
func TestNothingLeaksInRedis(t *testing.T) {
	t.Parallel()
	srv := startRedis(t)
	rnd := rand.New(rand.NewPCG(12, 12))
	gateways := []*Limiter{playedLimiter(t, srv.addr(), "leak"), playedLimiter(t, srv.addr(), "leak")}
	gateways[1].redis.gateway = "other"
	lim := &configs.Limits{RequestsPerMinute: 60_000, TokensPerMinute: 50e6, Concurrency: 30}
	now := epochTime()
	var open []*Reservation
	for range 2000 {
		now = now.Add(time.Duration(rnd.IntN(20)) * time.Millisecond)
		r, err := gateways[rnd.IntN(2)].Reserve(t.Context(), now, randomRequest(rnd, 4, [3]*configs.Limits{lim, lim, lim}))
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, r)
		for len(open) > 40 || len(open) > 0 && rnd.IntN(2) == 0 {
			i := rnd.IntN(len(open))
			open[i].Settle(now, randomActual(rnd))
			open[i] = open[len(open)-1]
			open = open[:len(open)-1]
		}
		if rnd.IntN(20) == 0 {
			gateways[0].redis.flush()
			gateways[1].redis.flush()
		}
	}
	for _, r := range open {
		r.Settle(now, randomActual(rnd))
	}
	for _, g := range gateways {
		g.redis.at.Store(now.UnixMicro())
		if !g.redis.flush() {
			t.Fatal("Redis did not settle")
		}
	}
	c := srv.client()
	for _, pattern := range []string{"{leak}:r:*", "{leak}:s:*"} {
		if keys, err := c.Keys(t.Context(), pattern).Result(); err != nil || len(keys) != 0 {
			t.Errorf("%d of %s left (%v), want none", len(keys), pattern, err)
		}
	}
	var subjects []Subject
	for i := range 4 {
		subjects = append(subjects, Subject{Scope: ScopeKey, Key: fmt.Sprint("k", i), Limits: lim},
			Subject{Scope: ScopeKeyModel, Key: fmt.Sprint("k", i), Model: "m", Limits: lim})
	}
	subjects = append(subjects, Subject{Scope: ScopeModel, Model: "m", Limits: lim})
	stats, err := gateways[0].Stats(t.Context(), now.Add(2*time.Minute), subjects)
	if err != nil {
		t.Fatal(err)
	}
	for _, st := range stats {
		if st.UnderWay != 0 || st.ReservedInput != 0 || st.ReservedOutput != 0 || st.Running != 0 || st.Rates[0].Used != 0 || st.Rates[1].Used != 0 {
			t.Errorf("%+v: want nothing under way and full buckets", st)
		}
	}
}

// TestReserveIsOneRoundTrip counts the calls that a request waits for.
func TestReserveIsOneRoundTrip(t *testing.T) {
	t.Parallel()
	srv := startRedis(t)
	l := playedLimiter(t, srv.addr(), "trips")
	calls := map[string]int{}
	l.redis.onRedis = func(op string, _ time.Duration, err error) {
		calls[op]++
		if err != nil {
			t.Error(err)
		}
	}
	lim := &configs.Limits{RequestsPerMinute: 60_000, TokensPerMinute: 50e6, Concurrency: 300}
	for range 100 {
		r, err := l.Reserve(t.Context(), epochTime(), &Request{Key: "k", Model: "m", KeyLimits: lim, KeyModelLimits: lim, ModelLimits: lim, Cost: Cost{1, 5, 5}})
		if err != nil || !r.TrySlot(epochTime()) {
			t.Fatalf("%v, or no slot", err)
		}
		r.Settle(epochTime(), Actual{OutcomeDone, 5, 5})
	}
	l.redis.flush()
	if calls["reserve"] != 100 || calls["settle"] != 2 || len(calls) != 2 {
		t.Errorf("calls %v, want one for each of 100 requests, and two for all settlements", calls)
	}
}

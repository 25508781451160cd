package limits

import (
	"fmt"
	"testing"
	"time"

	"penstock/configs"
)

// TestRedisAsksForAllThatWait: more full keys than one script call takes must not hide the rest.
func TestRedisAsksForAllThatWait(t *testing.T) {
	l := redisLimiter(t, startRedis(t).addr(), patient)
	lim := &configs.Limits{Concurrency: 1}
	const keys = batch + 6
	var first, second [keys]*Reservation
	for i := range keys {
		q := &Request{Key: fmt.Sprintf("k%d", i), Model: "m", KeyLimits: lim, Cost: Cost{Requests: 1}}
		for _, r := range []**Reservation{&first[i], &second[i]} {
			var err error
			if *r, err = l.Reserve(t.Context(), time.Now(), q); err != nil {
				t.Fatal(err)
			}
			(*r).TrySlot(time.Now())
		}
	}
	for _, i := range []int{10, keys - 1} {
		first[i].Settle(time.Now(), Actual{Outcome: OutcomeDone})
		deadline := time.Now().Add(10 * time.Second)
		for !second[i].TrySlot(time.Now()) {
			if time.Now().After(deadline) {
				t.Fatalf("key %d of %d: its slot is free, and the one that waits has not got it", i, keys)
			}
			time.Sleep(5 * time.Millisecond)
		}
	}
}

package relay

import (
	"math"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// Budget bounds retries, so that a fleet in trouble is not given more work for
// it: a share of the requests of the last ten seconds, and a few a second in
// any case. It may be used by any number of goroutines at once.
type Budget struct {
	share float64
	least *rate.Limiter

	mu     sync.Mutex
	second int64 // the newest slot's
	slots  [budgetSeconds]struct{ requests, retries int }
}

const budgetSeconds = 10

// NewBudget allows share of the requests as retries (0.2: one for each five),
// and perSecond beside.
func NewBudget(share, perSecond float64) *Budget {
	return &Budget{share: share, least: rate.NewLimiter(rate.Limit(perSecond), int(math.Ceil(perSecond)))}
}

// Request counts one request.
func (b *Budget) Request(now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.slot(now).requests++
}

// Allow reports whether a request may be tried again, and counts that.
func (b *Budget) Allow(now time.Time) bool {
	b.mu.Lock()
	slot := b.slot(now)
	requests, retries := 0, 0
	for i := range b.slots {
		requests += b.slots[i].requests
		retries += b.slots[i].retries
	}
	ok := float64(retries+1) <= b.share*float64(requests)
	if ok {
		slot.retries++
	}
	b.mu.Unlock()
	return ok || b.least.AllowN(now, 1)
}

// slot is the current second's, older ones forgotten.
func (b *Budget) slot(now time.Time) *struct{ requests, retries int } {
	second := now.Unix()
	for n := min(second-b.second, budgetSeconds); n > 0; n-- {
		b.slots[(second-n+1)%budgetSeconds] = struct{ requests, retries int }{}
	}
	b.second = max(b.second, second)
	return &b.slots[b.second%budgetSeconds]
}

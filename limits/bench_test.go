package limits

import (
	"testing"
	"time"

	"penstock/configs"
)

func BenchmarkReserveSettle(b *testing.B) {
	l, _ := New(Options{})
	lim := &configs.Limits{RequestsPerMinute: 1e9, TokensPerMinute: 1e10, Concurrency: 100}
	q := &Request{Key: "k", Model: "m", KeyLimits: lim, KeyModelLimits: lim, ModelLimits: lim, Cost: Cost{1, 100, 100}}
	now := time.Now()
	b.ReportAllocs()
	for b.Loop() {
		now = now.Add(time.Microsecond)
		r, err := l.Reserve(b.Context(), now, q)
		if err != nil {
			b.Fatal(err)
		}
		r.Settle(now, Actual{OutcomeDone, 100, 50})
	}
}

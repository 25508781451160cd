package router

import (
	"sync"
	"testing"
)

// The race detector is the judge.
func TestSettingsChangeWhileRequestsAreChosen(t *testing.T) {
	p := newTestPool(Options{}, 4, Capacity{KVTokens: 1 << 20})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 200 {
				q := &Request{Tokens: 100}
				p.Work(q)
				if l, err := p.Choose(t0, q); err == nil {
					l.Done(t0, Usage{OK: true})
				}
			}
		})
	}
	for i := range 200 {
		p.SetOptions(Options{IndexFactor: 1 + float64(i%2), StreamWeight: 0.1})
	}
	wg.Wait()
}

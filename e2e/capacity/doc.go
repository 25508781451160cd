// Package capacity measures how many streams one gateway holds, what each costs
// it in memory, and how late events are with all of them open. Client, gateway
// and engine are processes of their own.
//
// It has tests only. They run with few streams, to keep them right; the figures
// in docs/operations.md are those of
//
//	PENSTOCK_CAPACITY=8000,1000 go test -v -count=1 ./e2e/capacity
package capacity

//go:build race

package router

// raceOn: the race detector makes sync.Pool drop what it holds, so that
// allocations mean nothing.
const raceOn = true

// Package soak puts a gateway under random faults of its engines, random
// clients and reloads, and then looks whether anything is left of it: no
// request, slot, reservation, connection or goroutine, and no more memory.
//
// It has tests only: eight seconds of it by default, ten minutes by make soak.
// PENSTOCK_SOAK is the time, PENSTOCK_SOAK_SEED repeats what a run has done.
package soak

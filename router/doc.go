// Package router decides which replica of a model gets a request: where the
// longest prefix of its prompt already is, priced by what everybody's first
// token would pay for it. It is pure: no I/O, no goroutine and no clock of its
// own; now is always an argument.
//
// Read it in this order:
//
//   - key.go: the prompt as a chain of hashes, one for each block of it
//   - index.go: which blocks a replica holds (prefix tree, LRU, pins)
//   - pool.go: the replicas of one model, their capacity and their reservations
//   - choose.go: match, price, select and reserve in one atomic step
//   - lease.go: what a reservation gives back: first token, end, predicted release
//   - wait.go: when it is cheaper to wait
//   - rates.go: prefill rates and ratios learned from traffic
//   - correct.go: predicted hits against reported ones
//   - policy.go and one file for each policy: prefix, least_load, round_robin, random_two, session
//   - lanes.go: embeddings and scoring, which stay out of the index
//   - load.go: what engines report about themselves
//   - settings.go: what a reload changes
//   - share.go: placements and loads shared between gateways
//
// Everything exported may be called from any goroutine, except a KeyBuilder,
// which belongs to one at a time. Pools share nothing: there is no lock across
// models. Within a pool matching takes only read locks of single replicas; the
// pool's own lock is held while candidates are priced and one is reserved.
package router

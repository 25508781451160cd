// Package limits decides what may be sent to the engines now, what waits, and
// what is refused, and can say why for each.
//
// It knows nothing of HTTP: refusals are values with everything that a status,
// a message and headers need. Time comes in as an argument; only the waiting
// itself (Queue.Acquire, Limiter.ReserveWait) and the Redis worker use timers.
//
// In reading order:
//
//   - kinds.go: the scopes and kinds of limits, a request's cost, its outcome
//   - bucket.go: one token bucket with debt (GCRA), and exact refunds
//   - memory.go: the buckets of all keys and models in this process
//   - limiter.go: the Limiter that callers use, and its modes
//   - reservation.go: what a request holds until it is settled
//   - refusal.go, headers.go: how a refusal and the state are told
//   - wait.go: waiting for a rate limit, for keys that ask for it
//   - order.go: the pure order of the admission queue: fair between keys,
//     short-first within one
//   - queue.go: the concurrent queue of one model
//   - estimator.go, output.go: what a request will probably cost
//   - auto.go: queue and concurrency derived from the engines
//   - stats.go: use, reservations, waiting and shares for the operator
//   - redis.go, redis_worker.go, lua/: the same buckets shared by several gateways
package limits

// Package sched is the embedded engine's scheduler: what an inference server
// does between its HTTP side and its model, without the model.
//
// In reading order:
//
//   - cache.go: the paged prefix cache
//   - profile.go: how long a step takes, fitted to measured deployments
//   - task.go: one sequence on its way through the scheduler
//   - core.go: continuous batching step by step, in whatever time it is told
//   - admit.go: who joins the batch, and who leaves it when the cache is full
//   - rank.go: a Core driven by a clock, for use by many goroutines
//
// Core and Cache are single-threaded and have no clock; Rank guards one Core
// with a lock and drives it from one goroutine, with timers and no polling.
package sched

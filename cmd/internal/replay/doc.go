// Package replay runs a trace of requests through the router and says how good
// its choices were: against simulated replicas in accelerated time, for one or
// several policies side by side, or over HTTP against a running gateway.
//
// Read it in this order:
//
//   - trace.go: what a trace is and how it is read; sessions.go: conversations turned into one
//   - synthetic.go: seeded traces for those who have none
//   - engine.go: the simulated replica
//   - sim.go: the events between trace, router and replicas; queue.go: those that fit nowhere yet
//   - baselines.go: policies of others, written from their published descriptions
//   - report.go: the figures, as a table and as JSON
//   - run.go: the command's options and runs
//   - http.go, text.go: the same trace against a running gateway
package replay

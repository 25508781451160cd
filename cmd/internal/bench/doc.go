// Package bench puts load on OpenAI-compatible endpoints and says how they bore
// it: times, throughput, and what they refused, left hanging or could not score.
//
// Read it in this order:
//
//   - options.go: what a run is; phase.go: the load of one phase, by name or by flags
//   - endpoint.go: an endpoint, its model and key; calibrate.go: how many words make so many tokens
//   - words.go: prompts of a wanted length; plan.go: the requests of a phase, trace.go: from a trace
//   - client.go: one request; stream.go: its events; score.go: a request for prompt log-probabilities
//   - load.go: the requests of a phase, in time
//   - row.go: the figures of a phase, under the names of earlier rows; stats.go: medians and their like
//   - serving.go: the same in the form of SGLang's bench_serving
//   - table.go, compare.go: what people read; assert.go: what a pipeline reads
//   - run.go: all of it in order
package bench

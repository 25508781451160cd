// Package scoring carries requests for the log-probabilities of a prompt to engines that answer them in
// different ways, or badly, and makes one exact answer of what comes back.
//
// It transforms bytes and does no I/O. A [Job] is one request: [Job.Split] deals a batch of prompts out,
// [Job.Request] writes what one part sends to one kind of engine, [Job.Check] reads the engine's answer and
// guards it, and [Job.Merge] makes the client's answer of the parts. Numbers pass as the text that the engine
// wrote; nothing is decoded into a float. An answer is held once, as it came: what has to be repaired is
// repaired while it is written out.
//
// In reading order: job.go (what a scoring request is), split.go, request.go (what is sent), answer.go and
// guard.go (what comes back, and whether it will do), generate.go (SGLang's /generate), repair.go and
// offset.go (log-probabilities put right), merge.go and write.go (the answer), usage.go (its usage),
// tokenize.go (tokenizer routes).
package scoring

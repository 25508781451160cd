// Package local is the embedded engine: a small language model behind the API
// of an inference server, with the server's prefix cache, batching, limits,
// pace and faults. It serves penstock serve when nothing else is configured,
// penstock engine, and tests. It says what it is: the model's name is
// penstock-local.
//
// In reading order:
//
//   - options.go, server.go: Options, New, Serve, Shutdown, Close
//   - routes.go: the paths, and the way of a request
//   - request.go, prompt.go, native.go: what a request asks for, checked
//   - exchange.go: one request from submission to its end
//   - gen.go: one choice: tokens, text, stop strings
//   - format.go, logprobs.go, stream.go, events.go: answers, whole and streamed
//   - tokenize.go, embed.go, info.go, metrics.go: everything else that is served
//   - fault.go, door.go: failing on purpose
//   - watch.go: noticing that a client has gone
//   - jsonr.go, jsonw.go, errors.go: JSON, error bodies
//   - lm: the tokenizer and the model; sched: cache, batching, pace
//
// # What it does
//
// Chat and completions, streamed or not, with max_tokens and
// max_completion_tokens (0 with echo), n, best_of, temperature, top_p, top_k,
// min_p, seed, stop, stop_token_ids, min_tokens, ignore_eos, logprobs,
// top_logprobs, echo and all four forms of a prompt; prompt_logprobs and
// x-request-id as vLLM, rid and /generate as SGLang; usage always with
// prompt_tokens_details.cached_tokens. Temperature 0 and a seed are
// deterministic, log-probabilities exact: echo gives a text the sum of its
// conditional log-probabilities. Requests that want a prompt's log-probabilities
// read nothing from the cache but fill it, as in both engines.
//
// Tools are shown to the model as a template would, but it never calls one;
// tool_choice that demands a call, a response_format other than text, and parts
// that are no text are refused with 400. Penalties and logit_bias are accepted
// and ignored. A token that is no whole UTF-8 is named bytes:\xNN in
// log-probabilities.
//
// Kind decides the rest: error bodies (flat or nested), metrics, information
// endpoints, how a data-parallel rank is asked for (SGLang: header
// X-Data-Parallel-Rank or body routed_dp_rank, older data_parallel_rank, on the
// OpenAI routes, body alone on /generate; vLLM: header alone, and one that is no
// number is ignored), whether an unknown model is served (SGLang) or 404 (vLLM),
// and how a full queue is refused (503; in a stream of SGLang's, 200 and then an
// event with 503).
//
// # Faults
//
// Options.Faults, penstock engine --fault and the admin call /fault make it fail:
//
//	POST /fault {"kind":"die","after":3,"count":2}   add one, or a list
//	GET /fault                                       those in force
//	DELETE /fault                                    none any more
//
// A fault lasts for count requests, for the time "for" ("5s"), or until it is
// cleared; several at once hit in the order in which they were added.
//
//	refuse         connections are refused, open ones cut; ends by "for" or Server.ClearFaults
//	503, 429       that status, with Retry-After if retry_after is given
//	503_stream     a stream begins with 200, then an error event with 503 and [DONE]
//	die            the connection is cut after "after" events (unstreamed: without an answer)
//	freeze         with count so many requests hang; without all of the engine, /health too
//	slow_prefill   prefill takes "factor" (10) times as long
//	no_done        a stream ends cleanly without [DONE]
package local

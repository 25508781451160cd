// Package score measures the perplexity of texts through an OpenAI-compatible endpoint that answers echo
// requests: the command penstock score.
//
// Texts are turned into token ids by the endpoint's own /tokenize, cut into windows as rolling log-likelihood
// is in lm-evaluation-harness, so that every token is predicted once, and sent in batches to /v1/completions
// with echo. Each window's result is appended to a file as soon as it is there; a run that is started again
// takes from it what it has.
//
// In reading order: options.go, text.go (the documents), window.go (how they are cut), client.go (the
// endpoint), store.go (the file of results), run.go (the work), report.go (the figures).
package score

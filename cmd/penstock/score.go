package main

import (
	"os"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"penstock/cmd/internal/score"
)

func newScoreCmd(e *env) *cobra.Command {
	var o score.Options
	cmd := &cobra.Command{
		Use:   "score [flags] FILE...",
		Short: "Measure the perplexity of texts through an endpoint",
		Long: `Score texts by their log-probabilities (echo), and print negative log-likelihood
per token, perplexity per token, word and byte, and bits per byte.

FILE is text, or JSON lines (.jsonl) of strings or of objects with the text in
--field; either may be compressed (.gz). - is text on standard input. Texts are
cut into windows as rolling log-likelihood is in lm-evaluation-harness: each
token is predicted once.`,
		Example: `  penstock score --base-url http://127.0.0.1:8080 wiki.txt
  penstock score --base-url https://api.example.com/v1 --key-env EXAMPLE_KEY --model m --out results.jsonl test.jsonl.gz
  penstock score --prefix '<|endoftext|>' --window 4096 --context 2048 book.txt`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.Files = args
			if err := o.Validate(); err != nil {
				return usagef(cmd, "%v", err)
			}
			if f, ok := e.stderr.(*os.File); ok {
				o.Bar = term.IsTerminal(int(f.Fd()))
			}
			return score.Run(cmd.Context(), o, e.getenv, e.stdin, e.stdout, e.stderr)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.BaseURL, "base-url", "http://127.0.0.1:8080", "the endpoint, with or without /v1")
	f.StringVar(&o.Model, "model", "", "model name (default: the first that the endpoint lists)")
	f.StringVar(&o.KeyEnv, "key-env", "", "environment `VARIABLE` that holds the API key")
	f.StringVar(&o.Field, "field", "text", "field of a JSON line that holds the text")
	f.IntVar(&o.Limit, "limit", 0, "only the first `N` documents (0: all)")
	f.IntVar(&o.Window, "window", 2048, "tokens of one window, its context included")
	f.IntVar(&o.Context, "context", 1, "tokens of a window that are at least there to predict the others from")
	f.StringVar(&o.Prefix, "prefix", "", "token before each document, from which its first is predicted: an id, or text that is one token")
	f.IntVar(&o.TextBytes, "text-bytes", 0, "without /tokenize: score pieces of about `N` bytes of text, each on its own")
	f.IntVar(&o.Batch, "batch", 8, "windows in one request")
	f.IntVar(&o.Concurrency, "concurrency", 4, "requests at once")
	f.DurationVar(&o.Timeout, "timeout", 10*time.Minute, "time for one request")
	f.IntVar(&o.Retries, "retries", 8, "further attempts of a request that is refused for load or lost")
	f.BoolVar(&o.Zero, "generate-none", true, "ask for max_tokens 0; where that is refused, for 1")
	f.StringVar(&o.Out, "out", "", "append each window's result to this file, and take from it what it has")
	f.BoolVar(&o.JSON, "json", false, "write the report as JSON")
	return cmd
}

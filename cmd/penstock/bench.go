package main

import (
	"os"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"penstock/cmd/internal/bench"
)

func newBenchCmd(e *env) *cobra.Command {
	var o bench.Options
	cmd := &cobra.Command{
		Use:   "bench --endpoint NAME=URL [flags]",
		Short: "Put load on OpenAI-compatible endpoints and compare them",
		Long: `Put load on one or several OpenAI-compatible endpoints, in turn, and say how
they bore it: times to the first token and between tokens, throughput, and what
they refused, left hanging or could not score.

The load is phases by name, of so many requests at once with prompts and answers
of such lengths, or one phase by flags. Prompts are random words, calibrated
against the usage that the endpoint reports; no two prompts share a beginning
unless --prefixes, --sessions or --trace say so.

Phases: ` + bench.PhaseNames() + `, all, and NAME=BATCHxINPUTxOUTPUT.

Real endpoints charge for tokens and have limits: throughput_8k sends 929
prompts of 8,192 tokens.`,
		Example: `  penstock bench --endpoint http://127.0.0.1:8080 --phase single,decode_long
  penstock bench --endpoint own=http://10.0.0.1:30000 --endpoint hosted=https://api.example.com/v1 \
      --key hosted=HOSTED_API_KEY --model hosted=org/model --phase all --out rows.json
  penstock bench --endpoint http://127.0.0.1:8080 --rate 20 --requests 600 --assert 'ttft_p99_ms<500' --assert 'errors==0'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.Validate(); err != nil {
				return usagef(cmd, "%v", err)
			}
			if f, ok := e.stderr.(*os.File); ok {
				o.Bar = term.IsTerminal(int(f.Fd()))
			}
			return bench.Run(cmd.Context(), o, e.getenv, e.stdout, e.stderr)
		},
	}
	f := cmd.Flags()
	f.StringArrayVar(&o.Endpoints, "endpoint", nil, "`NAME=URL` of an endpoint, with or without /v1; may be repeated")
	f.StringArrayVar(&o.Keys, "key", nil, "`[NAME=]VARIABLE`: the environment variable with the API key of an endpoint, or of all")
	f.StringArrayVar(&o.Models, "model", nil, "`[NAME=]MODEL` to ask for (default: the first that the endpoint lists)")
	f.StringVar(&o.API, "api", "chat", "chat or completions")
	f.StringSliceVar(&o.Phases, "phase", nil, "phases, separated by commas (default single)")
	f.IntVar(&o.Runs, "runs", 1, "runs of each phase on each endpoint, of which the medians are shown")
	f.Uint64Var(&o.Seed, "seed", 1, "seed of the prompts and of the arrivals; a second run with it may find them cached")

	c := &o.Custom
	f.IntVar(&c.Batch, "concurrency", 0, "requests at once (default 1; with --rate without bound)")
	f.IntVar(&c.Requests, "requests", 0, "requests in all (default: one batch)")
	f.Float64Var(&c.Rate, "rate", 0, "requests per second, arriving at random whether others have ended or not")
	f.IntVar(&c.Input, "input-len", 0, "tokens of a prompt (default 256)")
	f.IntVar(&c.Output, "output-len", 0, "tokens of an answer (default 256)")
	f.IntVar(&c.Prefixes, "prefixes", 0, "how many different beginnings the prompts share")
	f.IntVar(&c.PrefixTokens, "prefix-len", 0, "tokens of a shared beginning, of --input-len")
	f.IntVar(&c.Sessions, "sessions", 0, "conversations, whose requests hold all that was said before")
	f.IntVar(&c.Turns, "turns", 0, "requests of a conversation (default 4)")
	f.StringVar(&c.Trace, "trace", "", "`FILE` of requests, plain or gzip: JSON lines in Mooncake's form, or conversations")
	f.IntVar(&c.Limit, "limit", 0, "only the first `N` requests of the trace (0: all)")
	f.Float64Var(&c.Speed, "speed", 1, "how many times as fast as the trace's times; 0: as --concurrency lets them")

	f.BoolVar(&o.NoStream, "no-stream", false, "ask for whole answers")
	f.BoolVar(&o.NoUsage, "no-usage", false, "do not ask for usage in streams; count events")
	f.BoolVar(&o.KeepEOS, "keep-eos", false, "let answers end early (ignore_eos is not sent to an endpoint that refuses it)")
	f.BoolVar(&o.Calibrate, "calibrate", true, "try prompts first until their lengths are right")
	f.DurationVar(&o.Silence, "silence", 5*time.Minute, "a request without a byte for so long is hung and given up")
	f.DurationVar(&o.Timeout, "timeout", 35*time.Minute, "so is one that is not complete after so long")

	f.StringVar(&o.Out, "out", "", "write the figures to a `FILE`, as JSON")
	f.StringVar(&o.Format, "format", "rows", "of --out: rows or bench_serving")
	f.StringVar(&o.Baseline, "baseline", "", "compare with the rows of an earlier --out `FILE`")
	f.StringArrayVar(&o.Asserts, "assert", nil, "exit with 1 unless `[ENDPOINT/][PHASE:]FIGURE<NUMBER` holds, as in 'ttft_p99_ms<500'; may be repeated")
	return cmd
}

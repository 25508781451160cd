package main

import (
	"github.com/spf13/cobra"

	"penstock/cmd/internal/replay"
)

func newReplayCmd(e *env) *cobra.Command {
	var o replay.Options
	var slow string
	cmd := &cobra.Command{
		Use:   "replay [flags] TRACE",
		Short: "Run a trace of requests through the router and compare policies",
		Long: `Replay a trace through the router against simulated replicas, in accelerated
time, under one or several policies, and print what each made of it. With
--base-url the same trace is sent over HTTP to a running gateway instead.

TRACE is plain or gzip: JSON lines with timestamp (ms), input_length,
output_length and hash_ids (Mooncake's form), or conversations. Without one,
--synthetic makes a trace.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				o.Path = args[0]
			}
			if (o.Path == "") == (o.Synthetic == "") {
				return usagef(cmd, "want either a TRACE or --synthetic")
			}
			var err error
			if o.Fleet.Slow, err = replay.ParseSlow(slow, o.Fleet.Replicas); err != nil {
				return usagef(cmd, "--slow %v", err)
			}
			if err := o.Validate(); err != nil {
				return usagef(cmd, "%v", err)
			}
			if o.HTTP.Key == "" {
				o.HTTP.Key, _ = e.getenv("OPENAI_API_KEY")
			}
			return replay.Run(cmd.Context(), o, e.stdout, e.stderr)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.Synthetic, "synthetic", "", "make a trace instead: chat, shared-prefix, agents or unrelated")
	f.IntVar(&o.Limit, "limit", 0, "only the first `N` requests (0: all)")
	f.StringVar(&o.Policies, "policy", "prefix", "policies, separated by commas, or all (the default and every baseline)")
	f.Uint64Var(&o.Seed, "seed", 1, "seed of the random choices and of a synthetic trace")
	f.IntVar(&o.Seeds, "seeds", 1, "run each policy with `N` seeds in a row and show the medians")
	f.BoolVar(&o.JSON, "json", false, "write one JSON array of objects, one for each policy")
	f.IntVar(&o.Fleet.Replicas, "replicas", 8, "simulated replicas")
	f.IntVar(&o.Fleet.KVTokens, "kv-tokens", 1<<20, "KV cache of each replica, in tokens")
	f.Float64Var(&o.Fleet.Speed, "speed", 1, "how many times faster than the trace's timestamps requests arrive")
	f.StringVar(&slow, "slow", "", "slower replicas, as in 1x3: replica 1 is three times slower")
	f.Float64Var(&o.Fleet.Unstreamed, "unstreamed", 0, "share of requests whose answers are not streamed")
	f.IntVar(&o.Fleet.Gateways, "gateways", 1, "gateways that share the replicas, requests coming to them in turn")
	f.Float64Var(&o.Fleet.ShareEvery, "share-ms", 100, "time between two exchanges of placements among gateways (below 0: they know nothing of each other)")
	f.BoolVar(&o.Fleet.NoWait, "no-wait", false, "bind at once whenever a replica has room, also where waiting is cheaper")
	f.BoolVar(&o.Fleet.NoCached, "no-cached-report", false, "replicas do not report cached tokens")
	f.Float64Var(&o.Fleet.Credit, "waiting-credit", 0.085, "credit for waiting in the gateway's queue, as a share of the prefill rate")
	f.StringVar(&o.BaseURL, "base-url", "", "send the trace to a running gateway instead, as http://127.0.0.1:8080/v1")
	f.StringVar(&o.HTTP.Model, "model", "", "model asked for with --base-url (default: the first that it lists)")
	f.StringVar(&o.HTTP.Key, "api-key", "", "API key for --base-url (default: $OPENAI_API_KEY)")
	f.IntVar(&o.HTTP.Most, "concurrency", 0, "requests in flight at once with --base-url (0: as the trace says)")
	return cmd
}

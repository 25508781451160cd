package main

import (
	"context"
	"fmt"
	"net"
	"time"

	"github.com/spf13/cobra"

	"penstock/engine/local"
)

// engineGrace is how long running requests may finish after a signal.
const engineGrace = 5 * time.Second

func newEngineCmd(e *env) *cobra.Command {
	var o local.Options
	var listen, kind string
	var faults []string
	cmd := &cobra.Command{
		Use:   "engine",
		Short: "Run the embedded engine alone, as an upstream to try things on",
		Long: `Run the embedded engine alone: a small language model behind the API of an
SGLang or a vLLM server, with a real prefix cache and continuous batching. The
profiles take the time that a real deployment took; instant takes none.

--fault makes it fail on purpose, as in --fault die:after=3,count=2; POST /fault
does so while it runs. Kinds: refuse, 503, 429, 503_stream, die, freeze,
slow_prefill, no_done; values: count, after, for, factor, retry_after.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.Kind = local.Kind(kind)
			for _, s := range faults {
				f, err := local.ParseFault(s)
				if err != nil {
					return usagef(cmd, "--fault: %v", err)
				}
				o.Faults = append(o.Faults, f)
			}
			for _, name := range []string{"dp", "time-scale"} { // 0 would be taken as left out
				if fl := cmd.Flags().Lookup(name); fl.Changed && fl.Value.String() == "0" {
					return usagef(cmd, "--%s 0: expected a number above 0", name)
				}
			}
			if err := o.Check(); err != nil {
				return usagef(cmd, "%v", err)
			}
			return runEngine(cmd.Context(), e, o, listen)
		},
	}
	f := cmd.Flags()
	f.StringVar(&listen, "listen", "127.0.0.1:30000", "address to serve on; port 0 takes a free one")
	f.StringVar(&kind, "kind", string(local.SGLang), "whose API and metrics it shows: sglang or vllm")
	f.StringVar(&o.Model, "model", local.DefaultModel, "name of the served model")
	f.IntVar(&o.DP, "dp", 1, "data-parallel ranks behind the port")
	f.StringVar(&o.Profile, "profile", "instant", "pace and size: instant, qwen3-30b or glm52-dp4")
	f.IntVar(&o.KVTokens, "kv-tokens", 0, "KV cache of each rank, in tokens (0: the profile's)")
	f.IntVar(&o.PageSize, "page-size", 0, "page of the KV cache, in tokens (0: the profile's, for vllm at least 16)")
	f.IntVar(&o.MaxRunning, "max-running", 0, "sequences that each rank runs at once (0: the profile's)")
	f.IntVar(&o.MaxQueued, "max-queued", 0, "sequences that may wait on each rank; more are refused with 503 (0: no limit)")
	f.Float64Var(&o.TimeScale, "time-scale", 1, "how many times as fast as the profile")
	f.StringArrayVar(&faults, "fault", nil, "a fault from the beginning, KIND[:NAME=VALUE,…]; may be repeated")
	return cmd
}

// runEngine serves until ctx ends, then lets running requests finish.
func runEngine(ctx context.Context, e *env, o local.Options, listen string) error {
	logger, _ := e.log.newLogger(e.stderr, "", "")
	o.Logger = logger
	s, err := local.New(o)
	if err != nil {
		return err
	}
	defer s.Close()
	ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", listen)
	if err != nil {
		return fmt.Errorf("engine: %w", err)
	}
	logger.Info("engine ready: the embedded model, not a real one", "url", "http://"+ln.Addr().String(),
		"kind", string(o.Kind), "model", o.Model, "dp", o.DP, "profile", o.Profile)
	done := make(chan error, 1)
	go func() { done <- s.Serve(ln) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	logger.Info("engine stopping", "grace", engineGrace.String())
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), engineGrace)
	defer cancel()
	if err := s.Shutdown(grace); err != nil {
		logger.Warn("engine stopped with requests running", "error", err)
	}
	return <-done
}

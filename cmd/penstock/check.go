package main

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/spf13/cobra"

	"penstock/configs"
	"penstock/gateway"
)

func newCheckCmd(e *env) *cobra.Command {
	var path string
	var flags bool
	cmd := &cobra.Command{
		Use:   "check --config FILE",
		Short: "Check a configuration and print what is in effect, without secrets",
		Long: `Reads a configuration as serve would, and reports every mistake at once, each
as one line with file and line number (exit code 1). A valid one is printed as
it is in effect: defaults and inheritance written out, what comes from the
environment as the reference it comes by. The output is itself a configuration
with the same effect. Nothing is started, and no engine is asked but with
limits.mode: auto, whose numbers follow from what the engines can run.

With --preflight the flags of each launched engine are checked too, against
what its command's own --help tells.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := configs.Load(path, e.getenv)
			if err != nil {
				return err
			}
			log, _ := e.log.newLogger(e.stderr, c.Log.Format, c.Log.Level)
			for _, w := range c.Warnings() {
				log.Warn(w)
			}
			if flags {
				if err := preflight(cmd.Context(), log, c); err != nil {
					return err
				}
			}
			hash := c.Hash()
			if c.Limits.Mode == "auto" {
				if c, err = derive(cmd.Context(), log, c); err != nil {
					return err
				}
			}
			return printEffective(e, path, hash, c)
		},
	}
	cmd.Flags().StringVar(&path, "config", "", "the configuration file")
	cmd.Flags().BoolVar(&flags, "preflight", false, "check the flags of launched engines against their commands' own --help")
	_ = cmd.MarkFlagRequired("config")
	_ = cmd.MarkFlagFilename("config", "yaml", "yml")
	return cmd
}

// askWithin bounds the asking of engines by limits.mode: auto.
const askWithin = 5 * time.Second

// derive fills in what limits.mode: auto derives; an engine that does not
// answer is a warning, not a mistake of the configuration.
func derive(ctx context.Context, log *slog.Logger, c *configs.Config) (*configs.Config, error) {
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	out, err := gateway.Derive(ctx, c, slog.New(slog.DiscardHandler))
	if out == nil {
		return nil, err
	}
	if err != nil {
		log.Warn(err.Error())
	}
	return out, nil
}

func printEffective(e *env, path, hash string, c *configs.Config) error {
	shown, err := c.Redacted()
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(e.stdout, "# %s is valid; what is in effect, hash %s:\n%s", path, hash, shown)
	return err
}

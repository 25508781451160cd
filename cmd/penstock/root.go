package main

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
)

// env is what a command may touch of the process that it runs in. Commands
// take everything from here, so that a test can run them without a process.
type env struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	getenv         func(string) (string, bool)
	// log holds --log-format and --log-level; valid from PersistentPreRun on.
	log logOptions
}

// commands is the one list of subcommands: each in a file of its own, each
// made by a function newXCmd(*env) *cobra.Command.
func commands(e *env) []*cobra.Command {
	return []*cobra.Command{
		newBenchCmd(e),
		newCheckCmd(e),
		newEngineCmd(e),
		newExplainCmd(e),
		newHealthCmd(e),
		newInitCmd(e),
		newReplayCmd(e),
		newScoreCmd(e),
		newServeCmd(e),
		newTopCmd(e),
		newVersionCmd(e),
	}
}

// Run parses args, runs the command they name and returns its error: a
// *usageError when the command line itself was wrong, anything else when the
// command failed. It uses the process's environment and no other global state.
func Run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) error {
	return run(ctx, args, &env{stdin: stdin, stdout: stdout, stderr: stderr, getenv: os.LookupEnv})
}

func run(ctx context.Context, args []string, e *env) error {
	root := newRootCmd(e)
	started := false
	for _, c := range root.Commands() {
		markStart(c, &started)
	}
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil || started {
		return err
	}
	// Whatever stops a command before it starts is the command line's fault:
	// unknown flags and commands, missing or superfluous arguments.
	return &usageError{command: cmd.CommandPath(), err: err}
}

// markStart sets started when c, or a command below it, begins to run.
func markStart(c *cobra.Command, started *bool) {
	if inner := c.RunE; inner != nil {
		c.RunE = func(cmd *cobra.Command, args []string) error {
			*started = true
			return inner(cmd, args)
		}
	}
	for _, sub := range c.Commands() {
		markStart(sub, started)
	}
}

func newRootCmd(e *env) *cobra.Command {
	root := &cobra.Command{
		Use:   "penstock",
		Short: "An OpenAI-compatible gateway in front of GPU engine replicas",
		Long: `Penstock brings each request to the engine replica where it costs everybody the
least, explains every limit that it enforces, and relays answers byte for byte.

'penstock serve' without a configuration serves four embedded replicas at once.
Logs go to stderr. Exit codes: 0 done, 1 failed, 2 wrong usage.`,
		SilenceErrors: true, // exitCode prints the error, once
		SilenceUsage:  true,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			return unknownCommand(cmd, args[0])
		},
		RunE:              func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		PersistentPreRunE: func(*cobra.Command, []string) error { return e.log.validate() },
	}
	e.log.addFlags(root.PersistentFlags())
	root.SuggestionsMinimumDistance = 2
	root.SetIn(e.stdin)
	root.SetOut(e.stdout)
	root.SetErr(e.stderr)
	root.AddCommand(commands(e)...)
	return root
}

func unknownCommand(root *cobra.Command, name string) error {
	if near := root.SuggestionsFor(name); len(near) > 0 {
		return fmt.Errorf("unknown command %q: did you mean %q?", name, near[0])
	}
	return fmt.Errorf("unknown command %q", name)
}

// usageError is a command line that cannot be carried out: exit code 2.
type usageError struct {
	command string // as typed, for the hint
	err     error
}

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

// usagef makes a *usageError, for what only a running command can tell of its
// flags: two that exclude each other, a value out of range.
func usagef(cmd *cobra.Command, format string, args ...any) error {
	return &usageError{command: cmd.CommandPath(), err: fmt.Errorf(format, args...)}
}

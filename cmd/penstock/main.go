// Command penstock is an OpenAI-compatible gateway in front of GPU engine
// replicas, with the tools that belong to it. Nothing here but wiring.
//
// Its parts in reading order: main.go (the process: signals, exit code),
// root.go (the command tree and what all commands share), logging.go (the log
// that the flags and the configuration ask for), then a file for each command.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"penstock/configs"
)

// Exit codes that scripts may rely on.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// The second signal kills at once, as an operator who presses ^C twice expects.
	context.AfterFunc(ctx, stop)
	code := exitCode(Run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr), os.Stderr)
	stop()
	os.Exit(code)
}

// exitCode says on stderr what went wrong, once, and returns the code for it.
func exitCode(err error, stderr io.Writer) int {
	if err == nil {
		return exitOK
	}
	if _, ok := errors.AsType[*configs.Error](err); ok {
		fmt.Fprintln(stderr, err) // file:line: … for each mistake, as editors read it
	} else {
		fmt.Fprintf(stderr, "penstock: %v\n", err)
	}
	if usage, ok := errors.AsType[*usageError](err); ok {
		fmt.Fprintf(stderr, "Run '%s --help' for usage.\n", usage.command)
		return exitUsage
	}
	return exitFailed
}

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"penstock/configs"
)

// initOptions are the flags of init, and the answers to its questions.
type initOptions struct {
	engines []string // URLs, as typed; none: the embedded engine
	model   string
	listen  string
	admin   string
	clients []string
	output  string
	force   bool
	yes     bool
	noProbe bool
	timeout time.Duration
}

func newInitCmd(e *env) *cobra.Command {
	o := &initOptions{}
	cmd := &cobra.Command{
		Use:   "init [ENGINE-URL...]",
		Short: "Write a commented configuration, from flags or a few questions",
		Long: `Writes a configuration for the engines given, asking them what they are. Without
an engine and without --yes it asks a few questions first. A client named gets a
new key, printed once on stderr; the file holds its hash.`,
		Example: `  penstock init
  penstock init http://10.0.0.1:30000 http://10.0.0.2:30000 --client search-team
  penstock init --yes --output -`,
		RunE: func(cmd *cobra.Command, args []string) error {
			o.engines = append(o.engines, args...)
			return runInit(cmd, e, o)
		},
	}
	f := cmd.Flags()
	f.StringSliceVar(&o.engines, "engine", nil, "URL of an engine server; repeat it, or give URLs as arguments")
	f.StringVar(&o.model, "model", "", "the name that clients ask for (default: what the engines serve)")
	f.StringVar(&o.listen, "listen", "127.0.0.1:8080", "address for clients")
	f.StringVar(&o.admin, "admin", "127.0.0.1:9090", "address for operators: metrics and status")
	f.StringSliceVar(&o.clients, "client", nil, "name of a client that gets a key; repeat it for several (default: no keys, open to all)")
	f.StringVarP(&o.output, "output", "o", "penstock.yaml", "file to write; - for stdout")
	f.BoolVar(&o.force, "force", false, "overwrite the file")
	f.BoolVarP(&o.yes, "yes", "y", false, "ask nothing: take flags and defaults")
	f.BoolVar(&o.noProbe, "no-probe", false, "do not ask the engines what they are")
	f.DurationVar(&o.timeout, "timeout", 5*time.Second, "how long to wait for the engines' answers")
	return cmd
}

func runInit(cmd *cobra.Command, e *env, o *initOptions) error {
	if _, err := os.Stat(o.output); err == nil && o.output != "-" && !o.force {
		return fmt.Errorf("%s exists already: --force overwrites it, --output names another file", o.output)
	}
	if len(o.engines) == 0 && !o.yes {
		if err := askInit(e, o); err != nil {
			return err
		}
	}
	plan, err := planInit(cmd, e, o)
	if _, wrong := errors.AsType[*configs.Error](err); wrong {
		return usagef(cmd, "%w", err)
	}
	if err != nil {
		return err
	}
	var text bytes.Buffer
	plan.write(&text)
	// What init writes is valid, or its flags were not.
	if _, err := configs.Parse("", text.Bytes(), e.getenv); err != nil {
		return usagef(cmd, "%w", err)
	}
	if err := writeFile(e, o, text.Bytes()); err != nil {
		return err
	}
	plan.sayNext(e.stderr, o.output)
	return nil
}

// planInit asks the engines and makes the clients' keys.
func planInit(cmd *cobra.Command, e *env, o *initOptions) (*initPlan, error) {
	p := &initPlan{listen: o.listen, admin: o.admin, output: o.output}
	urls := make([]string, len(o.engines))
	for i, raw := range o.engines {
		url, err := engineURL(raw)
		if err != nil {
			return nil, usagef(cmd, "engine %d: %w", i+1, err)
		}
		urls[i] = url
	}
	found, err := probeEngines(cmd.Context(), e, o, urls)
	if err != nil {
		return nil, err
	}
	p.group(found, o.model)
	for _, name := range o.clients {
		p.clients = append(p.clients, newClient(name))
	}
	return p, nil
}

func probeEngines(ctx context.Context, e *env, o *initOptions, urls []string) ([]probed, error) {
	if o.noProbe || len(urls) == 0 {
		return unprobed(urls), nil
	}
	fmt.Fprintf(e.stderr, "Asking %d engine(s) what they are, for %s at most …\n", len(urls), o.timeout)
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	found, err := probe(ctx, urls)
	if err != nil {
		return nil, err
	}
	for _, f := range found {
		fmt.Fprintf(e.stderr, "  %s: %s\n", f.url, f.describe())
	}
	return found, nil
}

// writeFile never leaves half a file, and never overwrites one unasked.
func writeFile(e *env, o *initOptions, text []byte) (err error) {
	if o.output == "-" {
		_, err = e.stdout.Write(text)
		return err
	}
	flags := os.O_WRONLY | os.O_CREATE | os.O_EXCL
	if o.force {
		flags = os.O_WRONLY | os.O_CREATE | os.O_TRUNC
	}
	f, err := os.OpenFile(o.output, flags, 0o644)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	_, err = io.Copy(f, bytes.NewReader(text))
	return err
}

// Command bench sets the gateway side by side with other proxies: the same
// load, the same upstream, in one run, interleaved.
//
// Read it in this order:
//
//   - main.go: flags and the run; run.sh builds and installs what it needs
//   - upstream.go: the engine behind all of them, as trivial as can be; floor.go: a relay that does nothing else
//   - targets.go: what is compared, and how each is configured; peers.go: the routers from PyPI
//   - cases.go: the loads; client.go: a connection that puts it on, and what it sees
//   - measure.go: one case on one target; proc.go: what its processes used
//   - report.go: medians of the rounds, and their ratios
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

type options struct {
	rounds   int
	duration time.Duration
	cases    string
	targets  string
	penstock string // NAME=BINARY,…: builds to compare; the first is also what "bare" runs
	extra    string // further lines of penstock's configuration
	peers    string // folder of the routers' virtual environments
	out      string
	profiles string
	upstream string // run as the upstream, on this address
	floor    string // run as the floor, on this address
	to       string // whose upstream is this
}

func main() {
	var o options
	flag.IntVar(&o.rounds, "rounds", 5, "how often each case is run on each target, in turn")
	flag.DurationVar(&o.duration, "duration", 2*time.Second, "time of one run, where the case has none of its own")
	flag.StringVar(&o.cases, "cases", "", "some of the cases, separated by commas (default: all)")
	flag.StringVar(&o.targets, "targets", "direct,nginx,haproxy,penstock,bare", "what is compared, separated by commas")
	flag.StringVar(&o.penstock, "penstock", "", "`BINARY` of penstock, or NAME=BINARY,… to compare builds")
	flag.StringVar(&o.extra, "extra", "", "further `YAML` of penstock's configuration")
	flag.StringVar(&o.peers, "peers", "", "folder with the virtual environments of other routers")
	flag.StringVar(&o.out, "out", "", "file for all measurements, as JSON")
	flag.StringVar(&o.profiles, "profiles", "", "folder for CPU profiles of penstock, one a case")
	flag.StringVar(&o.upstream, "upstream", "", "be the upstream, on this `ADDRESS`")
	flag.StringVar(&o.floor, "floor", "", "relay with fasthttp and nothing else, on this `ADDRESS`")
	flag.StringVar(&o.to, "to", "", "the `ADDRESS` that -floor relays to")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	switch {
	case o.upstream != "":
		err = serveUpstream(ctx, o.upstream)
	case o.floor != "":
		err = serveFloor(ctx, o.floor, o.to)
	default:
		err = run(ctx, o, os.Stdout, os.Stderr)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options, stdout, stderr io.Writer) error {
	dir, err := os.MkdirTemp("", "penstock-bench")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	cases, err := casesNamed(o.cases)
	if err != nil {
		return err
	}
	l := &lab{dir: dir, o: o}
	defer l.close()
	targets, err := l.start(ctx)
	if err != nil {
		return err
	}
	var all []measurement
	for round := range o.rounds {
		for _, c := range cases {
			for i := range targets {
				t := targets[(i+round)%len(targets)]
				m, err := l.measure(ctx, c, t, round)
				if err != nil {
					return fmt.Errorf("%s on %s: %w", c.name, t.name, err)
				}
				all = append(all, m)
				fmt.Fprintln(stderr, m)
			}
		}
	}
	if o.out != "" {
		b, err := json.MarshalIndent(all, "", " ")
		if err != nil {
			return err
		}
		if err := os.WriteFile(o.out, b, 0o644); err != nil {
			return err
		}
	}
	return report(stdout, all)
}

// lab is all that runs while the bench does.
type lab struct {
	dir       string
	o         options
	upstreams []string
	processes []*process
}

func (l *lab) close() {
	for _, p := range slices.Backward(l.processes) {
		p.stop()
	}
}

// start starts upstreams and targets.
func (l *lab) start(ctx context.Context) ([]*target, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	n := 1
	if l.o.peers != "" {
		n = 2 // routers have something to choose from
	}
	for range n {
		addr := freeAddr()
		if _, err := l.spawn(nil, self, "-upstream", addr); err != nil {
			return nil, err
		}
		if err := waitFor(ctx, addr); err != nil {
			return nil, err
		}
		l.upstreams = append(l.upstreams, addr)
	}
	var all []*target
	for name := range strings.SplitSeq(l.o.targets, ",") {
		ts, err := l.target(ctx, name)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		all = append(all, ts...)
	}
	if len(all) == 0 {
		return nil, errors.New("no targets")
	}
	return all, nil
}

func (l *lab) path(name string) string { return filepath.Join(l.dir, name) }

package bench

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"
)

// Options are the command's.
type Options struct {
	Endpoints []string // NAME=URL or URL
	Keys      []string // NAME=VARIABLE or VARIABLE: the environment variable that holds the API key
	Models    []string // NAME=MODEL or MODEL; left out: the first that the endpoint lists
	API       string   // chat or completions

	Phases []string // names, or NAME=BATCHxINPUTxOUTPUT
	Custom Phase    // by flags, when Batch or Rate or Trace says so
	Runs   int      // of each phase on each endpoint
	Seed   uint64

	NoStream  bool
	NoUsage   bool // do not ask for usage in the stream
	KeepEOS   bool // do not send ignore_eos
	Silence   time.Duration
	Timeout   time.Duration
	Calibrate bool

	Out      string // file; "": none
	Format   string // rows or bench_serving
	Baseline string
	Asserts  []string
	Bar      bool // a progress bar on stderr, which must be a terminal
}

// Formats of --out.
const (
	formatRows    = "rows"
	formatServing = "bench_serving"
)

// Validate finds what no run can do.
func (o *Options) Validate() error {
	if len(o.Endpoints) == 0 {
		return errors.New("--endpoint: want at least one NAME=URL")
	}
	if o.API != "chat" && o.API != "completions" {
		return fmt.Errorf("--api %q: want chat or completions", o.API)
	}
	if o.Format != formatRows && o.Format != formatServing {
		return fmt.Errorf("--format %q: want %s or %s", o.Format, formatRows, formatServing)
	}
	if o.Runs < 1 {
		return fmt.Errorf("--runs %d: want at least 1", o.Runs)
	}
	if o.Silence <= 0 || o.Timeout <= 0 {
		return fmt.Errorf("--silence %v and --timeout %v: want more than 0", o.Silence, o.Timeout)
	}
	for _, a := range o.Asserts {
		if _, err := parseAssert(a); err != nil {
			return err
		}
	}
	if _, err := o.phases(); err != nil {
		return err
	}
	_, err := o.endpoints(func(string) (string, bool) { return "x", true })
	return err
}

// phases are those of the run, in order.
func (o *Options) phases() ([]Phase, error) {
	names := o.Phases
	if o.Custom.set() {
		if len(names) > 0 {
			return nil, errors.New("--phase and flags that describe a phase: only one of them")
		}
		p, err := o.Custom.complete()
		return []Phase{p}, err
	}
	if len(names) == 0 {
		names = []string{"single"}
	}
	var all []Phase
	for _, list := range names {
		for name := range strings.SplitSeq(list, ",") {
			ps, err := phaseNamed(strings.TrimSpace(name))
			if err != nil {
				return nil, err
			}
			all = append(all, ps...)
		}
	}
	return all, nil
}

// endpoints are those of the run, with their keys and models.
func (o *Options) endpoints(getenv func(string) (string, bool)) ([]*Endpoint, error) {
	var all []*Endpoint
	for _, arg := range o.Endpoints {
		e, err := newEndpoint(arg, o)
		if err != nil {
			return nil, err
		}
		for _, other := range all {
			if other.Name == e.Name {
				return nil, fmt.Errorf("--endpoint %s: the name %s is taken; give each its own NAME=URL", arg, e.Name)
			}
		}
		all = append(all, e)
	}
	err := forEach("--key", o.Keys, all, func(e *Endpoint, variable string) error {
		key, ok := getenv(variable)
		if !ok || key == "" {
			return fmt.Errorf("the environment has no %s", variable)
		}
		e.key = key
		return nil
	})
	return all, cmp.Or(err, forEach("--model", o.Models, all, func(e *Endpoint, model string) error {
		e.Model = model
		return nil
	}))
}

// forEach reads NAME=VALUE, for one endpoint, or VALUE, for all.
func forEach(flag string, args []string, all []*Endpoint, set func(*Endpoint, string) error) error {
	for _, arg := range args {
		matched := false
		for _, e := range all {
			value, own := strings.CutPrefix(arg, e.Name+"=")
			if !own && strings.Contains(arg, "=") {
				continue
			}
			matched = true
			if err := set(e, value); err != nil {
				return fmt.Errorf("%s %s: %w", flag, arg, err)
			}
		}
		if !matched {
			return fmt.Errorf("%s %s: no endpoint has that name", flag, arg)
		}
	}
	return nil
}

// parseEndpoint reads NAME=URL or URL. The URL may end in /v1 or stand before it.
func parseEndpoint(arg string) (name string, base *url.URL, err error) {
	name, raw, named := strings.Cut(arg, "=")
	if !named || strings.Contains(name, "/") {
		name, raw = "", arg
	}
	u, err := url.Parse(raw)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return "", nil, fmt.Errorf("--endpoint %s: want NAME=URL, the URL as in http://127.0.0.1:8080", arg)
	}
	u.Path = strings.TrimSuffix(u.Path, "/")
	if !strings.HasSuffix(u.Path, "/v1") {
		u.Path += "/v1"
	}
	return cmp.Or(name, u.Host), u, nil
}

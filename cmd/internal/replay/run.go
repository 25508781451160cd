package replay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"time"
)

// maxSpeed is where all of a trace comes at once.
const maxSpeed = 1e9

// Options are the command's.
type Options struct {
	Path      string // of the trace
	Synthetic string // instead of it: chat, shared-prefix, agents or unrelated
	Limit     int    // requests, 0: all
	Policies  string // a,b,c or all
	Seed      uint64
	Seeds     int // runs with Seed, Seed+1 …, of which the medians are shown
	JSON      bool
	Fleet     Fleet

	BaseURL string // replay over HTTP instead of simulating
	HTTP    HTTPOptions
}

// Run does what the options say and writes the results to stdout.
func Run(ctx context.Context, o Options, stdout, stderr io.Writer) error {
	t, err := o.trace()
	if err != nil {
		return err
	}
	if o.BaseURL != "" {
		r, err := overHTTP(ctx, t, o, stderr)
		if err != nil {
			return err
		}
		return write(stdout, []Result{r}, o.JSON)
	}
	names, err := policyNames(o.Policies)
	if err != nil {
		return err
	}
	if !o.JSON {
		fmt.Fprintf(stdout, "%d requests, %.1f%% of their prompt tokens could be hit by one infinite cache; %d replicas of %d KV tokens, speed %g\n",
			len(t.Rows), 100*t.best(), o.Fleet.Replicas, o.Fleet.KVTokens, o.Fleet.Speed)
	}
	var results []Result
	for _, name := range names {
		start := time.Now()
		var runs []Result
		for i := range max(1, o.Seeds) {
			r, err := Simulate(ctx, t, o.Fleet, name, o.Seed+uint64(i))
			if err != nil {
				return err
			}
			runs = append(runs, r)
		}
		fmt.Fprintf(stderr, "%s: %d run(s) in %.2f s\n", name, len(runs), time.Since(start).Seconds())
		results = append(results, median(runs))
	}
	return write(stdout, results, o.JSON)
}

func (o *Options) trace() (*Trace, error) {
	switch {
	case o.Synthetic != "" && o.Path != "":
		return nil, errors.New("a trace and --synthetic: only one of them")
	case o.Synthetic != "":
		return Synthetic(o.Synthetic, o.Seed, o.Limit)
	default:
		return Load(o.Path, o.Limit)
	}
}

func write(w io.Writer, results []Result, asJSON bool) error {
	if !asJSON {
		return table(w, results)
	}
	b, err := json.MarshalIndent(results, "", "  ")
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "%s\n", b)
	return err
}

// policyNames reads a list of policies.
func policyNames(list string) ([]string, error) {
	if list == "all" {
		return AllPolicies(), nil
	}
	names := strings.Split(list, ",")
	known := strings.Join(Policies(), ",") + ","
	for i, n := range names {
		if names[i] = strings.TrimSpace(n); names[i] == "" || !strings.Contains(","+known, ","+names[i]+",") {
			return nil, fmt.Errorf("policy %q: want all or some of %s", n, strings.Join(Policies(), ", "))
		}
	}
	return names, nil
}

// ParseSlow reads "1x3,4x2": replica 1 is three times slower, replica 4 twice.
func ParseSlow(list string, replicas int) (map[int]float64, error) {
	slow := map[int]float64{}
	for part := range strings.SplitSeq(list, ",") {
		if part == "" {
			continue
		}
		number, factor, _ := strings.Cut(part, "x")
		i, err1 := strconv.Atoi(number)
		f, err2 := strconv.ParseFloat(factor, 64)
		if err1 != nil || err2 != nil || i < 0 || i >= replicas || !(f > 0) || math.IsInf(f, 1) {
			return nil, fmt.Errorf("%q: want REPLICAxFACTOR as in 1x3, replicas 0 to %d", part, replicas-1)
		}
		slow[i] = f
	}
	return slow, nil
}

// Validate finds values that no run can have.
func (o *Options) Validate() error {
	switch f := &o.Fleet; {
	case f.Replicas < 1 || f.Replicas > 10000:
		return fmt.Errorf("--replicas %d: want 1 to 10000", f.Replicas)
	case f.KVTokens < 1024:
		return fmt.Errorf("--kv-tokens %d: want at least 1024", f.KVTokens)
	case !(f.Speed > 0 && f.Speed <= maxSpeed):
		return fmt.Errorf("--speed %g: want more than 0, %g at most", f.Speed, maxSpeed)
	case !(f.Unstreamed >= 0 && f.Unstreamed <= 1):
		return fmt.Errorf("--unstreamed %g: want a share, 0 to 1", f.Unstreamed)
	case !(f.Credit >= 0) || math.IsInf(f.Credit, 1):
		return fmt.Errorf("--waiting-credit %g: want 0 or more", f.Credit)
	case o.HTTP.Most < 0:
		return fmt.Errorf("--concurrency %d: want 0 or more", o.HTTP.Most)
	case o.Limit < 0:
		return fmt.Errorf("--limit %d: want 0 or more", o.Limit)
	case o.Seeds < 1:
		return fmt.Errorf("--seeds %d: want at least 1", o.Seeds)
	}
	_, err := policyNames(o.Policies)
	return err
}

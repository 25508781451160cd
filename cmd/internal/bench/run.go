package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/schollz/progressbar/v3"
)

// FailedAsserts is what Run returns when the figures are not as asserted.
type FailedAsserts []string

func (f FailedAsserts) Error() string { return "assertions failed:\n  " + strings.Join(f, "\n  ") }

// bench is one run of the command.
type bench struct {
	o         Options
	endpoints []*Endpoint
	phases    []Phase
	results   []*result
	stdout    io.Writer
	stderr    io.Writer
}

// Run puts the phases' load on the endpoints, in turn, and writes the figures.
func Run(ctx context.Context, o Options, getenv func(string) (string, bool), stdout, stderr io.Writer) error {
	b := &bench{o: o, stdout: stdout, stderr: stderr}
	var err error
	if b.phases, err = o.phases(); err != nil {
		return err
	}
	if b.endpoints, err = o.endpoints(getenv); err != nil {
		return err
	}
	var then []endpointRows
	if o.Baseline != "" { // before the load, so that a wrong name costs nothing
		if then, err = loadRows(o.Baseline); err != nil {
			return fmt.Errorf("--baseline: %w", err)
		}
	}
	if o.Out != "" { // likewise
		f, err := os.OpenFile(o.Out, os.O_WRONLY|os.O_CREATE, 0o644)
		if err != nil {
			return fmt.Errorf("--out: %w", err)
		}
		f.Close()
	}
	if err := b.prepare(ctx); err != nil {
		return err
	}
	if err := b.load(ctx); err != nil {
		if len(b.results) == 0 {
			return err
		}
		b.o.Asserts = nil // what ended early is no answer to them
		return errors.Join(err, b.report(then))
	}
	return b.report(then)
}

// prepare finds models and the lengths of prompts.
func (b *bench) prepare(ctx context.Context) error {
	for i, e := range b.endpoints {
		e.number = uint64(i) + 1
		if err := e.findModel(ctx); err != nil {
			return err
		}
		e.findInfo(ctx)
		if !b.o.Calibrate {
			continue
		}
		var lengths []int
		for _, p := range b.phases {
			if p.Trace == "" && !p.scoring {
				lengths = append(lengths, p.Input)
			}
		}
		if err := e.calibrate(ctx, b.o.Seed, lengths); err != nil {
			return err
		}
		fmt.Fprintf(b.stderr, "%s: model %s, a prompt of n words has %.1f + %.3f n tokens\n", e.Name, e.Model, e.scale.template, e.scale.perWord)
	}
	return nil
}

// load runs every phase, the endpoints taking turns; who is first changes from
// run to run.
func (b *bench) load(ctx context.Context) error {
	for n := range b.phases {
		for run := range b.o.Runs {
			for i := range b.endpoints {
				e := b.endpoints[(i+run)%len(b.endpoints)]
				r, err := b.one(ctx, &b.phases[n], e, uint64(n*b.o.Runs+run))
				if err != nil {
					return err
				}
				b.results = append(b.results, r)
			}
		}
	}
	return nil
}

func (b *bench) one(ctx context.Context, p *Phase, e *Endpoint, run uint64) (*result, error) {
	scripts, err := p.plan(e, b.o.Seed, run)
	if err != nil {
		return nil, err
	}
	count := 0
	for _, s := range scripts {
		count += len(s.turns)
	}
	what := p.Name + " on " + e.Name
	step, finish := b.progress(what, count)
	l := &loader{endpoint: e, phase: p, done: step}
	r := l.run(ctx, scripts)
	finish()
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("interrupted in %s after %d of %d requests", what, len(r.samples), count)
	}
	return r, nil
}

// progress shows how far a phase is: a bar, or, where no terminal is, a line at
// its end.
func (b *bench) progress(what string, count int) (step func(*sample), finish func()) {
	if !b.o.Bar {
		start := time.Now()
		return func(*sample) {}, func() {
			fmt.Fprintf(b.stderr, "%s: %d requests in %.1f s\n", what, count, time.Since(start).Seconds())
		}
	}
	bar := progressbar.NewOptions(count, progressbar.OptionSetWriter(b.stderr), progressbar.OptionSetDescription(what),
		progressbar.OptionShowCount(), progressbar.OptionShowIts(), progressbar.OptionSetItsString("req"),
		progressbar.OptionThrottle(100*time.Millisecond), progressbar.OptionClearOnFinish())
	return func(*sample) { _ = bar.Add(1) }, func() { _ = bar.Finish() }
}

// rows are the figures of each endpoint, one row a phase.
func (b *bench) rows() []endpointRows {
	var all []endpointRows
	for _, e := range b.endpoints {
		er := endpointRows{name: e.Name}
		for i := range b.phases {
			var runs []Row
			for _, r := range b.results {
				if r.endpoint == e && r.phase == &b.phases[i] {
					runs = append(runs, rowOf(r))
				}
			}
			if len(runs) > 0 { // none of what an interrupted run did not come to
				er.rows = append(er.rows, merge(runs))
			}
		}
		all = append(all, er)
	}
	return all
}

// report writes tables and files, then judges.
func (b *bench) report(then []endpointRows) error {
	all := b.rows()
	if err := writeTable(b.stdout, all); err != nil {
		return err
	}
	if len(all) > 1 {
		fmt.Fprintln(b.stdout)
		if err := writeEndpoints(b.stdout, all); err != nil {
			return err
		}
	}
	if then != nil {
		fmt.Fprintln(b.stdout)
		if err := writeBaseline(b.stdout, all, then); err != nil {
			return err
		}
	}
	if b.o.Out != "" {
		if err := b.write(all); err != nil {
			return fmt.Errorf("--out: %w", err)
		}
	}
	var failed FailedAsserts
	for _, text := range b.o.Asserts {
		a, err := parseAssert(text)
		if err != nil {
			return err
		}
		failed = append(failed, a.check(all)...)
	}
	if len(failed) > 0 {
		return failed
	}
	return nil
}

// write writes --out: an object of endpoint → rows, or bench_serving's list.
func (b *bench) write(all []endpointRows) error {
	var v any
	if b.o.Format == formatServing {
		var list []serving
		for _, r := range b.results {
			list = append(list, servingOf(r))
		}
		v = list
	} else {
		object := map[string][]Row{}
		for _, er := range all {
			object[er.name] = slices.Clone(er.rows)
		}
		v = object
	}
	text, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(b.o.Out, append(text, '\n'), 0o644)
}

package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
)

// report writes a table for each case: medians over the rounds, and the median
// of the ratios to nginx (or to the first target) within each round.
func report(w io.Writer, all []measurement) error {
	targets := distinct(all, func(m measurement) string { return m.Target })
	base := targets[0]
	if slices.Contains(targets, "nginx") {
		base = "nginx"
	}
	for _, name := range distinct(all, func(m measurement) string { return m.Case }) {
		var rows [][]string
		for _, t := range targets {
			rows = append(rows, row(all, name, t, base))
		}
		c := slices.IndexFunc(allCases(), func(l *load) bool { return l.name == name })
		fmt.Fprintf(w, "\n%s: %s\n\n", name, allCases()[c].what)
		head := []string{"", "throughput", "CPU", "requests/s", "CPU ms/request", "p50 ms", "p99 ms", "peak MiB", "pace", "KiB/stream", "allocs/request", "errors"}
		if err := markdown(w, head, rows); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(w, "\nThroughput and CPU: against %s = 1, medians of the ratios within each round. The rest: medians.\n", base)
	return err
}

func distinct(all []measurement, of func(measurement) string) []string {
	var names []string
	for _, m := range all {
		if n := of(m); !slices.Contains(names, n) {
			names = append(names, n)
		}
	}
	return names
}

func row(all []measurement, name, target, base string) []string {
	mine, theirs := pick(all, name, target), pick(all, name, base)
	ratio := func(of func(measurement) float64) string {
		var v []float64
		for i := range min(len(mine), len(theirs)) {
			if b := of(theirs[i]); b > 0 && of(mine[i]) > 0 {
				v = append(v, of(mine[i])/b)
			}
		}
		return number2(median(v))
	}
	med := func(of func(measurement) float64) string { return number2(median(values(mine, of))) }
	errs := 0
	for _, m := range mine {
		errs += m.Errors
	}
	cpu := func(m measurement) float64 { return m.CPU }
	return []string{
		target, ratio(func(m measurement) float64 { return m.PerSecond }), ratio(cpu),
		med(func(m measurement) float64 { return m.PerSecond }), med(cpu),
		med(func(m measurement) float64 { return m.P50 }), med(func(m measurement) float64 { return m.P99 }),
		med(func(m measurement) float64 { return m.Peak }), med(func(m measurement) float64 { return m.Pace }),
		number2(slices.Max(append(values(mine, func(m measurement) float64 { return m.PerStream }), 0))),
		med(func(m measurement) float64 { return m.Allocs }), fmt.Sprint(errs),
	}
}

func values(some []measurement, of func(measurement) float64) []float64 {
	var v []float64
	for _, m := range some {
		v = append(v, of(m))
	}
	return v
}

// pick are a target's measurements of a case, by round.
func pick(all []measurement, name, target string) []measurement {
	var some []measurement
	for _, m := range all {
		if m.Case == name && m.Target == target {
			some = append(some, m)
		}
	}
	slices.SortFunc(some, func(a, b measurement) int { return a.Round - b.Round })
	return some
}

func median(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	slices.Sort(v)
	return (v[(len(v)-1)/2] + v[len(v)/2]) / 2
}

func number2(v float64) string {
	switch {
	case v == 0:
		return "–"
	case v >= 1000:
		return fmt.Sprintf("%.0f", v)
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	case v >= 1:
		return fmt.Sprintf("%.2f", v)
	default:
		return fmt.Sprintf("%.3f", v)
	}
}

// markdown writes a table, without the columns that say nothing.
func markdown(w io.Writer, head []string, rows [][]string) error {
	keep := func(i int) bool {
		return i == 0 || slices.ContainsFunc(rows, func(r []string) bool { return r[i] != "–" && r[i] != "0" })
	}
	line := func(r []string) string {
		var cells []string
		for i, c := range r {
			if keep(i) {
				cells = append(cells, c)
			}
		}
		return "| " + strings.Join(cells, " | ") + " |\n"
	}
	var b strings.Builder
	b.WriteString(line(head))
	rule := slices.Clone(head)
	for i := range rule {
		rule[i] = "---:"
	}
	rule[0] = "---"
	b.WriteString(line(rule))
	for _, r := range rows {
		b.WriteString(line(r))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

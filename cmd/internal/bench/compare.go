package bench

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"text/tabwriter"
)

// compared are the figures that are set against an earlier run's, and which way
// is better.
func compared() []struct {
	name   string
	better string
} {
	return []struct{ name, better string }{
		{"ttft_med", "less"},
		{"ttft_p99", "less"},
		{"tpot_med", "less"},
		{"itl_p99", "less"},
		{"lat_med", "less"},
		{"in_tput", "more"},
		{"out_tput", "more"},
		{"completed", "more"},
		{"errors", "less"},
	}
}

// loadRows reads a file of rows: endpoint → rows, or a list of rows.
func loadRows(path string) ([]endpointRows, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var list []Row
	if json.Unmarshal(b, &list) == nil {
		return []endpointRows{{"", list}}, nil
	}
	var parts map[string]json.RawMessage
	if err := json.Unmarshal(b, &parts); err != nil {
		return nil, fmt.Errorf("%s: want an object of endpoint → rows, as --out writes it: %w", path, err)
	}
	var all []endpointRows
	for name, raw := range parts {
		var rows []Row
		if json.Unmarshal(raw, &rows) == nil && len(rows) > 0 && rows[0].Phase != "" { // other notes may stand beside them
			all = append(all, endpointRows{name, rows})
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%s: no rows in it", path)
	}
	slices.SortFunc(all, func(a, b endpointRows) int {
		if a.name < b.name {
			return -1
		}
		return 1
	})
	return all, nil
}

// writeBaseline sets each row against the earlier one of the same phase: that
// of the same endpoint, or, where there is none of that name, every one.
func writeBaseline(w io.Writer, now, then []endpointRows) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "phase\tendpoint\tfigure\tnow\tbaseline\tof\tchange\t\t")
	n := 0
	for _, er := range now {
		old := then
		if i := slices.IndexFunc(then, func(o endpointRows) bool { return o.name == er.name }); i >= 0 {
			old = then[i : i+1]
		}
		for i := range er.rows {
			for _, o := range old {
				n += compareRow(t, er.name, &er.rows[i], o)
			}
		}
	}
	if n == 0 {
		fmt.Fprintln(t, "no phase is in both\t\t\t\t\t\t\t\t")
	}
	return t.Flush()
}

// compareRow writes the figures that both rows have, and returns their number.
func compareRow(t io.Writer, name string, row *Row, old endpointRows) int {
	i := slices.IndexFunc(old.rows, func(r Row) bool { return r.Phase == row.Phase })
	if i < 0 {
		return 0
	}
	n := 0
	for _, c := range compared() {
		now, then := row.each(c.name), old.rows[i].each(c.name)
		if now == 0 && then == 0 || then == 0 && c.name != "errors" {
			continue
		}
		change, verdict := "", ""
		if then != 0 {
			change = fmt.Sprintf("%+.1f %%", 100*(now/then-1))
		}
		switch {
		case now == then:
		case (now < then) == (c.better == "less"):
			verdict = "better"
		default:
			verdict = "worse"
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t\n", row.Phase, name, c.name, figure(now), figure(then), old.name, change, verdict)
		n++
	}
	return n
}

// writeEndpoints sets the endpoints of one run against the first of them.
func writeEndpoints(w io.Writer, all []endpointRows) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(t, "phase\tendpoint\tcompleted\tTTFT\tTPOT\tlatency\tout tok/s\tof %s's\t\n", all[0].name)
	for _, phase := range phasesOf(all) {
		i := slices.IndexFunc(all[0].rows, func(r Row) bool { return r.Phase == phase })
		if i < 0 {
			continue
		}
		first := &all[0].rows[i]
		for _, er := range all[1:] {
			for k := range er.rows {
				if r := &er.rows[k]; r.Phase == phase {
					fmt.Fprintf(t, "%s\t%s\t%d of %d\t%s\t%s\t%s\t%s\t\t\n", phase, er.name, r.Completed, r.Completed+r.Errors,
						times(r.TTFTMed, first.TTFTMed), times(r.TPOTMed, first.TPOTMed), times(r.LatMed, first.LatMed), times(r.OutTput, first.OutTput))
				}
			}
		}
	}
	return t.Flush()
}

func times(v, of float64) string {
	if v == 0 || of == 0 {
		return "–"
	}
	return fmt.Sprintf("× %.3g", v/of)
}

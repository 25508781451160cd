package bench

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// endpointRows are the rows of one endpoint, in the order of the phases.
type endpointRows struct {
	name string
	rows []Row
}

// writeTable writes the figures, phase by phase with the endpoints side by side.
func writeTable(w io.Writer, all []endpointRows) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "phase\tbatch\tin→out\tendpoint\tdone\terrors\thung\tTTFT s\tp99\tTPOT ms\tp99\tITL ms\tp99\tlatency s\tp99\tin tok/s\tout tok/s\twall s\t")
	for _, phase := range phasesOf(all) {
		for _, er := range all {
			for i := range er.rows {
				if r := &er.rows[i]; r.Phase == phase {
					fmt.Fprintf(t, "%s\t%d\t%d→%d\t%s\t%d\t%d\t%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t\n",
						r.Phase, r.Batch, r.Input, r.Output, er.name, r.Completed, r.Errors, r.Hung,
						figure(r.TTFTMed), figure(r.TTFTP99), figure(1000*r.TPOTMed), figure(1000*r.TPOTP99), figure(1000*r.ITLMed), figure(1000*r.ITLP99),
						figure(r.LatMed), figure(r.LatP99), figure(r.InTput), figure(r.OutTput), figure(r.Wall))
				}
			}
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	return writeErrors(w, all)
}

// phasesOf lists the phases in their order, each once.
func phasesOf(all []endpointRows) []string {
	var names []string
	seen := map[string]bool{}
	for _, er := range all {
		for _, r := range er.rows {
			if !seen[r.Phase] {
				seen[r.Phase] = true
				names = append(names, r.Phase)
			}
		}
	}
	return names
}

// figure writes three digits that matter, a dash for what was not measured.
func figure(v float64) string {
	switch {
	case v == 0:
		return "–"
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	case v >= 1:
		return fmt.Sprintf("%.2f", v)
	default:
		return fmt.Sprintf("%.3g", v)
	}
}

// writeErrors says what was refused, hung or could not be scored.
func writeErrors(w io.Writer, all []endpointRows) error {
	var b strings.Builder
	for _, er := range all {
		for _, row := range er.rows {
			for _, r := range row.Refusals {
				fmt.Fprintf(&b, "  %s on %s: %s\n", row.Phase, er.name, r.String())
			}
			if row.Counted {
				fmt.Fprintf(&b, "  %s on %s: no usage was reported; its tokens are counted events\n", row.Phase, er.name)
			}
		}
	}
	if b.Len() == 0 {
		return nil
	}
	_, err := fmt.Fprintf(w, "\n%s", b.String())
	return err
}

func (r refusal) String() string {
	s := fmt.Sprintf("%d × %s", r.Count, r.Kind)
	if r.Code != "" {
		s += " " + r.Code
	}
	s += fmt.Sprintf(" after %s s in the median, %s at most", figure(r.TookMed), figure(r.TookMax))
	switch {
	case r.Told > 0 && r.Told < r.Count:
		s += fmt.Sprintf(", Retry-After %s s in the median, %s at most, none on %d", figure(r.WaitMed), figure(r.WaitMax), r.Count-r.Told)
	case r.Told > 0:
		s += fmt.Sprintf(", Retry-After %s s in the median, %s at most", figure(r.WaitMed), figure(r.WaitMax))
	case strings.HasPrefix(r.Kind, "HTTP 429") || strings.HasPrefix(r.Kind, "HTTP 503"):
		s += ", no Retry-After"
	}
	if r.Message != "" {
		s += fmt.Sprintf(": %.160s", r.Message)
	}
	return s
}

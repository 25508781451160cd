package bench

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// assertion is a bound on a figure of every row, or of those of one endpoint,
// one phase or both: [ENDPOINT/][PHASE:]NAME OP NUMBER.
type assertion struct {
	text            string
	endpoint, phase string
	name            string
	factor          float64 // 1000 for a figure in seconds that is asked for in ms
	op              string
	bound           float64
}

func parseAssert(s string) (assertion, error) {
	form := regexp.MustCompile(`^(?:([^/]+)/)?(?:([^/:]+):)?([a-z0-9_]+)\s*(<=|>=|==|!=|<|>)\s*([-+0-9.eE]+)$`)
	m := form.FindStringSubmatch(strings.TrimSpace(s))
	if m == nil {
		return assertion{}, fmt.Errorf("--assert %q: want [ENDPOINT/][PHASE:]NAME, one of < <= > >= == !=, and a number, as in 'ttft_p99_ms<500'", s)
	}
	a := assertion{text: s, endpoint: m[1], phase: m[2], name: m[3], factor: 1, op: m[4]}
	var err error
	if a.bound, err = strconv.ParseFloat(m[5], 64); err != nil {
		return a, fmt.Errorf("--assert %q: %q is no number", s, m[5])
	}
	if base, ms := strings.CutSuffix(a.name, "_ms"); ms {
		a.name, a.factor = base, 1000
	}
	if !slices.Contains(valueNames(), a.name) {
		return a, fmt.Errorf("--assert %q: no figure %s; there are %s, times in seconds, with _ms added in milliseconds", s, a.name, strings.Join(valueNames(), ", "))
	}
	return a, nil
}

// check returns what is wrong with the rows, "" if nothing is. An assertion
// that no row is about fails too, as does one about a figure of a phase that
// completed nothing, or did not measure it. Requests for log-probabilities have
// no first token, and are nothing that its time is about.
func (a *assertion) check(all []endpointRows) []string {
	var wrong []string
	seen := false
	for _, er := range all {
		if a.endpoint != "" && a.endpoint != er.name {
			continue
		}
		for i := range er.rows {
			row := &er.rows[i]
			if a.phase != "" && a.phase != row.Phase {
				continue
			}
			v, _ := row.value(a.name)
			_, figure := row.figures()[a.name]
			unmeasured := v == 0 && a.ofTokens()
			if unmeasured && row.Output == 0 {
				continue
			}
			seen = true
			switch {
			case figure && row.Completed == 0:
				wrong = append(wrong, fmt.Sprintf("%s: %s on %s completed no request", a.text, row.Phase, er.name))
			case unmeasured:
				wrong = append(wrong, fmt.Sprintf("%s: %s on %s has none: it is of streams of several tokens", a.text, row.Phase, er.name))
			case !a.holds(v * a.factor):
				wrong = append(wrong, fmt.Sprintf("%s: %s on %s has %.6g", a.text, row.Phase, er.name, v*a.factor))
			}
		}
	}
	if !seen {
		wrong = append(wrong, fmt.Sprintf("%s: no row is about that", a.text))
	}
	return wrong
}

// ofTokens says whether it is about times that only streamed tokens have.
func (a *assertion) ofTokens() bool {
	kind, _, _ := strings.Cut(a.name, "_")
	return kind == "ttft" || kind == "tpot" || kind == "itl"
}

func (a *assertion) holds(v float64) bool {
	switch a.op {
	case "<":
		return v < a.bound
	case "<=":
		return v <= a.bound
	case ">":
		return v > a.bound
	case ">=":
		return v >= a.bound
	case "==":
		return v == a.bound
	default:
		return v != a.bound
	}
}

package engine

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"strconv"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// families are the metric families that one question needs, by name.
type families map[string]*dto.MetricFamily

// parseMetrics reads the named families out of a text exposition. The text of
// a real engine has thousands of lines, most of them histogram buckets, and a
// gateway may read hundreds of them a second: lines of other families are cut
// away before anything is parsed.
func parseMetrics(text []byte, names ...string) (families, error) {
	kept := keepFamilies(text, names)
	parser := expfmt.NewTextParser(model.UTF8Validation)
	fs, err := parser.TextToMetricFamilies(bytes.NewReader(kept))
	if err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	return fs, nil
}

// keepFamilies copies the samples of the named families. Their HELP and TYPE
// lines are left out: all are then untyped, and a histogram's _sum and _count
// are families of their own that are named like any other.
func keepFamilies(text []byte, names []string) []byte {
	var kept []byte
	for len(text) > 0 {
		line := text
		if i := bytes.IndexByte(text, '\n'); i >= 0 {
			line, text = text[:i+1], text[i+1:]
		} else {
			text = nil
		}
		if line[0] == '#' || line[0] == '\n' {
			continue
		}
		end := bytes.IndexAny(line, "{ \t")
		if end <= 0 {
			continue
		}
		if slices.Contains(names, string(line[:end])) {
			kept = append(kept, line...)
		}
	}
	if n := len(kept); n > 0 && kept[n-1] != '\n' {
		kept = append(kept, '\n')
	}
	return kept
}

// label is the value of one label; "" where the sample has no such.
func label(m *dto.Metric, name string) string {
	for _, p := range m.GetLabel() {
		if p.GetName() == name {
			return p.GetValue()
		}
	}
	return ""
}

// sample is the number of an untyped sample; NaN counts as 0.
func sample(m *dto.Metric) float64 {
	v := m.GetUntyped().GetValue()
	if math.IsNaN(v) {
		return 0
	}
	return v
}

// rankOf is the rank that a sample belongs to, by the given label; 0 without one.
func rankOf(m *dto.Metric, name string) int {
	n, err := strconv.Atoi(label(m, name))
	if err != nil {
		return 0
	}
	return n
}

// perRank adds up a family's samples by rank.
func (fs families) perRank(family, rankLabel string) map[int]float64 {
	sums := make(map[int]float64)
	for _, m := range fs[family].GetMetric() {
		sums[rankOf(m, rankLabel)] += sample(m)
	}
	return sums
}

// perRankMax is the largest of a family's samples for each rank: where several
// schedulers of one rank report, they report the same.
func (fs families) perRankMax(family, rankLabel string) map[int]float64 {
	most := make(map[int]float64)
	for _, m := range fs[family].GetMetric() {
		rank := rankOf(m, rankLabel)
		most[rank] = max(most[rank], sample(m))
	}
	return most
}

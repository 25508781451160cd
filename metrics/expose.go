package metrics

import (
	"fmt"
	"io"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"
)

// ContentType is the form in which a scraper with this Accept header gets the
// page: text, or OpenMetrics, which alone can carry exemplars.
func ContentType(accept string) string {
	return string(expfmt.NegotiateAccept(http.Header{"Accept": {accept}}, expfmt.DefaultOpenMetricsAcceptedFormats()...))
}

// Write gathers g and writes its page in the form that ContentType named.
func Write(w io.Writer, g prometheus.Gatherer, contentType string) error {
	families, err := g.Gather()
	if err != nil {
		return fmt.Errorf("gather metrics: %w", err)
	}
	enc := expfmt.NewEncoder(w, expfmt.Format(contentType))
	for _, family := range families {
		if err := enc.Encode(family); err != nil {
			return fmt.Errorf("write metric %s: %w", family.GetName(), err)
		}
	}
	if end, ok := enc.(expfmt.Closer); ok {
		return end.Close()
	}
	return nil
}

package gateway

import (
	"net/http"
	"time"

	"penstock/metrics"
)

// adminLimits tells every key's use of its limits.
func (s *Server) adminLimits(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, s.limitObjects(time.Now()))
}

// adminReset fills a key's buckets again.
func (s *Server) adminReset(w http.ResponseWriter, r *http.Request) {
	writeError(w, internalError(nil))
}

func (s *Server) limitObjects(time.Time) any { return nil }

func (s *Server) limitGauges(time.Time) ([]metrics.KeyGauges, []metrics.LimitGauge) { return nil, nil }

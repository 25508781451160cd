package e2e

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"sync/atomic"
	"testing"
	"time"

	"penstock/e2e/harness"
)

// TestExemplarsLeadFromMetricsToTraces runs the binary with a collector.
func TestExemplarsLeadFromMetricsToTraces(t *testing.T) {
	var batches atomic.Int64
	collector := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { batches.Add(1) }))
	defer collector.Close()
	gateway := harness.Serve(t, fmt.Sprintf("models: [{name: m, engines: [{local: {replicas: 1}}]}]\ntracing: {endpoint: %q, sample: 1}\n", collector.URL))
	post(t, gateway.URL+"/v1/completions", `{"model":"m","prompt":"hello","max_tokens":4,"stream":true}`)
	exemplar := regexp.MustCompile(`penstock_time_to_first_token_seconds_bucket\{[^}]*\} \d+ # \{trace_id="[0-9a-f]{32}"\}`)
	harness.Eventually(t, 10*time.Second, "an exemplar and its trace", func() error {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, gateway.Admin+"/metrics", nil)
		if err != nil {
			return err
		}
		req.Header.Set("Accept", "application/openmetrics-text; version=1.0.0")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		page, err := io.ReadAll(resp.Body)
		if err != nil || !exemplar.Match(page) || batches.Load() == 0 {
			return fmt.Errorf("exemplar %v, batches of spans %d, %w", exemplar.Match(page), batches.Load(), err)
		}
		return nil
	})
}

package e2e

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"penstock/e2e/faulty"
	"penstock/e2e/harness"
)

// TestTheLargestEvents sends the real thing: 16 MB in one event.
func TestTheLargestEvents(t *testing.T) {
	const envelope = len(`data: `) + len("\n\n")
	fits := strings.Repeat("x", 16<<20-envelope-len(faulty.Chunk("")))
	for _, c := range []struct {
		name, text string
		passes     bool
	}{{"as large as max_event", fits, true}, {"a byte larger", fits + "x", false}} {
		t.Run(c.name, func(t *testing.T) {
			event := "data: " + faulty.Chunk(c.text) + "\n\n"
			s := faulty.Start(t, faulty.Serving("m", faulty.Always(func(f *faulty.Conn) {
				f.Stream()
				f.Event(faulty.Chunk("Hello"))
				f.Chunk(event)
				f.Event(faulty.Done)
				f.End()
			})))
			gateway := harness.Serve(t, fmt.Sprintf("models: [{name: m, engines: [{url: %q, kind: openai}]}]\n", s.URL))
			resp, err := http.Post(gateway.URL+"/v1/chat/completions", "application/json", strings.NewReader(`{"model":"m","stream":true,"messages":[{"role":"user","content":"x"}]}`))
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			body, err := io.ReadAll(resp.Body)
			whole := err == nil && strings.HasSuffix(string(body), event+"data: [DONE]\n\n")
			failed := err != nil && strings.Contains(string(body[max(0, len(body)-1000):]), `"code":"upstream_error"`) && len(body) < 4096
			if whole != c.passes || failed == c.passes {
				t.Errorf("got %d bytes ending in %.200q and then %v, want it to pass: %v", len(body), body[max(0, len(body)-200):], err, c.passes)
			}
		})
	}
}

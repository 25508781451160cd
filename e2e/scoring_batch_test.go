package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"penstock/e2e/harness"
)

// TestABatchIsScoredByAllReplicas: 64 prompts over four replicas take less than 0.3 of the time on one.
func TestABatchIsScoredByAllReplicas(t *testing.T) {
	const prompts, size = 64, 1024
	list := make([]string, prompts)
	for i := range list {
		list[i] = idList(i, size)
	}
	body := fmt.Sprintf(`{"model":%q,"prompt":[%s],"echo":true,"logprobs":0,"max_tokens":1,"temperature":0}`, localModel, strings.Join(list, ","))
	// At half the pace: what the gateway and this test do themselves is then small beside it.
	var urls []string
	for _, n := range []int{1, 4} {
		urls = append(urls, laneGateway(t, fmt.Sprintf("{url: %s}", laneEngine(t, n, 0.5).URL), "max_wait: 4m").URL)
	}
	took := func(url string) time.Duration {
		began := time.Now()
		a := post(t, url+"/v1/completions", body)
		d := time.Since(began)
		got := decode[echoAnswer](t, a.body)
		if a.status != http.StatusOK || len(got.Choices) != prompts || got.Usage.Prompt != prompts*size {
			t.Fatalf("%d, %d choices, usage %+v, want all %d prompts", a.status, len(got.Choices), got.Usage, prompts)
		}
		return d
	}
	var shares []float64
	for range 3 { // a busy machine holds up one or the other
		one, four := took(urls[0]), took(urls[1])
		share := float64(four) / float64(one)
		t.Logf("one replica: %v, four: %v, a share of %.3f", one.Round(time.Millisecond), four.Round(time.Millisecond), share)
		if share < 0.3 || harness.Race {
			return
		}
		shares = append(shares, share)
	}
	t.Errorf("four replicas took %.3f of the time of one, want less than 0.3", shares)
}

package engine

import (
	"fmt"
	"strings"
	"testing"
)

// Each rank is a replica, so a number out of a broken answer is refused before
// anything is made of it.
func TestNumberOfRanksIsBounded(t *testing.T) {
	var labels strings.Builder
	for rank := range maxRanks + 1 {
		fmt.Fprintf(&labels, "vllm:num_requests_running{engine=\"%d\"} 0\n", rank)
	}
	models := []byte(`{"data":[{"id":"m"}]}`)
	info := func(dp int) map[string][]byte {
		return map[string][]byte{"/v1/models": models, "/server_info": fmt.Appendf(nil, `{"model_path":"m","dp_size":%d}`, dp)}
	}
	for name, tt := range map[string]struct {
		a      adapter
		bodies map[string][]byte
		want   string
	}{
		"sglang":             {&sglang{}, info(1_000_000_000), "it tells of 1000000000 data-parallel ranks, at most 1024"},
		"sglang, one more":   {&sglang{}, info(maxRanks + 1), "at most 1024"},
		"sglang, at most":    {&sglang{}, info(maxRanks), ""},
		"vllm":               {&vllm{}, map[string][]byte{"/v1/models": models, "/metrics": []byte(labels.String())}, "it tells of 1025"},
		"the embedded one's": {&localKind{}, info(1 << 40), "at most 1024"},
	} {
		facts, err := tt.a.discover(t.Context(), replay(t, tt.bodies))
		if tt.want == "" {
			if err != nil || len(facts.Ranks) != maxRanks {
				t.Errorf("%s: got %v, want %d ranks", name, err, maxRanks)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got %v, want an error with %q", name, err, tt.want)
		}
	}
	if _, err := parseVLLMLoad([]byte(labels.String())); err == nil {
		t.Error("a load of more ranks than an engine may have was taken")
	}
}

package engine

import "testing"

// vLLM 0.32.0 with two data-parallel ranks that have served nothing yet: the
// request gauges have no samples, the configuration has one for each rank.
const vllmBeforeFirstRequest = `# TYPE vllm:num_requests_running gauge
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="32",engine="0",kv_cache_size_tokens="131072",num_gpu_blocks="8192",num_gpu_blocks_override="4096"} 1.0
vllm:cache_config_info{block_size="32",engine="1",kv_cache_size_tokens="131072",num_gpu_blocks="8192",num_gpu_blocks_override="4096"} 1.0
`

func TestVLLMRanksAreFoundBeforeTheirFirstRequest(t *testing.T) {
	ranks, _, err := parseVLLMRanks([]byte(vllmBeforeFirstRequest))
	if err != nil || len(ranks) != 2 {
		t.Fatalf("got %+v, %v; want two ranks", ranks, err)
	}
	for i, r := range ranks {
		if r.Rank != i || r.Capacity.KVTokens != 131072 || r.Capacity.PageSize != 32 {
			t.Errorf("rank %d is %+v, want 131,072 tokens in pages of 32", i, r)
		}
	}
}

package engine

import "testing"

// TestOddFieldsAreNotTold has answers of which one field is not what it is elsewhere.
func TestOddFieldsAreNotTold(t *testing.T) {
	for name, body := range map[string]string{
		"floats":         `{"model_path": "m", "dp_size": 2.0, "page_size": 64.0, "max_running_requests": 64.0, "internal_states": [{"memory_usage": {"token_capacity": 9000.0}}]}`,
		"strings":        `{"model_path": "m", "dp_size": "2", "page_size": "64", "max_running_requests": "64", "max_total_num_tokens": "9000"}`,
		"another shape":  `{"model_path": "m", "dp_size": 2, "page_size": 64, "max_running_requests": 64, "max_total_num_tokens": 9000, "internal_states": {"error": "busy"}, "version": 5}`,
		"nulls, a bool":  `{"model_path": "m", "dp_size": 2, "page_size": 64, "max_running_requests": 64, "max_total_num_tokens": 9000, "context_length": true, "internal_states": null, "version": null}`,
		"a rank's alone": `{"dp_size": 2, "page_size": 64, "max_running_requests": 64, "max_total_num_tokens": 9000, "internal_states": [{"memory_usage": "none"}, 7]}`,
	} {
		info, err := parseServerInfo([]byte(body))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		f := info.facts(nil)
		if want := (Capacity{KVTokens: 9000, MaxRunning: 32, PageSize: 64, RunningBy: "engine"}); len(f.Ranks) != 2 || f.Ranks[1].Capacity != want {
			t.Errorf("%s: ranks %+v, want two of %+v", name, f.Ranks, want)
		}
	}
}

func TestOddModelsAreListed(t *testing.T) {
	for body, want := range map[string]int{
		`{"data": [{"id": "m", "max_model_len": 4096.0}]}`:                             4096,
		`{"data": [{"id": "m", "max_model_len": null, "context_length": "4096"}]}`:     4096,
		`{"data": [{"id": "m", "context_length": "128k", "root": 5, "parent": {}}]}`:   0,
		`{"data": [{"id": null}, {"id": "m", "owned_by": false}, {"object": "list"}]}`: 0,
	} {
		served, err := parseModels([]byte(body))
		if err != nil {
			t.Errorf("%s: %v", body, err)
			continue
		}
		if infos := modelInfos(served); len(infos) != 1 || infos[0].ID != "m" || infos[0].MaxModelLen != want {
			t.Errorf("%s: %+v, want m of %d tokens", body, infos, want)
		}
	}
	for _, body := range []string{`[]`, `"x"`, `{"data": [`} {
		if _, err := parseModels([]byte(body)); err == nil {
			t.Errorf("%s was taken for a list of models", body)
		}
	}
}

func TestOddLoadsAreRead(t *testing.T) {
	loads, err := parseLoads([]byte(`{"loads": [{"dp_rank": 0, "num_running_reqs": 2.0, "num_waiting_reqs": null, "num_used_tokens": "100", "total_prefill_uncached_tokens": "7"}]}`))
	if err != nil || len(loads) != 1 || loads[0].Running != 2 || loads[0].UsedTokens != 100 || loads[0].WaitingUncached != -1 {
		t.Errorf("%+v, %v", loads, err)
	}
	loads, err = parseGetLoad([]byte(`[{"dp_rank": null, "num_reqs": 3.0, "num_waiting_reqs": "1", "num_tokens": []}]`))
	if err != nil || len(loads) != 1 || loads[0].Running != 2 || loads[0].Waiting != 1 {
		t.Errorf("%+v, %v", loads, err)
	}
}

package engine

import "testing"

func TestRankIsToldWhereTheEngineReadsIt(t *testing.T) {
	header := Addressing{HeaderName: "X-Data-Parallel-Rank", HeaderValue: "3", Ok: true}
	field := func(a Addressing, name string) Addressing {
		a.BodyField, a.BodyValue, a.Ok = name, "3", true
		return a
	}
	for _, tt := range []struct {
		tongue        Kind
		version, path string
		want          Addressing
	}{
		{KindSGLang, "0.5.23", "/v1/chat/completions", field(header, "routed_dp_rank")},
		{KindSGLang, "0.5.23", "/v1/completions", field(header, "routed_dp_rank")},
		{KindSGLang, "0.5.6", "/v1/completions", field(header, "data_parallel_rank")},
		{KindSGLang, "0.5.23", "/generate", field(Addressing{}, "routed_dp_rank")},
		{KindSGLang, "0.5.6", "/generate", field(Addressing{}, "data_parallel_rank")},
		{KindSGLang, "0.5.23", "/v1/messages", header},
		{KindSGLang, "0.5.18", "/v1/messages", Addressing{}},
		{KindSGLang, "0.5.23", "/v1/responses", header},
		{KindSGLang, "0.5.22", "/v1/responses", Addressing{}},
		{KindSGLang, "0.5.23", "/v1/score", Addressing{}},
		{KindSGLang, "0.5.23", "/tokenize", Addressing{}},
		{KindVLLM, "0.32.0", "/v1/chat/completions", header},
		{KindVLLM, "0.32.0", "/v1/completions", header},
		{KindVLLM, "0.32.0", "/v1/messages", header},
		{KindVLLM, "0.32.0", "/v1/responses", Addressing{}},
		{KindVLLM, "0.32.0", "/tokenize", Addressing{}},
		{KindOpenAI, "", "/v1/completions", Addressing{}},
	} {
		if got := address(tt.tongue, tt.version, tt.path, 3); got != tt.want {
			t.Errorf("%s %s at %s: got %+v, want %+v", tt.tongue, tt.version, tt.path, got, tt.want)
		}
	}
}

func TestVersionsAreCompared(t *testing.T) {
	for version, want := range map[string]bool{
		"0.5.6": true, "0.5.8.post1": true, "0.4.10": true, "v0.5.8": true, "0.5": true,
		"0.5.9": false, "0.5.10rc0": false, "0.5.23": false, "1.0": false, "": false, "main": false,
	} {
		if got := olderThan(version, 0, 5, 9); got != want {
			t.Errorf("%q older than 0.5.9: got %v, want %v", version, got, want)
		}
	}
}

func TestGlobalRanksOfSeveralNodes(t *testing.T) {
	e := newFake(t, KindVLLM, 2)
	eng := at(e)
	eng.ID, eng.FirstRank = "node2", 4
	f, _ := startFleet(t, quick(served("m", eng)))
	if got := ids(f); got != "node2/4 node2/5" {
		t.Fatalf("replicas of the second node: got %s, want node2/4 node2/5", got)
	}
	r := replica(t, f, "node2/5")
	if a := r.Address("/v1/completions"); a.HeaderValue != "5" || r.Rank() != 5 {
		t.Errorf("rank sent: got header %q, rank %d; want the global 5", a.HeaderValue, r.Rank())
	}
	eventually(t, "a load read by the local label", func() bool { _, ok := r.Load(); return ok })
}

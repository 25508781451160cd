package engine

import (
	"strings"
	"testing"

	"penstock/configs"
)

func TestURLAloneTellsEverything(t *testing.T) {
	sg, vl := newFake(t, KindSGLang, 4), newFake(t, KindVLLM, 4)
	f, rec := startFleet(t, quick(served("", configs.Engine{URL: sg.URL, ID: "sg"}, configs.Engine{URL: vl.URL, ID: "vl"})))
	want := "sg/0 sg/1 sg/2 sg/3 vl/0 vl/1 vl/2 vl/3"
	if got := ids(f); got != want {
		t.Fatalf("replicas of two URLs with dp 4: got %s, want %s", got, want)
	}
	for _, r := range f.Replicas() {
		wantKind, wantCap := KindSGLang, Capacity{KVTokens: 1000, MaxRunning: 64, PageSize: 16, RunningBy: "engine"}
		if strings.HasPrefix(r.ID(), "vl") {
			wantKind, wantCap = KindVLLM, Capacity{KVTokens: 992, MaxRunning: 256, PageSize: 16, RunningBy: "learned"}
		}
		if r.Kind() != wantKind || r.Capacity() != wantCap || r.Model() != "m" || !r.Usable() || r.State() != StateHealthy {
			t.Errorf("replica %s: got kind %s, %+v, model %q, state %s; want %s, %+v, m, healthy",
				r.ID(), r.Kind(), r.Capacity(), r.Model(), r.State(), wantKind, wantCap)
		}
	}
	if got := rec.count(Added); got != 8 {
		t.Errorf("Added events: got %d, want 8", got)
	}
	eventually(t, "a load from every replica", func() bool { return rec.count(LoadReported) >= 8 })
}

func TestApplyKeepsWhatStays(t *testing.T) {
	a, b := newFake(t, KindSGLang, 1), newFake(t, KindSGLang, 2)
	f, rec := startFleet(t, quick(served("m", configs.Engine{URL: a.URL, ID: "a"}, configs.Engine{URL: b.URL, ID: "b"})))
	before := replica(t, f, "a")
	apply(t, f, quick(served("m", configs.Engine{URL: a.URL, ID: "a", MaxRunning: 5})))
	if got := ids(f); got != "a" {
		t.Fatalf("replicas after the reload: got %s, want a", got)
	}
	if replica(t, f, "a") != before {
		t.Error("replica a is another after a reload that names it still")
	}
	if got := rec.count(Removed); got != 2 {
		t.Errorf("Removed events for the two ranks of b: got %d, want 2", got)
	}
}

func TestApplyIsAllOrNothing(t *testing.T) {
	a, b := newFake(t, KindSGLang, 1), newFake(t, KindSGLang, 1)
	f, _ := startFleet(t, quick(served("m", configs.Engine{URL: a.URL, ID: "a"})))
	for name, tt := range map[string]struct {
		bad  configs.Engine
		want string
	}{
		"scheme": {configs.Engine{URL: "10.0.0.1:8000", ID: "x"}, "expected http://host:port"},
		"id":     {configs.Engine{URL: b.URL, ID: "a"}, `two engines have the id "a"`},
		"kind":   {configs.Engine{URL: b.URL, Kind: "trt"}, `kind "trt" is unknown`},
		"ca":     {configs.Engine{URL: "https://h:1", TLS: configs.EngineTLS{CA: "/nowhere"}}, "tls.ca"},
	} {
		t.Run(name, func(t *testing.T) {
			err := f.Apply(t.Context(), quick(served("m", configs.Engine{URL: a.URL, ID: "a"}, tt.bad)))
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Apply with a bad engine: got %v, want an error with %q", err, tt.want)
			}
			if got := ids(f); got != "a" {
				t.Errorf("replicas after a refused reload: got %s, want a", got)
			}
		})
	}
}

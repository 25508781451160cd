package engine

import (
	"bytes"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"
)

// recorded reads a recording: its body, without the response headers that
// some begin with.
func recorded(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	if bytes.HasPrefix(b, []byte("HTTP/")) {
		_, b, _ = bytes.Cut(bytes.ReplaceAll(b, []byte("\r\n"), []byte("\n")), []byte("\n\n"))
	}
	return b
}

// exchange reads a recorded request's answer: its status and body.
func exchange(t *testing.T, name string) (status int, body []byte) {
	t.Helper()
	_, answer, ok := bytes.Cut(recorded(t, name), []byte("\n---- "))
	lines := bytes.SplitN(answer, []byte("\n"), 3)
	status, err := strconv.Atoi(string(lines[0]))
	if !ok || err != nil || len(lines) < 3 {
		t.Fatalf("%s is not a recorded exchange", name)
	}
	return status, lines[2]
}

// shared reads a file that lies beside the checkout, or skips the test.
func shared(t *testing.T, name string) []byte {
	t.Helper()
	dir := os.Getenv("PENSTOCK_SHARED")
	if dir == "" {
		dir = "../../shared"
	}
	b, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Skipf("the folder shared is not beside the checkout (or set PENSTOCK_SHARED): %v", err)
	}
	return b
}

// replay serves bodies by path; anything else is 404, as by FastAPI.
func replay(t *testing.T, bodies map[string][]byte) *client {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if body, ok := bodies[r.URL.Path]; ok {
			_, _ = w.Write(body)
			return
		}
		w.WriteHeader(http.StatusNotFound)
		_, _ = w.Write([]byte(`{"detail":"Not Found"}`))
	}))
	t.Cleanup(srv.Close)
	return &client{base: srv.URL, hc: srv.Client()}
}

func ranks(n int, c Capacity) []RankFacts {
	var rs []RankFacts
	for i := range n {
		rs = append(rs, RankFacts{Rank: i, Capacity: c})
	}
	return rs
}

func TestAdaptersReadTheRecordings(t *testing.T) {
	const sg, vl, vl2 = "sglang-0.5.23/", "vllm-0.32.0/", "vllm-0.32.0-dp2/"
	for name, tt := range map[string]struct {
		bodies map[string]string
		kind   Kind
		want   Facts
	}{
		"SGLang 0.5.23": {
			map[string]string{"/server_info": sg + "server_info.txt", "/v1/models": sg + "v1_models.txt"},
			KindSGLang,
			Facts{
				Tongue: KindSGLang, Version: "0.5.23", Models: []ModelInfo{{ID: "tiny", Root: "tiny", MaxModelLen: 8192}},
				Ranks: ranks(1, Capacity{KVTokens: 65536, MaxRunning: 4096, PageSize: 1, RunningBy: "engine"}),
			},
		},
		"vLLM 0.32.0": {
			map[string]string{"/v1/models": vl + "models.txt", "/version": vl + "version.txt", "/metrics": vl + "metrics.txt"},
			KindVLLM,
			Facts{
				Tongue: KindVLLM, Version: "0.32.0", Models: []ModelInfo{{ID: "tiny", Root: "MODEL_DIR", MaxModelLen: 8192}},
				Ranks: ranks(1, Capacity{KVTokens: 262144, MaxRunning: 256, PageSize: 128, RunningBy: "learned"}),
			},
		},
		"vLLM 0.32.0 with two ranks and overridden blocks": {
			map[string]string{"/v1/models": vl + "models.txt", "/version": vl + "version.txt", "/metrics": vl2 + "metrics.txt"},
			KindVLLM,
			Facts{
				Tongue: KindVLLM, Version: "0.32.0", Models: []ModelInfo{{ID: "tiny", Root: "MODEL_DIR", MaxModelLen: 8192}},
				Ranks: ranks(2, Capacity{KVTokens: 131072, MaxRunning: 256, PageSize: 128, RunningBy: "learned"}),
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			bodies := make(map[string][]byte)
			for path, file := range tt.bodies {
				bodies[path] = recorded(t, file)
			}
			c := replay(t, bodies)
			kind, err := probeKind(t.Context(), c)
			if err != nil || kind != tt.kind {
				t.Fatalf("probed kind: got %q, %v; want %s", kind, err, tt.kind)
			}
			checkFacts(t, c, kind, tt.want)
		})
	}
}

func checkFacts(t *testing.T, c *client, kind Kind, want Facts) {
	t.Helper()
	a, err := newAdapter(kind)
	if err != nil {
		t.Fatal(err)
	}
	got, err := a.discover(t.Context(), c)
	if err != nil {
		t.Fatalf("discover: %v", err)
	}
	want.Kind, want.Boot, want.owner = kind, got.Boot, kind
	if !reflect.DeepEqual(*got, want) {
		t.Errorf("facts:\n got %+v\nwant %+v", *got, want)
	}
}

func TestRealServerInfos(t *testing.T) {
	for file, want := range map[string]struct {
		dp       int
		capacity Capacity
	}{
		"server_info_glm52_dp4.json":     {4, Capacity{KVTokens: 2328128, MaxRunning: 256, PageSize: 64, RunningBy: "engine"}},
		"server_info_qwen3_30b_dp1.json": {1, Capacity{KVTokens: 1080523, MaxRunning: 2110, PageSize: 1, RunningBy: "engine"}},
	} {
		body := shared(t, "seeds/"+file)
		for _, path := range sglangInfoPaths { // the newer name, then only the older one
			facts, err := (&sglang{}).discover(t.Context(), replay(t, map[string][]byte{path: body}))
			if err != nil {
				t.Errorf("%s at %s: %v", file, path, err)
				continue
			}
			if !reflect.DeepEqual(facts.Ranks, ranks(want.dp, want.capacity)) {
				t.Errorf("%s at %s: got %+v, want dp %d of %+v", file, path, facts.Ranks, want.dp, want.capacity)
			}
			if facts.Boot == "" || facts.base() == "" {
				t.Errorf("%s: boot %q, model %q, want neither empty", file, facts.Boot, facts.base())
			}
		}
	}
}

func TestLoadsOfTheRecordings(t *testing.T) {
	unknown := rankLoad{requests: -1, prefillTokens: -1, prefillBusy: -1}
	one := unknown
	one.prefillTokens, one.prefillBusy = 11, 0.038016
	one.capacity = Capacity{KVTokens: 65536, MaxRunning: 4096}
	got, err := parseLoads(recorded(t, "sglang-0.5.23/v1_loads.txt"))
	if err != nil || !reflect.DeepEqual(got, []rankLoad{one}) {
		t.Errorf("/v1/loads: got %+v, %v; want %+v", got, err, one)
	}

	c := replay(t, map[string][]byte{"/metrics": recorded(t, "sglang-0.5.23/metrics-dp2.txt")})
	sg := &sglang{}
	got, err = sg.load(t.Context(), c)
	r0, r1 := unknown, unknown
	r0.WaitingUncached, r1.WaitingUncached = -1, -1
	r0.requests, r1.rank, r1.requests = 7, 1, 6
	if err != nil || !reflect.DeepEqual(got, []rankLoad{r0, r1}) {
		t.Errorf("SGLang's /metrics alone, two ranks: got %+v, %v; want %+v", got, err, []rankLoad{r0, r1})
	}
	if got := sglangLoadPaths[sg.loadPath.Load()]; got != "/metrics" {
		t.Errorf("where the load is asked next time: got %s, want /metrics", got)
	}

	got, err = parseVLLMLoad(recorded(t, "vllm-0.32.0-dp2/metrics.txt"))
	if err != nil || len(got) != 2 || got[0].requests != 9 || got[1].requests != 11 ||
		got[0].prefillTokens != 45 || got[1].rank != 1 || got[1].UsedTokens != 0 {
		t.Errorf("vLLM's /metrics, two ranks: got %+v, %v; want 9 and 11 requests", got, err)
	}

	v := &vllm{}
	v.noMetrics.Store(true)
	got, err = v.load(t.Context(), replay(t, map[string][]byte{"/load": recorded(t, "vllm-0.32.0/load.txt")}))
	if err != nil || len(got) != 1 || got[0].Running != 0 {
		t.Errorf("vLLM's /load: got %+v, %v; want one rank with nothing running", got, err)
	}
}

func TestOlderLoadEndpoint(t *testing.T) {
	for name, body := range map[string]string{
		"list":   `[{"dp_rank":0,"num_reqs":5,"num_waiting_reqs":2,"num_tokens":700},{"dp_rank":1,"num_reqs":1,"num_waiting_reqs":0}]`,
		"single": `{"dp_rank":0,"num_reqs":5,"num_waiting_reqs":2,"num_tokens":700}`,
	} {
		got, err := (&sglang{}).load(t.Context(), replay(t, map[string][]byte{"/get_load": []byte(body)}))
		if err != nil || got[0].Running != 3 || got[0].Waiting != 2 || got[0].UsedTokens != 700 {
			t.Errorf("/get_load, %s: got %+v, %v; want 3 running, 2 waiting, 700 tokens", name, got, err)
		}
	}
	if _, err := (&sglang{}).load(t.Context(), replay(t, nil)); !errors.Is(err, errNoLoad) {
		t.Errorf("an engine without any load endpoint: got %v, want errNoLoad", err)
	}
}

func TestErrorsOfTheRecordings(t *testing.T) {
	for name, want := range map[string]EngineError{
		"sglang-0.5.23/e-404.json.txt":         {Message: "Not Found"},
		"sglang-0.5.23/e-maxtok-neg.json.txt":  {Message: "max_new_tokens must be at least 0, got -1.", Type: "BadRequestError", Code: "400"},
		"sglang-0.5.23/e-too-long.json.txt":    {Message: "The input (18001 tokens) is longer than the model's context length (8192 tokens).", Type: "BadRequestError", Code: "400"},
		"vllm-0.32.0/e-404.json.txt":           {Message: "Not Found"},
		"vllm-0.32.0/e-unknown-model.json.txt": {Message: "The model `nope` does not exist. Valid aliases: tiny.", Type: "NotFoundError", Param: "model", Code: "404"},
		"vllm-0.32.0/e-too-long-out.json.txt": {
			Message: "max_tokens=100000 cannot be greater than max_model_len=8192. Please request fewer output tokens. (parameter=max_tokens, value=100000)",
			Type:    "BadRequestError", Param: "max_tokens", Code: "400",
		},
	} {
		_, body := exchange(t, name)
		if got, ok := ReadError(body); !ok || got != want {
			t.Errorf("%s: got %+v, %v; want %+v", name, got, ok, want)
		}
	}
	for name, want := range map[string]string{
		"sglang-0.5.23/e-bad-json.json.txt": "JSON decode error",
		"vllm-0.32.0/e-bad-json.json.txt":   "JSON decode error",
	} {
		_, body := exchange(t, name)
		if got, ok := ReadError(body); !ok || !strings.Contains(got.Message, want) {
			t.Errorf("%s: got %+v, want a message with %q", name, got, want)
		}
	}
	for _, body := range []string{`{"choices":[]}`, `not json`, `{"error":null}`, `[]`} {
		if got, ok := ReadError([]byte(body)); ok {
			t.Errorf("%s: got %+v, want no error in it", body, got)
		}
	}
}

func TestRefusedRanksOfTheRecordings(t *testing.T) {
	f := newFake(t, KindSGLang, 2)
	fleet, _ := startFleet(t, quick(served("m", at(f))))
	r := fleet.Replicas()[1]
	for _, name := range []string{"sglang-0.5.23/h-dprank.json.txt", "vllm-0.32.0/h-dprank.json.txt"} {
		status, body := exchange(t, name)
		if !r.RefusedRank(status, body) {
			t.Errorf("%s: status %d, %s: not seen as a refused rank", name, status, body)
		}
	}
	status, body := exchange(t, "vllm-0.32.0/e-too-long-out.json.txt")
	if r.RefusedRank(status, body) {
		t.Errorf("a client's own mistake is seen as a refused rank: %s", body)
	}
}

func BenchmarkVLLMLoad(b *testing.B) {
	body := recorded(b, "vllm-0.32.0-dp2/metrics.txt")
	b.SetBytes(int64(len(body)))
	for b.Loop() {
		if _, err := parseVLLMLoad(body); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkServerInfo(b *testing.B) {
	body := recorded(b, "sglang-0.5.23/server_info.txt")
	b.SetBytes(int64(len(body)))
	for b.Loop() {
		if _, err := parseServerInfo(body); err != nil {
			b.Fatal(err)
		}
	}
}

package replay

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// shared is a file beside the checkout; the test is skipped where it is absent.
func shared(t *testing.T, name string) string {
	t.Helper()
	dir := os.Getenv("PENSTOCK_SHARED")
	if dir == "" {
		dir = filepath.Join("..", "..", "..", "..", "shared")
	}
	path := filepath.Join(dir, "traces", name)
	if _, err := os.Stat(path); err != nil {
		t.Skipf("no trace %s: set PENSTOCK_SHARED to the folder that has traces/%s", path, name)
	}
	return path
}

// long leaves a simulation out of short runs, as under the race detector: it is
// one goroutine, which that has nothing to say about.
func long(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("a simulation of minutes under the race detector")
	}
}

func synthetic(t *testing.T, kind string, limit int) *Trace {
	t.Helper()
	tr, err := Synthetic(kind, 1, limit)
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

// runs plays the policies and returns what they did by name. One seed is enough
// for differences as large as those tested; docs/routing.md has medians.
func runs(t *testing.T, tr *Trace, f Fleet, policies ...string) map[string]Result {
	t.Helper()
	out := map[string]Result{}
	f.Credit = 0.085 // the default
	for _, p := range policies {
		r, err := Simulate(t.Context(), tr, f, p, 1)
		if err != nil {
			t.Fatal(err)
		}
		out[p] = r
	}
	return out
}

func TestPrefixHasTheLowestTTFTOfAllPolicies(t *testing.T) {
	long(t)
	conversation, err := Load(shared(t, "mooncake_conversation.jsonl.gz"), 2500)
	if err != nil {
		t.Fatal(err)
	}
	slow := Fleet{Replicas: 8, KVTokens: 1 << 20, Speed: 5, Slow: map[int]float64{1: 3}}
	for _, c := range []struct {
		name string
		t    *Trace
		f    Fleet
		p99  float64 // how far above the lowest p99 it may be
	}{
		{"conversation 5x", conversation, Fleet{Replicas: 8, KVTokens: 1 << 20, Speed: 5}, 1.1},
		{"conversation 8x", conversation, Fleet{Replicas: 8, KVTokens: 1 << 20, Speed: 8}, 1.2},
		{"conversation 5x, one slow", conversation, slow, 1.1},
		{"conversation 5x, small caches", conversation, Fleet{Replicas: 8, KVTokens: 1 << 18, Speed: 5}, 1.1},
		{"agents", synthetic(t, "agents", 1500), Fleet{Replicas: 8, KVTokens: 1 << 20}, 1.1},
		{"shared-prefix", synthetic(t, "shared-prefix", 1500), Fleet{Replicas: 8, KVTokens: 1 << 20}, 1.1},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := runs(t, c.t, c.f, AllPolicies()...)
			us := got["prefix"]
			for name, r := range got {
				if us.TTFTMean > r.TTFTMean {
					t.Errorf("mean TTFT: prefix %.0f ms, %s %.0f", us.TTFTMean, name, r.TTFTMean)
				}
				if us.TTFTP99 > c.p99*r.TTFTP99 {
					t.Errorf("p99 TTFT: prefix %.0f ms, %s %.0f, want at most %.1f times it", us.TTFTP99, name, r.TTFTP99, c.p99)
				}
			}
			if strings.HasPrefix(c.name, "conversation") && us.Hotspot > 1.25 {
				t.Errorf("hotspot %.2f, want at most 1.25", us.Hotspot)
			}
		})
	}
}

func TestTheSimulatedReplicaIsTheStudys(t *testing.T) {
	long(t)
	tr, err := Load(shared(t, "mooncake_conversation.jsonl.gz"), 0)
	if err != nil {
		t.Fatal(err)
	}
	// Round robin does not depend on chance: the study's figures to the digit shown.
	r, err := Simulate(t.Context(), tr, Fleet{Replicas: 8, KVTokens: 1 << 20, Speed: 5, Credit: 0.085}, "round_robin", 1)
	if err != nil {
		t.Fatal(err)
	}
	if math.Round(r.TTFTMean) != 712 || math.Round(r.TTFTP99) != 4148 || math.Round(1000*r.HitRate) != 81 {
		t.Errorf("round robin at 5x: mean %.1f ms, p99 %.1f ms, hit rate %.4f; the study has 712, 4148, 0.081", r.TTFTMean, r.TTFTP99, r.HitRate)
	}
	if best := tr.best(); best < 0.37 || best > 0.38 {
		t.Errorf("one infinite cache hits %.3f of the prompt tokens, want 0.374", best)
	}
}

func TestTwoGatewaysThatShareRouteNearlyAsOne(t *testing.T) {
	long(t)
	tr := synthetic(t, "chat", 3000)
	hit := func(gateways int, every float64) float64 {
		f := Fleet{Replicas: 8, KVTokens: 1 << 20, Gateways: gateways, ShareEvery: every}
		return runs(t, tr, f, "prefix")["prefix"].HitRate
	}
	one, two, alone := hit(1, 0), hit(2, 100), hit(2, -1)
	t.Logf("hit rate: one gateway %.3f, two that share %.3f, two that do not %.3f", one, two, alone)
	if two < one-0.02 {
		t.Errorf("two gateways that share placements hit %.3f, one %.3f: more than 2 points lost", two, one)
	}
	if two <= alone {
		t.Errorf("sharing placements gained nothing: %.3f with it, %.3f without", two, alone)
	}
}

func TestUnstreamedAnswersAndSilentEnginesCostLittle(t *testing.T) {
	long(t)
	tr := synthetic(t, "chat", 2000)
	mean := func(f Fleet) float64 {
		f.Replicas, f.KVTokens, f.Speed = 8, 1<<20, 1.5
		return runs(t, tr, f, "prefix")["prefix"].TTFTMean
	}
	usual := mean(Fleet{})
	for name, got := range map[string]float64{
		"half of the answers unstreamed": mean(Fleet{Unstreamed: 0.5}),
		"no cached tokens reported":      mean(Fleet{NoCached: true}),
	} {
		if got > 1.2*usual {
			t.Errorf("%s: mean TTFT %.0f ms, otherwise %.0f", name, got, usual)
		}
	}
}

func TestARunIsTheSameForTheSameSeed(t *testing.T) {
	tr := synthetic(t, "chat", 500)
	for _, p := range Policies() {
		a, err := Simulate(t.Context(), tr, Fleet{Replicas: 4, KVTokens: 1 << 18}, p, 7)
		if err != nil {
			t.Fatalf("%s: %v", p, err)
		}
		b, _ := Simulate(t.Context(), tr, Fleet{Replicas: 4, KVTokens: 1 << 18}, p, 7)
		if a != b {
			t.Errorf("%s: two runs with one seed differ: %+v and %+v", p, a, b)
		}
		if a.Requests != 500 || a.HitRate < 0 || a.Capture > 1 || a.TTFTMean <= 0 {
			t.Errorf("%s: impossible figures: %+v", p, a)
		}
	}
}

// TestARunEndsWhenTold presses ^C in the middle of a run.
func TestARunEndsWhenTold(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Simulate(ctx, synthetic(t, "chat", 500), Fleet{Replicas: 4, KVTokens: 1 << 18}, "prefix", 1); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want %v", err, context.Canceled)
	}
}

// TestNoCreditIsNone wants the greatest request to wait for all that come later.
func TestNoCreditIsNone(t *testing.T) {
	long(t)
	tr := synthetic(t, "agents", 1500)
	mean := func(credit float64) float64 {
		r, err := Simulate(t.Context(), tr, Fleet{Replicas: 2, KVTokens: 1 << 20, Speed: 3, Credit: credit}, "prefix", 1)
		if err != nil {
			t.Fatal(err)
		}
		return r.TTFTMean
	}
	if none, little, usual := mean(0), mean(1e-9), mean(0.085); math.Abs(none-little) > 0.1*little || none > usual {
		t.Errorf("mean TTFT %.0f ms without credit, %.0f with hardly any, %.0f with the usual one", none, little, usual)
	}
}

func TestTracesAreReadPlainAndCompressed(t *testing.T) {
	text := `{"timestamp": 10, "input_length": 1200, "output_length": 5, "hash_ids": [1, 2, 3]}
{"timestamp": 0, "input_length": 1024, "output_length": 0, "hash_ids": [1, 9], "more": {}}
`
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	z.Write([]byte(text))
	z.Close()
	for name, in := range map[string]string{"plain": text, "gzip": zipped.String()} {
		tr, err := Read(strings.NewReader(in), 0)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if len(tr.Rows) != 2 || tr.BlockTokens != 512 || tr.Rows[0].Input != 1024 || tr.Rows[0].Output != 1 || tr.Blocks != 4 {
			t.Errorf("%s: %+v", name, tr)
		}
		if tr.Rows[0].Blocks[0] != tr.Rows[1].Blocks[0] || tr.Rows[0].Blocks[1] == tr.Rows[1].Blocks[1] {
			t.Errorf("%s: blocks %v and %v, want only the first alike", name, tr.Rows[0].Blocks, tr.Rows[1].Blocks)
		}
	}
}

func TestBlockSizesAreFound(t *testing.T) {
	for _, size := range []int{16, 64, 512, 100} {
		var rows []rawRow
		for i := range 50 {
			n := 1 + i*37
			rows = append(rows, rawRow{Input: n, IDs: make([]uint64, (n+size-1)/size)})
		}
		if got := blockSize(rows); got != size {
			t.Errorf("prompts cut into blocks of %d tokens: found %d", size, got)
		}
	}
}

// cutGzip is a compressed trace whose download broke off.
func cutGzip(t *testing.T) string {
	t.Helper()
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	fmt.Fprintln(z, `{"timestamp": 1, "input_length": 5, "output_length": 1, "hash_ids": [1]}`)
	if err := z.Flush(); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintln(z, `{"timestamp": 2, "input_length": 9, "output_length": 1, "hash_ids": [1]}`)
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return zipped.String()[:zipped.Len()-20]
}

// TestOddTracesAreRead has what logs of other gateways hold.
func TestOddTracesAreRead(t *testing.T) {
	for name, in := range map[string]string{
		"Python's hashes": `{"timestamp": 1, "input_length": 600, "output_length": 1, "hash_ids": [-7, 340282366920938463463374607431768211455]}`,
		"named blocks":    `{"timestamp": 1, "input_length": 600, "output_length": 1, "hash_ids": ["a1", "b2"]}`,
		"numbers as pandas writes a column with gaps": `{"timestamp": 1.5, "input_length": 600.0, "output_length": 4.0, "hash_ids": [1, 2]}`,
		"no prompt and no answer":                     `{"timestamp": 1, "input_length": 0, "output_length": 0, "hash_ids": []}`,
		"a conversation without a turn":               `{"turns": []}` + "\n" + `{"turns": [{"t_ms": 0, "user": "a", "assistant": "b"}]}`,
	} {
		tr, err := Read(strings.NewReader(in), 0)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if len(tr.Rows) != 1 || tr.Rows[0].Input < 1 || tr.Rows[0].Output < 1 || tr.Rows[0].Input == 600 && tr.Blocks != 2 {
			t.Errorf("%s: %+v", name, tr)
		}
	}
}

// TestBlockSizesAreFoundWhereRowsDisagree has a trace that names whole blocks
// only, and one with a row that is wrong.
func TestBlockSizesAreFoundWhereRowsDisagree(t *testing.T) {
	for _, size := range []int{16, 64, 256} {
		var whole, wrong []rawRow
		for i := range 50 {
			n := 300 + i*37
			whole = append(whole, rawRow{Input: n, IDs: make([]uint64, n/size)})
			wrong = append(wrong, rawRow{Input: n, IDs: make([]uint64, (n+size-1)/size)})
		}
		wrong[7].IDs = wrong[7].IDs[:1]
		if got := blockSize(whole); got != size {
			t.Errorf("prompts that name their whole blocks of %d tokens: found %d", size, got)
		}
		if got := blockSize(wrong); got != size {
			t.Errorf("blocks of %d tokens but in one prompt: found %d", size, got)
		}
	}
}

func TestBadTracesAreExplained(t *testing.T) {
	for in, want := range map[string]string{
		"":                   "no requests",
		"{\"timestamp\": 1}": "line 1: neither a request",
		"{\"timestamp\": 1, \"input_length\": 5, \"output_length\": 1, \"hash_ids\": [1]}\nnonsense": "line 2: invalid character",
		`{"timestamp": 1, "input_length": 5, "output_length": 1000000000000}`:                        "line 1: output_length 1000000000000: want 0 to 10000000",
		`{"timestamp": 1, "input_length": 1000000000000}`:                                            "line 1: input_length 1000000000000: want 0 to 10000000",
		`{"timestamp": 1e300, "input_length": 5}`:                                                    "line 1: timestamp 1e+300",
		`{"messages": [{"role": "user", "content": "nobody answered"}]}`:                             "no requests",
		cutGzip(t): "unexpected EOF",
	} {
		if _, err := Read(strings.NewReader(in), 0); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want one with %q", in, err, want)
		}
	}
}

func TestConversationsBecomeGrowingPrompts(t *testing.T) {
	long := strings.Repeat("all work and no play ", 40)
	in := fmt.Sprintf(`{"session": "a", "turns": [{"t_ms": 5, "user": %q, "assistant": "yes"}, {"t_ms": 900, "user": "more", "assistant": "no"}]}`, long)
	tr, err := Read(strings.NewReader(in), 0)
	if err != nil {
		t.Fatal(err)
	}
	if len(tr.Rows) != 2 || tr.Rows[1].At != 900 || tr.Rows[1].Input <= tr.Rows[0].Input {
		t.Fatalf("rows %+v", tr.Rows)
	}
	if n := len(tr.Rows[0].Blocks) - 1; !slices.Equal(tr.Rows[0].Blocks[:n], tr.Rows[1].Blocks[:n]) {
		t.Errorf("the second turn does not begin with the first: %v, %v", tr.Rows[0].Blocks, tr.Rows[1].Blocks)
	}
}

func TestEqualBlocksGiveEqualText(t *testing.T) {
	tr := &Trace{BlockTokens: 16}
	a := tr.prompt(&Row{Input: 40, Blocks: []int32{1, 2, 3}})
	b := tr.prompt(&Row{Input: 48, Blocks: []int32{1, 2, 4}})
	if len(a) != 160 || len(b) != 192 {
		t.Errorf("prompts of 40 and 48 tokens have %d and %d bytes, want 160 and 192", len(a), len(b))
	}
	if one, two := tr.prompt(&Row{Input: 40}), tr.prompt(&Row{Input: 40, number: 1}); one == two {
		t.Error("two prompts whose blocks have no names are one text")
	}
	if a[:128] != b[:128] || a[128:] == b[128:160] {
		t.Errorf("two equal blocks and a different one gave %q and %q", a, b)
	}
}

func TestJSONHasTheDocumentedFields(t *testing.T) {
	var out, log bytes.Buffer
	o := Options{Synthetic: "chat", Limit: 200, Policies: "prefix,round_robin", Seed: 1, Seeds: 1, JSON: true, Fleet: Fleet{Replicas: 2, KVTokens: 1 << 18, Speed: 1}}
	if err := Run(t.Context(), o, &out, &log); err != nil {
		t.Fatal(err)
	}
	var got []map[string]any
	if err := json.Unmarshal(out.Bytes(), &got); err != nil || len(got) != 2 {
		t.Fatalf("%d objects, %v: %s", len(got), err, out.Bytes())
	}
	for f := range strings.FieldsSeq(`policy requests hit_rate capture ttft_mean_ms ttft_p50_ms ttft_p90_ms ttft_p99_ms
		tpot_p50_ms tpot_p99_ms hotspot prefill_imbalance regret_tokens`) {
		if _, ok := got[0][f]; !ok {
			t.Errorf("no field %s in %s", f, out.Bytes())
		}
	}
}

func TestWrongOptionsAreExplained(t *testing.T) {
	good := Options{Policies: "prefix", Seeds: 1, Fleet: Fleet{Replicas: 8, KVTokens: 1 << 20, Speed: 1}}
	for want, spoil := range map[string]func(*Options){
		`policy "best"`: func(o *Options) { o.Policies = "prefix,best" },
		"--replicas 0":  func(o *Options) { o.Fleet.Replicas = 0 },
		"--speed 0":     func(o *Options) { o.Fleet.Speed = 0 },
		"--unstreamed":  func(o *Options) { o.Fleet.Unstreamed = 2 },
		"--seeds 0":     func(o *Options) { o.Seeds = 0 },
		"--concurrency": func(o *Options) { o.HTTP.Most = -1 },
		"--waiting":     func(o *Options) { o.Fleet.Credit = math.NaN() },
	} {
		o := good
		spoil(&o)
		if err := o.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one with %q", err, want)
		}
	}
	for _, s := range []string{"9x3", "1", "ax2", "1x0", "1xinf"} {
		if _, err := ParseSlow(s, 8); err == nil {
			t.Errorf("--slow %s was taken", s)
		}
	}
}

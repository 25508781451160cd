package limits

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"penstock/configs"
)

func TestMemoryIsExactUnderConcurrency(t *testing.T) {
	l := memoryLimiter(t)
	now := epochTime()
	key := &configs.Limits{RequestsPerMinute: 1000}
	model := &configs.Limits{TokensPerMinute: 30_000}
	var admitted atomic.Int64
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for range 1000 {
				q := &Request{Key: fmt.Sprint("k", i%4), Model: "m", KeyLimits: key, ModelLimits: model, Cost: Cost{1, 5, 5}}
				if _, err := l.Reserve(t.Context(), now, q); err == nil {
					admitted.Add(1)
				}
			}
		})
	}
	wg.Wait()
	if n := admitted.Load(); n != 3000 {
		t.Errorf("%d of 8000 admitted, want exactly 3000: 30000 tokens of the model by 10", n)
	}
}

func TestAllScopesOrNone(t *testing.T) {
	l := memoryLimiter(t)
	now := epochTime()
	key := &configs.Limits{RequestsPerMinute: 10}
	model := &configs.Limits{TokensPerMinute: 100}
	_, err := l.Reserve(t.Context(), now, &Request{Key: "k", Model: "m", KeyLimits: key, ModelLimits: model, Cost: Cost{1, 101, 0}})
	if f, ok := errors.AsType[*Refusal](err); !ok || f.Scope != ScopeModel || !f.TooLarge {
		t.Fatalf("got %v, want too large for the model", err)
	}
	r, err := l.Reserve(t.Context(), now, &Request{Key: "k", Model: "m", KeyLimits: key, ModelLimits: model, Cost: Cost{1, 1, 0}})
	if err != nil || r.State().Requests.Remaining != 9 {
		t.Errorf("%v with %d requests left, want 9: the refusal charged nothing", err, r.State().Requests.Remaining)
	}
}

func TestMemoryIsBoundedInKeys(t *testing.T) {
	l, err := New(Options{MaxKeys: 1000})
	if err != nil {
		t.Fatal(err)
	}
	lim := &configs.Limits{RequestsPerMinute: 60}
	now := epochTime()
	held, err := l.Reserve(t.Context(), now, &Request{Key: "held", KeyLimits: lim, Cost: Cost{Requests: 60}})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 50_000 {
		now = now.Add(time.Millisecond)
		r, err := l.Reserve(t.Context(), now, &Request{Key: fmt.Sprint("k", i), KeyLimits: lim, Cost: Cost{Requests: 1}})
		if err != nil {
			t.Fatal(err)
		}
		r.Settle(now, Actual{Outcome: OutcomeDone})
	}
	if n := l.memory.size(); n > 1100 {
		t.Errorf("%d keys held after 50000, want about 1000", n)
	}
	if l.memory.find(subject{scope: ScopeKey, key: "held"}) == nil {
		t.Error("a key with a request under way was dropped")
	}
	held.Settle(now, Actual{})
}

func TestReloadKeepsCounters(t *testing.T) {
	l := memoryLimiter(t)
	now := epochTime()
	reserve := func(perMinute, n int64) (*Reservation, error) {
		return l.Reserve(t.Context(), now, &Request{Key: "k", KeyLimits: &configs.Limits{TokensPerMinute: perMinute}, Cost: Cost{Input: n}})
	}
	if _, err := reserve(1000, 900); err != nil {
		t.Fatal(err)
	}
	r, err := reserve(2000, 100)
	if err != nil || r.State().Tokens.Remaining != 1000 {
		t.Fatalf("%v, %d left after raising the limit to 2000 with 1000 used, want 1000", err, r.State().Tokens.Remaining)
	}
	_, err = reserve(500, 1)
	if f, _ := errors.AsType[*Refusal](err); f == nil || f.Used != 1000 || f.RetryAfter != 60120*time.Millisecond {
		t.Errorf("after lowering it to 500: %+v, want 1000 used and 501 tokens at 500 a minute to wait", f)
	}
}

// TestSettlementOnEveryPath charges 100 + 50 and ends it in each way.
func TestSettlementOnEveryPath(t *testing.T) {
	for _, c := range []struct {
		name             string
		a                Actual
		requests, tokens int64 // used afterwards
	}{
		{"never sent", Actual{Outcome: OutcomeReturned}, 0, 0},
		{"answered", Actual{OutcomeDone, 80, 30}, 1, 110},
		{"answered with more than reserved", Actual{OutcomeDone, 120, 70}, 1, 190},
		{"usage unknown", Actual{OutcomeDone, -1, -1}, 1, 150},
		{"stream without usage, events counted", Actual{OutcomeDone, -1, 7}, 1, 107},
		{"client left in mid-stream", Actual{OutcomeAborted, -1, 12}, 1, 112},
		{"engine failed", Actual{OutcomeFailed, 80, 30}, 1, 0},
	} {
		l := memoryLimiter(t)
		now := epochTime()
		lim := &configs.Limits{RequestsPerMinute: 10, TokensPerMinute: 1000, InputTokensPerMinute: 1000, OutputTokensPerMinute: 1000}
		r, err := l.Reserve(t.Context(), now, &Request{Key: "k", KeyLimits: lim, Cost: Cost{1, 100, 50}})
		if err != nil {
			t.Fatal(err)
		}
		r.Settle(now, c.a)
		r.Settle(now, Actual{OutcomeDone, 500, 400}) // only the first counts
		st, err := l.Stats(t.Context(), now, []Subject{{Scope: ScopeKey, Key: "k", Limits: lim}})
		if err != nil {
			t.Fatal(err)
		}
		if got := st[0].Rates; got[0].Used != c.requests || got[1].Used != c.tokens {
			t.Errorf("%s: %d requests and %d tokens used, want %d and %d", c.name, got[0].Used, got[1].Used, c.requests, c.tokens)
		}
		if in, out := st[0].Rates[2].Used, st[0].Rates[3].Used; in+out != c.tokens {
			t.Errorf("%s: input %d and output %d, want %d together", c.name, in, out, c.tokens)
		}
	}
}

func TestRefusalNamesLimitValueAndConfigKey(t *testing.T) {
	now := epochTime()
	all := &configs.Limits{TokensPerMinute: 600, TokensBurst: 500}
	for _, c := range []struct {
		scope     Scope
		cost      int64
		want      []string
		after, ms string
		reset     time.Duration
	}{
		{
			ScopeKey, 400,
			[]string{`key "k"`, "limit 600 (500 at once)", "used 450", "requested 400", "keys[k].limits.tokens_per_minute and tokens_burst.", "try again in 35s"},
			"35", "35000", 35 * time.Second,
		},
		{ScopeKeyModel, 51, []string{`key "k" on model "m"`, "keys[k].model_limits[m].tokens_per_minute", "try again in 100ms"}, "1", "100", 100 * time.Millisecond},
		{ScopeModel, 501, []string{"Request too large", `model "m"`, "needs 501 tokens", "more than 500 at once (600 per minute)", "models[m].limits.tokens_per_minute and tokens_burst."}, "1", "1", 0},
	} {
		l := memoryLimiter(t)
		q := &Request{Key: "k", Model: "m", Cost: Cost{1, 450, 0}}
		*map[Scope]**configs.Limits{ScopeKey: &q.KeyLimits, ScopeKeyModel: &q.KeyModelLimits, ScopeModel: &q.ModelLimits}[c.scope] = all
		if _, err := l.Reserve(t.Context(), now, q); err != nil {
			t.Fatal(err)
		}
		q.Cost.Input = c.cost
		_, err := l.Reserve(t.Context(), now, q)
		f, ok := errors.AsType[*Refusal](err)
		if !ok {
			t.Fatalf("%v: got %v, want a refusal", c.scope, err)
		}
		for _, w := range c.want {
			if !strings.Contains(f.Error(), w) {
				t.Errorf("%v: message %q, want %q in it", c.scope, f.Error(), w)
			}
		}
		if f.RetryAfterSeconds() != c.after || f.RetryAfterMillis() != c.ms || f.RetryAfter != c.reset {
			t.Errorf("%v: Retry-After %s, retry-after-ms %s, %v; want %s, %s, %v", c.scope, f.RetryAfterSeconds(), f.RetryAfterMillis(), f.RetryAfter, c.after, c.ms, c.reset)
		}
		if f.Kind.Type() != "tokens" || f.State.Tokens.Remaining != 50 {
			t.Errorf("%v: type %q and %d left, want tokens and 50", c.scope, f.Kind.Type(), f.State.Tokens.Remaining)
		}
	}
}

func TestLongestOfAllViolatedLimitsIsTold(t *testing.T) {
	l := memoryLimiter(t)
	now := epochTime()
	q := &Request{
		Key: "k", Model: "m", KeyLimits: &configs.Limits{RequestsPerMinute: 60, RequestsBurst: 1},
		ModelLimits: &configs.Limits{TokensPerMinute: 60}, Cost: Cost{1, 60, 0},
	}
	if _, err := l.Reserve(t.Context(), now, q); err != nil {
		t.Fatal(err)
	}
	_, err := l.Reserve(t.Context(), now, q)
	if f, _ := errors.AsType[*Refusal](err); f == nil || f.Scope != ScopeModel || f.RetryAfter != time.Minute {
		t.Errorf("got %v, want the model's tokens, a minute", err)
	}
}

func TestHeadersShowTheNearestLimit(t *testing.T) {
	l := memoryLimiter(t)
	r, err := l.Reserve(t.Context(), epochTime(), &Request{
		Key: "k", Model: "m", Cost: Cost{1, 100, 20},
		KeyLimits:      &configs.Limits{RequestsPerMinute: 600, TokensPerMinute: 6000},
		KeyModelLimits: &configs.Limits{TokensPerMinute: 600},
	})
	if err != nil {
		t.Fatal(err)
	}
	s := r.State()
	if s.Requests != (Level{600, 599, 100 * time.Millisecond, ScopeKey, KindRequests}) {
		t.Errorf("requests %+v, want 599 of 600, full in 100ms", s.Requests)
	}
	if s.Tokens != (Level{600, 480, 12 * time.Second, ScopeKeyModel, KindTokens}) {
		t.Errorf("tokens %+v, want 480 of the key-model's 600, full in 12s", s.Tokens)
	}
	policy, limit := s.IETF()
	if policy != `"requests";q=600;w=60, "tokens";q=600;w=60` || limit != `"requests";r=599;t=1, "tokens";r=480;t=12` {
		t.Errorf("RateLimit-Policy %s and RateLimit %s", policy, limit)
	}
	if p, lim := (State{}).IETF(); p != "" || lim != "" {
		t.Errorf("without limits: %q, %q; want none", p, lim)
	}
}

func TestFormatResetAsOpenAIWritesIt(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0s", time.Second: "1s", 6 * time.Minute: "6m0s", 20 * time.Millisecond: "20ms",
		8640 * time.Millisecond: "8.64s", 100 * time.Microsecond: "1ms", 90 * time.Second: "1m30s",
	} {
		if got := FormatReset(d); got != want {
			t.Errorf("FormatReset(%d ns) = %q, want %q", d, got, want)
		}
	}
}

func TestEstimatorLearnsBytesPerTokenAndMedia(t *testing.T) {
	e := NewEstimator(0)
	if got := e.Input("m", Size{Bytes: 4000, Tokens: 7, Media: 2}); got != 1000+7+2000 {
		t.Errorf("at first %d, want 4 bytes per token, ids as they are, 1000 for each part", got)
	}
	for range 200 {
		e.Learn("m", Size{Bytes: 3000}, e.Input("m", Size{Bytes: 3000}), 1000)
	}
	for range 200 {
		e.Learn("m", Size{Bytes: 300, Media: 1}, 0, 100+576)
	}
	if got := e.BytesPerToken("m"); got < 2.99 || got > 3.01 {
		t.Errorf("%.3f bytes per token, want 3", got)
	}
	if got := e.TokensPerMedia("m"); got < 570 || got > 582 {
		t.Errorf("%.1f tokens per part, want 576", got)
	}
	if got := e.Learn("m", Size{Bytes: 3000}, 1100, 1000); got != 1.1 {
		t.Errorf("error %v, want estimated ÷ reported = 1.1", got)
	}
	if got := e.BytesPerToken("other"); got != 4 {
		t.Errorf("another model has %v, want its own first guess 4", got)
	}
}

func TestOutputReservation(t *testing.T) {
	for _, c := range []struct {
		name string
		o    Output
		want int64
	}{
		{"named", Output{Max: 100, Default: 512}, 100},
		{"not named", Output{Max: -1, Default: 512}, 512},
		{"n and prompts", Output{Max: 100, N: 3, Prompts: 4}, 1200},
		{"best_of above n", Output{Max: 100, N: 2, BestOf: 5}, 500},
		{"echo without output", Output{Max: 0, N: 3, Default: 512}, 0},
		{"embeddings", Output{Max: -1, None: true, Default: 512}, 0},
		{"capped by the context", Output{Max: 10_000, Context: 4096, Input: 4000}, 96},
		{"capped for each prompt", Output{Max: 10_000, Context: 4096, Input: 8000, Prompts: 2}, 192},
		{"input fills the context", Output{Max: 100, Context: 4096, Input: 5000}, 0},
		{"absurd", Output{Max: 1 << 62, N: 1 << 30, Prompts: 1 << 30}, maxTokens},
	} {
		if got := c.o.Tokens(); got != c.want {
			t.Errorf("%s: %+v gives %d, want %d", c.name, c.o, got, c.want)
		}
	}
}

func TestAutoDerivesFromRunningLimitAndKV(t *testing.T) {
	for _, c := range []struct {
		in   []Capacity
		want Derived
	}{
		{nil, Derived{0, 100}},
		{[]Capacity{{}}, Derived{256, 4096}},
		{[]Capacity{{1_000_000, 64}, {1_000_000, 64}, {1_000_000, 64}, {1_000_000, 64}}, Derived{256, 4096}},
		{[]Capacity{{20_480, 64}}, Derived{20, 320}},
		{[]Capacity{{100, 64}}, Derived{1, 100}},
	} {
		if got := Auto(c.in); got != c.want {
			t.Errorf("Auto(%v) = %+v, want %+v", c.in, got, c.want)
		}
	}
}

func TestStatsAndReset(t *testing.T) {
	srv := startRedis(t)
	for name, l := range map[string]*Limiter{"memory": memoryLimiter(t), "redis": playedLimiter(t, srv.addr(), "stats")} {
		now := epochTime()
		lim := &configs.Limits{RequestsPerMinute: 6, TokensPerMinute: 600, Concurrency: 3}
		q := &Request{Key: "k", Model: "m", KeyLimits: lim, KeyModelLimits: lim, Cost: Cost{1, 400, 200}}
		r, err := l.Reserve(t.Context(), now, q)
		if err != nil || !r.TrySlot(now) {
			t.Fatalf("%s: %v", name, err)
		}
		ask := []Subject{{Scope: ScopeKey, Key: "k", Limits: lim}, {Scope: ScopeModel, Model: "m", Limits: lim}}
		st, err := l.Stats(t.Context(), now.Add(20*time.Second), ask)
		if err != nil {
			t.Fatal(err)
		}
		got := fmt.Sprintf("%+v", st[0])
		want := fmt.Sprintf("%+v", Stat{
			Scope: "key", Key: "k", Mode: name, UnderWay: 1, ReservedInput: 400, ReservedOutput: 200, Running: 1, Concurrency: 3,
			Rates: []RateStat{
				{"requests", 6, 6, 0, 6, 0, "keys[k].limits.requests_per_minute"},
				{"tokens", 600, 600, 400, 200, 40_000, "keys[k].limits.tokens_per_minute"},
			},
		})
		if got != want {
			t.Errorf("%s: got\n%s, want\n%s", name, got, want)
		}
		if st[1].Running != 0 || len(st[1].Rates) != 2 || st[1].Rates[1].Remaining != 600 {
			t.Errorf("%s: the untouched model has %+v, want full buckets", name, st[1])
		}
		if err := l.Reset(t.Context(), "k", []string{"m"}); err != nil {
			t.Fatal(err)
		}
		if st, _ = l.Stats(t.Context(), now, ask); st[0].Rates[1].Used != 0 {
			t.Errorf("%s: %+v after the reset, want a full bucket", name, st[0].Rates[1])
		}
		if r, err := l.Reserve(t.Context(), now, q); err != nil || r.State().Tokens.Remaining != 0 {
			t.Errorf("%s: after the reset %v, want admitted", name, err)
		}
		r.Settle(now, Actual{OutcomeDone, 100, 100}) // refunds nothing that was reset
	}
}

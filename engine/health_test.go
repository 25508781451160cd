package engine

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/valyala/fasthttp/fasthttputil"

	"penstock/configs"
)

// memory is fakes reached through memory, so that they run under synctest.
type memory struct {
	mu   sync.Mutex
	lns  map[string]*fasthttputil.InmemoryListener
	srvs map[string]*http.Server
}

// startMemory serves each fake under the URL http://NAME:80.
func startMemory(t *testing.T, fakes map[string]*fake) *memory {
	m := &memory{lns: make(map[string]*fasthttputil.InmemoryListener), srvs: make(map[string]*http.Server)}
	for name, f := range fakes {
		m.serve(name, f)
		t.Cleanup(func() { m.kill(name) })
	}
	return m
}

func (m *memory) serve(name string, f *fake) {
	ln := fasthttputil.NewInmemoryListener()
	srv := &http.Server{Handler: f}
	go srv.Serve(ln)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lns[name+":80"], m.srvs[name] = ln, srv
}

// kill breaks an engine's connections and refuses new ones.
func (m *memory) kill(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if srv := m.srvs[name]; srv != nil {
		srv.Close()
		delete(m.srvs, name)
		delete(m.lns, name+":80")
	}
}

func (m *memory) dial(_ context.Context, _, addr string) (net.Conn, error) {
	m.mu.Lock()
	ln := m.lns[addr]
	m.mu.Unlock()
	if ln == nil {
		return nil, &net.OpError{Op: "dial", Err: fmt.Errorf("connect: %w", syscall.ECONNREFUSED)}
	}
	return ln.Dial()
}

func bare(kind Kind, dp int) *fake {
	return &fake{kind: kind, dp: dp, kv: 1000, maxRun: 64, model: "m", requests: make([]float64, dp), hits: map[string]int{}}
}

// slow are the default settings.
func slow(models ...configs.Model) *configs.Config {
	return &configs.Config{
		Models: models,
		Health: configs.Health{
			Interval: 2 * time.Second, Timeout: 2 * time.Second, Unhealthy: 3, Healthy: 1,
			LoadInterval: time.Second, LoadTimeout: time.Second, RefreshInterval: 30 * time.Second,
		},
		Breaker: configs.Breaker{
			Failures: 5, Ratio: 0.5, MinRequests: 20,
			Window: 30 * time.Second, Open: 5 * time.Second, Trials: 2,
		},
		Timeouts: configs.Timeouts{Connect: 2 * time.Second, EngineIdle: 4 * time.Second, Request: time.Hour},
	}
}

// bubble runs a test in virtual time with a fleet of one engine named e.
func bubble(t *testing.T, kind Kind, run func(t *testing.T, e *fake, m *memory, r *Replica, rec *recorder)) {
	synctest.Test(t, func(t *testing.T) {
		e := bare(kind, 1)
		m := startMemory(t, map[string]*fake{"e": e})
		rec := &recorder{}
		f := NewFleet(Options{Notify: rec.notify, Dial: m.dial})
		defer f.Close()
		apply(t, f, slow(served("m", configs.Engine{URL: "http://e:80", ID: "e"})))
		run(t, e, m, replica(t, f, "e"), rec)
		f.Close()
		time.Sleep(2 * time.Hour) // until the fake's frozen answers have ended
	})
}

// within waits in virtual time and says how long it took.
func within(t *testing.T, limit time.Duration, what string, ok func() bool) {
	t.Helper()
	begun := time.Now()
	for !ok() {
		if time.Since(begun) > limit {
			t.Fatalf("%s: not within %v", what, limit)
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Logf("%s: after %v", what, time.Since(begun).Round(10*time.Millisecond))
}

// With the default settings a frozen process is out after the interval and
// three times interval or time-out, and back after one of each.
func TestFrozenReplicaIsOutInTimeAndBackInTime(t *testing.T) {
	bubble(t, KindSGLang, func(t *testing.T, e *fake, _ *memory, r *Replica, rec *recorder) {
		time.Sleep(7 * time.Second)
		e.set(func(e *fake) { e.delay = time.Hour })
		within(t, 8800*time.Millisecond, "frozen replica out", func() bool { return !r.Usable() })
		if r.State() != StateUnhealthy || rec.count(Unhealthy) != 1 {
			t.Errorf("frozen replica: got state %s and %d unhealthy events, want unhealthy and 1", r.State(), rec.count(Unhealthy))
		}
		time.Sleep(time.Minute)
		e.set(func(e *fake) { e.delay = 0 })
		within(t, 4400*time.Millisecond, "thawed replica back", r.Usable)
		if rec.count(Restarted) != 0 {
			t.Errorf("a thawed process: got %d restarted events, want none: its cache is there still", rec.count(Restarted))
		}
	})
}

func TestSlowProbesDoNotEjectAReplicaThatAnswers(t *testing.T) {
	bubble(t, KindVLLM, func(t *testing.T, e *fake, _ *memory, r *Replica, rec *recorder) {
		e.set(func(e *fake) { e.delay = 10 * time.Second })
		for range 120 { // a minute of a stream with an event every half second
			time.Sleep(500 * time.Millisecond)
			r.Answering(time.Now())
			if !r.Usable() {
				t.Fatal("a replica that streams was taken out for its slow probes")
			}
		}
		if rec.count(ProbeFailed) == 0 {
			t.Error("no probe failed, so nothing was shown")
		}
		within(t, 9*time.Second, "out once it is silent", func() bool { return !r.Usable() })
	})
}

func TestKilledReplicaIsOutSoon(t *testing.T) {
	bubble(t, KindSGLang, func(t *testing.T, e *fake, m *memory, r *Replica, rec *recorder) {
		m.kill("e")
		done, err := r.Allow()
		if err != nil {
			t.Fatal(err)
		}
		done(Unreachable)
		within(t, 2*time.Second, "killed replica out", func() bool { return !r.Usable() })
		e.set(func(e *fake) { e.boot++ })
		m.serve("e", e)
		within(t, time.Second, "restarted replica back", r.Usable)
		if rec.count(Restarted) != 1 {
			t.Errorf("restarted events: got %d, want 1", rec.count(Restarted))
		}
	})
}

func TestRestartBetweenProbesIsNoticed(t *testing.T) {
	bubble(t, KindVLLM, func(t *testing.T, e *fake, _ *memory, r *Replica, rec *recorder) {
		e.set(func(e *fake) { e.requests[0] = 100 })
		time.Sleep(3 * time.Second)
		e.set(func(e *fake) { e.boot, e.requests[0], e.kv = 7, 2, 2000 })
		within(t, 1500*time.Millisecond, "restart seen by falling counters", func() bool { return rec.count(Restarted) == 1 })
		if got := r.Capacity().KVTokens; got != 2000 || rec.count(CapacityChanged) != 1 {
			t.Errorf("capacity after the restart: got %d and %d events, want 2000 and 1", got, rec.count(CapacityChanged))
		}
	})
}

func TestFailedPollKeepsTheLastLoadWithItsAge(t *testing.T) {
	bubble(t, KindSGLang, func(t *testing.T, e *fake, _ *memory, r *Replica, rec *recorder) {
		e.set(func(e *fake) { e.running, e.waiting = 3, 2 })
		time.Sleep(3 * time.Second)
		e.set(func(e *fake) { e.delay = 1500 * time.Millisecond })
		time.Sleep(10 * time.Second)
		l, ok := r.Load()
		if !ok || l.Running != 3 || l.Waiting != 2 || time.Since(l.At) < 8*time.Second {
			t.Errorf("load after ten seconds of failing polls: got %+v, %v; want 3 running, 2 waiting, 8s old and more", l, ok)
		}
		if rec.count(PollFailed) == 0 || !r.Usable() {
			t.Errorf("poll failures: got %d, usable %v; want some, and usable", rec.count(PollFailed), r.Usable())
		}
	})
}

func TestUnknownEngineStartsLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := bare(KindSGLang, 2)
		m := startMemory(t, nil)
		rec := &recorder{}
		f := NewFleet(Options{Notify: rec.notify, Dial: m.dial})
		defer f.Close()
		if err := f.Apply(t.Context(), slow(served("m", configs.Engine{URL: "http://e:80", ID: "e"}))); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if r := replica(t, f, "e"); r.State() != Starting || r.Usable() || rec.count(Added) != 0 {
			t.Errorf("an engine that never answered: got state %s, usable %v, %d added", r.State(), r.Usable(), rec.count(Added))
		}
		m.serve("e", e)
		defer m.kill("e")
		within(t, 2200*time.Millisecond, "found", func() bool { return rec.count(Healthy) == 2 })
		if got := ids(f); got != "e/0 e/1" {
			t.Errorf("replicas: got %s, want e/0 e/1", got)
		}
	})
}

// SGLang asks its schedulers for the server info, which may take long; the
// probes do not wait for it.
func TestSlowFactsDoNotHoldUpProbes(t *testing.T) {
	bubble(t, KindSGLang, func(t *testing.T, e *fake, _ *memory, r *Replica, rec *recorder) {
		e.set(func(e *fake) { e.slow = map[string]time.Duration{"/server_info": time.Hour} })
		time.Sleep(33 * time.Second) // the facts are being read
		e.set(func(e *fake) { e.delay = time.Hour })
		within(t, 8800*time.Millisecond, "frozen replica out", func() bool { return !r.Usable() })
		if rec.count(Removed) != 0 {
			t.Error("facts that did not come took the replica away")
		}
	})
}

func TestAdaptersThatComeAndGoAreTold(t *testing.T) {
	bubble(t, KindVLLM, func(t *testing.T, e *fake, _ *memory, r *Replica, rec *recorder) {
		e.set(func(e *fake) { e.lora = "sql" })
		within(t, 35*time.Second, "the new adapter", func() bool { return r.Serves("sql") })
		if rec.count(ModelsChanged) != 1 || r.Model() != "m" || r.MaxModelLen() != 8192 {
			t.Errorf("got %d models_changed, model %s of %d tokens; want 1, m, 8192", rec.count(ModelsChanged), r.Model(), r.MaxModelLen())
		}
	})
}

func TestRefusedRankHasTheFactsReadAgain(t *testing.T) {
	bubble(t, KindSGLang, func(t *testing.T, e *fake, _ *memory, r *Replica, rec *recorder) {
		e.set(func(e *fake) { e.dp, e.requests = 2, make([]float64, 2) })
		r.server.refusedRank()
		within(t, 100*time.Millisecond, "two ranks", func() bool { return rec.count(Added) == 3 && rec.count(Removed) == 1 })
	})
}

func TestProxiedEngineIsFoundByItsEndpoints(t *testing.T) {
	for _, kind := range []Kind{KindSGLang, KindVLLM, KindOpenAI} {
		e := newFake(t, kind, 1)
		e.owner = "acme"
		c := &client{base: e.URL, hc: e.Client()}
		if got, err := probeKind(t.Context(), c); err != nil || got != kind {
			t.Errorf("engine behind a proxy that renames the owner: got %q, %v; want %s", got, err, kind)
		}
	}
}

// With another kind of engine on its address a URL is read anew, as a restarted
// process.
func TestAnotherKindOfEngineIsNoticed(t *testing.T) {
	for name, tt := range map[string]struct {
		from, to Kind
		owner    Kind // of both, as a proxy in front would have it; "": their own
		kind     Kind // as configured
		want     Kind
	}{
		"sglang, then vllm":                 {KindSGLang, KindVLLM, "", "", KindVLLM},
		"sglang, then vllm, behind a proxy": {KindSGLang, KindVLLM, "acme", "", KindVLLM},
		"vllm, then sglang":                 {KindVLLM, KindSGLang, "", "", KindSGLang},
		"openai, then sglang":               {KindOpenAI, KindSGLang, "", "", KindSGLang},
		"vllm, then openai":                 {KindVLLM, KindOpenAI, "", "", KindOpenAI},
		"openai, then vllm":                 {KindOpenAI, KindVLLM, "", "", KindVLLM},
		"configured":                        {KindSGLang, KindVLLM, "", KindSGLang, KindSGLang},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := bare(tt.from, 4)
				e.owner = tt.owner
				m := startMemory(t, map[string]*fake{"e": e})
				rec := &recorder{}
				f := NewFleet(Options{Notify: rec.notify, Dial: m.dial})
				defer f.Close()
				apply(t, f, slow(served("m", configs.Engine{URL: "http://e:80", ID: "e", Kind: string(tt.kind)})))
				before := len(f.Replicas())
				e.set(func(e *fake) { e.kind, e.dp, e.boot, e.requests = tt.to, 1, 9, make([]float64, 1) })
				time.Sleep(2 * time.Minute) // without a load to poll the facts are read after one, at worst
				got, restarts, wantIDs, wantRestarts := f.Replicas()[0].Kind(), rec.count(Restarted), "e", before
				if tt.want == tt.from {
					wantIDs, wantRestarts = "e/0 e/1 e/2 e/3", 0
				}
				if got != tt.want || ids(f) != wantIDs || restarts != wantRestarts {
					t.Errorf("got kind %s, replicas %s, %d restarted; want %s, %s, %d", got, ids(f), restarts, tt.want, wantIDs, wantRestarts)
				}
			})
		})
	}
}

// Behind a proxy that renames the owner only the kinds' own endpoints tell, and
// one that fails for a moment tells nothing.
func TestKindIsNotTakenFromAFailure(t *testing.T) {
	for _, tt := range []struct {
		kind Kind
		path string
	}{{KindSGLang, "/server_info"}, {KindSGLang, "/v1/models"}, {KindVLLM, "/metrics"}, {KindVLLM, "/server_info"}} {
		for _, status := range []int{500, 503, 429, 0} { // 0: the connection breaks
			e := newFake(t, tt.kind, 1)
			e.owner = "acme"
			var well atomic.Bool
			proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				switch {
				case well.Load() || r.URL.Path != tt.path:
					e.ServeHTTP(w, r)
				case status == 0:
					panic(http.ErrAbortHandler)
				default:
					w.WriteHeader(status)
				}
			}))
			c := &client{base: proxy.URL, hc: proxy.Client()}
			if got, err := probeKind(t.Context(), c); err == nil {
				t.Errorf("%s with status %d of %s: got kind %s, want an error", tt.kind, status, tt.path, got)
			}
			well.Store(true)
			if got, err := probeKind(t.Context(), c); err != nil || got != tt.kind {
				t.Errorf("%s that is well again: got %q, %v", tt.kind, got, err)
			}
			proxy.Close()
		}
	}
	guarded := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/models" {
			fmt.Fprint(w, `{"data":[{"id":"m","owned_by":"acme"}]}`)
			return
		}
		w.WriteHeader(http.StatusForbidden)
	}))
	defer guarded.Close()
	if got, err := probeKind(t.Context(), &client{base: guarded.URL, hc: guarded.Client()}); err != nil || got != KindOpenAI {
		t.Errorf("a server that forbids what it has not: got %q, %v; want openai", got, err)
	}
}

func TestEngineThatWarmsUpGetsNoRequests(t *testing.T) {
	bubble(t, KindSGLang, func(t *testing.T, e *fake, m *memory, r *Replica, rec *recorder) {
		m.kill("e")
		within(t, 3*time.Second, "killed replica out", func() bool { return !r.Usable() })
		e.set(func(e *fake) { e.boot, e.warming = 9, true })
		m.serve("e", e)
		for range 100 {
			time.Sleep(100 * time.Millisecond)
			if r.Usable() {
				t.Fatal("a restarted engine is used before it is ready")
			}
		}
		e.set(func(e *fake) { e.warming = false })
		within(t, 2200*time.Millisecond, "ready", r.Usable)
		if rec.count(Restarted) != 1 {
			t.Errorf("restarted events: got %d, want 1", rec.count(Restarted))
		}
		begun := e.hit("/health")
		time.Sleep(5 * time.Minute)
		if got := e.hit("/health"); got != begun {
			t.Errorf("/health, which runs a generation, was asked %d times of a ready engine", got-begun)
		}
	})
}

package engines

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"penstock/e2e/harness"
)

const (
	routingReplicas = 4
	// routingBlocks of 32 tokens are 65,536 tokens for each replica.
	routingBlocks = "2048"
	// routingAtOnce is how many sessions are played at once.
	routingAtOnce = 12
	// miniswe and tau are how many sessions of each trace are played.
	miniswe, tau = 20, 40
	// allowance is what Penstock's hit rate may be below the best of the others:
	// with twelve sessions at once no two runs are the same.
	allowance = 0.005
	// mostRequests is the most on one replica, over the mean.
	mostRequests = 1.3
)

// outcome is what the engines' own counters say of one run.
type outcome struct {
	rate     float64   // tokens from prefix caches over prompt tokens, of all replicas
	requests []float64 // that each replica answered
}

func (o outcome) sum() (sum float64) {
	for _, n := range o.requests {
		sum += n
	}
	return sum
}

// spread is the most requests on any replica over the mean.
func (o outcome) spread() float64 {
	return slices.Max(o.requests) * float64(len(o.requests)) / o.sum()
}

// fleet is the replicas behind every router alike.
type fleet []*engine

// counts are the three counters that judge, of each replica.
func (f fleet) counts(t *testing.T) (all [][3]float64) {
	for _, e := range f {
		all = append(all, [3]float64{
			e.metric(t, "vllm:prefix_cache_hits_total"),
			e.metric(t, "vllm:prefix_cache_queries_total"),
			e.metric(t, "vllm:request_success_total"),
		})
	}
	return all
}

// reset empties all prefix caches.
func (f fleet) reset(t *testing.T) {
	for _, e := range f {
		if status, body := send(t, http.MethodPost, e.url+"/reset_prefix_cache", ""); status != http.StatusOK {
			t.Fatalf("emptying the prefix cache of %s: %d %s", e.url, status, body)
		}
	}
}

// TestEnginesRouting plays recorded agent sessions through Penstock and through
// other cache-aware routers, over the same four replicas with empty caches. The
// engines' own counters are the judge, never the time: four replicas on two
// cores are slow.
func TestEnginesRouting(t *testing.T) {
	only(t)
	talks := alternate(
		conversations(t, "traces/miniswe_sessions.jsonl.gz", miniswe),
		conversations(t, "traces/tau_airline_sessions.jsonl.gz", tau))
	routers := []router{
		{"penstock", penstockWith("prefix")},
		{"sglang-router 0.3.2", peer(t, "sglang-router", "0.3.2")},
		{"smg 1.13.0", peer(t, "smg", "1.13.0", "--disable-tokenizer-autoload")},
	}
	venv := vllm(t)
	dir := model(t, venv)
	var replicas fleet
	for range routingReplicas {
		replicas = append(replicas, start(t, "serve-vllm.sh", venv, dir, "--num-gpu-blocks-override", routingBlocks))
	}
	for _, e := range replicas {
		e.ready(t)
	}
	w := prepare(t, replicas[0], talks)
	t.Logf("%d sessions, %d requests, %d prompt tokens; hit rate of one infinite cache %.4f",
		len(w.sessions), w.requests, w.tokens, w.ceiling)
	outcomes := map[string]outcome{}
	for _, r := range routers {
		t.Run(r.name, func(t *testing.T) { outcomes[r.name] = replicas.play(t, r, w) })
	}
	// The floor computes several times as many tokens: a third of the sessions tells as much.
	floor := router{"round robin", penstockWith("round_robin")}
	part := prepare(t, replicas[0], talks[:len(talks)/3])
	t.Run(floor.name, func(t *testing.T) { outcomes[floor.name] = replicas.play(t, floor, part) })
	if !t.Failed() {
		judge(t, outcomes)
	}
}

// play has one router route a workload over replicas with empty caches.
func (f fleet) play(t *testing.T, r router, w workload) outcome {
	f.reset(t)
	url := r.start(t, f)
	before, began := f.counts(t), time.Now()
	w.send(t, url)
	took := time.Since(began)
	var o outcome
	var hits, queries float64
	for i, after := range f.counts(t) {
		hits += after[0] - before[i][0]
		queries += after[1] - before[i][1]
		o.requests = append(o.requests, after[2]-before[i][2])
	}
	o.rate = hits / queries
	t.Logf("%-20s hit rate %.4f, requests %v, most %.2f of the mean, %v", r.name, o.rate, o.requests, o.spread(), took.Round(time.Second))
	// Both say that the counters are those of this run alone.
	if o.sum() != float64(w.requests) {
		t.Errorf("%s: the replicas answered %.0f requests of %d", r.name, o.sum(), w.requests)
	}
	if o.rate > w.ceiling+0.001 {
		t.Errorf("%s: hit rate %.4f, more than one infinite cache has (%.4f): the caches were not empty", r.name, o.rate, w.ceiling)
	}
	return o
}

// judge holds Penstock to the best of the others, and the others to being
// worth a comparison.
func judge(t *testing.T, outcomes map[string]outcome) {
	ours, floor := outcomes["penstock"], outcomes["round robin"]
	for name, theirs := range outcomes {
		if ours.rate < theirs.rate-allowance {
			t.Errorf("hit rate %.4f, that of %s is %.4f: want at least that less %.3f", ours.rate, name, theirs.rate, allowance)
		}
		if name != "round robin" && theirs.rate <= floor.rate {
			t.Errorf("hit rate of %s %.4f, of round robin %.4f: the sessions tell no router from another", name, theirs.rate, floor.rate)
		}
	}
	if ours.spread() > mostRequests {
		t.Errorf("requests %v: one replica has %.2f times the mean, want %.1f at most", ours.requests, ours.spread(), mostRequests)
	}
}

// router starts something that routes over the replicas, until the test ends.
type router struct {
	name  string
	start func(t *testing.T, f fleet) (url string)
}

func penstockWith(policy string) func(*testing.T, fleet) string {
	return func(t *testing.T, f fleet) string {
		t.Helper()
		return serveWith(t, policy, f...).URL
	}
}

// peer is another router with its cache-aware policy, its log at warnings and
// its own limit on concurrency out of the way.
func peer(t *testing.T, name, version string, flags ...string) func(*testing.T, fleet) string {
	t.Helper()
	program := routerCommand(t, name, version)
	return func(t *testing.T, f fleet) string {
		t.Helper()
		addr := harness.FreeAddr(t)
		host, port, _ := strings.Cut(addr, ":")
		_, metrics, _ := strings.Cut(harness.FreeAddr(t), ":")
		args := append([]string{
			"launch", "--host", host, "--port", port, "--prometheus-port", metrics, "--policy", "cache_aware",
			"--max-concurrent-requests", "100000", "--log-level", "warn",
		}, flags...)
		args = append(args, "--worker-urls")
		for _, e := range f {
			args = append(args, e.url)
		}
		harness.Background(t, program, args...)
		url := "http://" + addr
		harness.Eventually(t, time.Minute, name+" knows its workers", func() error { return knows(url, f) })
		return url
	}
}

// knows returns nil once a router has taken in all replicas.
func knows(url string, f fleet) error {
	status, body, err := exchange(http.MethodGet, url+"/workers", "")
	if err != nil {
		return err
	}
	for _, e := range f {
		if !strings.Contains(body, e.url) {
			return fmt.Errorf("%d without %s: %.300s", status, e.url, body)
		}
	}
	return nil
}

// send plays the sessions, some at once, each turn after the answer to the one
// before. The turns are as recorded, whatever the model answers.
func (w workload) send(t *testing.T, url string) {
	t.Helper()
	queue := make(chan []string)
	var wg sync.WaitGroup
	for range routingAtOnce {
		wg.Go(func() {
			for session := range queue {
				for turn, body := range session {
					status, text, err := exchange(http.MethodPost, url+"/v1/chat/completions", body)
					if status != http.StatusOK || err != nil {
						t.Errorf("turn %d: %d %v %.300s", turn, status, err, text)
					}
				}
			}
		})
	}
	for _, session := range w.sessions {
		queue <- session
	}
	close(queue)
	wg.Wait()
}

package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// measurement is one case on one target, once.
type measurement struct {
	Case   string `json:"case"`
	Target string `json:"target"`
	Round  int    `json:"round"`

	Requests  int     `json:"requests"`
	Events    int     `json:"events,omitempty"`
	Errors    int     `json:"errors"`
	Error     string  `json:"error,omitempty"` // the first
	PerSecond float64 `json:"requests_per_s"`
	CPU       float64 `json:"cpu_s_per_1000"` // of the target, for 1,000 requests
	P50       float64 `json:"p50_ms"`         // of a whole answer, or of an event since it was sent
	P99       float64 `json:"p99_ms"`
	Pace      float64 `json:"pace,omitempty"` // of what was due
	Peak      float64 `json:"peak_mib"`
	PerStream float64 `json:"kib_per_stream,omitempty"` // more than at rest
	Allocs    float64 `json:"allocs_per_request,omitempty"`
}

func (m measurement) String() string {
	s := fmt.Sprintf("%d %-8s %-14s %8.0f/s  %7.3f CPU s/1000  p50 %7.3f  p99 %8.3f ms  %6.1f MiB", m.Round, m.Case, m.Target, m.PerSecond, m.CPU, m.P50, m.P99, m.Peak)
	if m.Pace > 0 {
		s += fmt.Sprintf("  pace %.3f", m.Pace)
	}
	if m.PerStream > 0 {
		s += fmt.Sprintf("  %.1f KiB/stream", m.PerStream)
	}
	if m.Allocs > 0 {
		s += fmt.Sprintf("  %.1f allocs", m.Allocs)
	}
	if m.Errors > 0 {
		s += fmt.Sprintf("  %d ERRORS: %.300s", m.Errors, m.Error)
	}
	return s
}

// warm is how long a target is under load before anything counts.
const warm = 300 * time.Millisecond

// run is the state of one measurement.
type oneRun struct {
	load     *load
	addr     string
	counter  *atomic.Uint64 // numbers of requests: none comes twice
	counting atomic.Bool
	stop     atomic.Bool

	mu       sync.Mutex
	times    []float64 // ms
	requests int
	events   int
	errors   int
	first    error
}

// numbers are those of requests, over the whole run of the bench.
var numbers atomic.Uint64

func (l *lab) measure(ctx context.Context, c *load, t *target, round int) (measurement, error) {
	r := &oneRun{load: c, addr: t.addr(c.streamed()), counter: &numbers}
	conns, err := r.connect()
	if err != nil {
		return measurement{}, err
	}
	defer func() {
		for _, k := range conns {
			k.close()
		}
	}()
	m := measurement{Case: c.name, Target: t.name, Round: round}
	var rest use
	if t.proc != nil {
		t.proc.forgetPeak()
		rest = t.proc.use()
	}
	before := t.allocs()
	stopProfile := l.profile(ctx, c, t, round)
	var took time.Duration
	var used, busy use
	if c.fixed {
		took, used, busy = r.together(conns, t)
		m.Pace = r.pace(took)
		m.PerStream = max(0, float64(busy.rss-rest.rss)) / float64(c.conns) / 1024
	} else {
		took, used, busy = r.timed(ctx, conns, t, l.o.duration)
	}
	stopProfile()
	if after := t.allocs(); after > before && r.requests > 0 {
		m.Allocs = (after - before) / float64(r.all())
	}
	m.Requests, m.Events, m.Errors = r.requests, r.events, r.errors
	if r.first != nil {
		m.Error = r.first.Error()
	}
	m.PerSecond = float64(r.requests) / took.Seconds()
	if r.requests > 0 {
		m.CPU = used.cpu.Seconds() * 1000 / float64(r.requests)
	}
	slices.Sort(r.times)
	m.P50, m.P99 = quantile(r.times, 0.5), quantile(r.times, 0.99)
	m.Peak = float64(busy.peak) / (1 << 20)
	return m, ctx.Err()
}

func quantile(sorted []float64, q float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[int(q*float64(len(sorted)-1))]
}

func (r *oneRun) connect() ([]*conn, error) {
	var conns []*conn
	for range r.load.conns {
		c, err := dial(r.addr)
		if err != nil {
			return conns, err
		}
		conns = append(conns, c)
	}
	return conns, nil
}

// timed keeps all connections busy and counts for a time.
func (r *oneRun) timed(ctx context.Context, conns []*conn, t *target, d time.Duration) (took time.Duration, used, end use) {
	var all sync.WaitGroup
	for _, c := range conns {
		all.Go(func() { r.worker(c) })
	}
	pause(ctx, warm)
	begin, start := t.use(), time.Now()
	r.counting.Store(true)
	pause(ctx, d)
	r.counting.Store(false)
	took, end = time.Since(start), t.use()
	r.stop.Store(true)
	all.Wait()
	used.cpu = end.cpu - begin.cpu
	return took, used, end
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

func (t *target) use() use {
	if t.proc == nil {
		return use{}
	}
	return t.proc.use()
}

// worker sends one request after the other.
func (r *oneRun) worker(c *conn) {
	y := newBody(r.load.shape)
	var times []float64
	n := 0
	for !r.stop.Load() {
		start := time.Now()
		var err error
		b := y.next(r.counter.Add(1))
		if r.load.streamed() {
			err = r.stream(c, b, nil)
		} else {
			_, err = c.whole(b)
		}
		if err != nil {
			r.fail(err)
			c.close()
			if again, err := dial(r.addr); err == nil {
				*c = *again
			}
			continue
		}
		n++
		if r.counting.Load() {
			times = append(times, float64(time.Since(start))/1e6)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.times = append(r.times, times...)
	r.requests += len(times)
	r.events += n
}

// all is how many requests there were, counted or not.
func (r *oneRun) all() int { return max(r.requests, r.events) }

func (r *oneRun) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.errors++
	if r.first == nil {
		r.first = err
	}
}

// together runs one paced stream on each connection, all at once, and looks at
// the target when they are in the middle.
func (r *oneRun) together(conns []*conn, t *target) (took time.Duration, used, busy use) {
	begin, start := t.use(), time.Now()
	whole := time.Duration(r.load.events) * r.load.pace
	var all sync.WaitGroup
	for i, c := range conns {
		all.Go(func() {
			// Spread over one pace, or all events of all streams fall together.
			time.Sleep(r.load.pace * time.Duration(i) / time.Duration(len(conns)))
			r.paced(c, start.Add(min(time.Second, whole/4)))
		})
	}
	time.Sleep(whole / 2)
	busy = t.use()
	all.Wait()
	took = time.Since(start)
	end := t.use()
	busy.peak = end.peak
	return took, use{cpu: end.cpu - begin.cpu}, busy
}

// stream sends a request and wants every event of the answer.
func (r *oneRun) stream(c *conn, body []byte, seen func(sent int64)) error {
	n := 0
	err := c.stream(body, func(sent int64) {
		if sent == 0 { // the usage, or the end marker
			return
		}
		if n++; seen != nil {
			seen(sent)
		}
	})
	if err == nil && n != r.load.events {
		err = fmt.Errorf("%d events of %d", n, r.load.events)
	}
	return err
}

// paced notes how late each event comes, from a time on when all streams run.
func (r *oneRun) paced(c *conn, from time.Time) {
	times := make([]float64, 0, r.load.events)
	n := 0
	err := r.stream(c, newBody(r.load.shape).next(r.counter.Add(1)), func(sent int64) {
		n++
		if now := time.Now(); now.After(from) {
			times = append(times, float64(now.UnixNano()-sent)/1e6)
		}
	})
	if err != nil {
		r.fail(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.times = append(r.times, times...)
	r.events += n
	r.requests++
}

// pace is the share of events that came in the time in which all were due.
func (r *oneRun) pace(took time.Duration) float64 {
	due := time.Duration(r.load.events) * r.load.pace
	all := float64(r.load.conns * r.load.events)
	return min(1, float64(r.events)/all) * min(1, due.Seconds()/max(0.001, took.Seconds()-r.load.pace.Seconds()))
}

// allocs is how many objects penstock has allocated so far; 0: not known.
func (t *target) allocs() float64 {
	if t.admin == "" {
		return 0
	}
	resp, err := http.Get("http://" + t.admin + "/metrics")
	if err != nil {
		return 0
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(resp.Body)
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, "go_memstats_mallocs_total "); ok {
			n, _ := strconv.ParseFloat(strings.TrimSpace(v), 64)
			return n
		}
	}
	return 0
}

// profile takes a CPU profile of penstock while it is under load, in the first round.
func (l *lab) profile(ctx context.Context, c *load, t *target, round int) (stop func()) {
	if l.o.profiles == "" || t.admin == "" || round > 0 {
		return func() {}
	}
	var done sync.WaitGroup
	done.Go(func() {
		pause(ctx, warm)
		seconds := max(1, int(l.o.duration.Seconds()))
		fetch(fmt.Sprintf("http://%s/debug/pprof/profile?seconds=%d", t.admin, seconds), filepath.Join(l.o.profiles, t.name+"-"+c.name+".cpu"))
	})
	return func() {
		done.Wait()
		fetch("http://"+t.admin+"/debug/pprof/allocs", filepath.Join(l.o.profiles, t.name+"-"+c.name+".allocs"))
	}
}

func fetch(url, path string) {
	resp, err := http.Get(url)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return
	}
	defer resp.Body.Close()
	f, err := os.Create(path)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return
	}
	defer f.Close()
	_, _ = io.Copy(f, resp.Body)
}

package limits

import (
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"penstock/configs"
)

// ownCPU is this process' processor time in nanoseconds: on a busy machine it
// tells more than the wall's.
func ownCPU() float64 {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return float64(u.Utime.Nano() + u.Stime.Nano())
}

func reportCPU(b *testing.B, before float64) {
	b.ReportMetric((ownCPU()-before)/float64(b.N), "cpu-ns/op")
}

// BenchmarkReserveSettle is one request through all three scopes.
func BenchmarkReserveSettle(b *testing.B) {
	l, _ := New(Options{})
	lim := &configs.Limits{RequestsPerMinute: 1e9, TokensPerMinute: 1e10, Concurrency: 100}
	q := &Request{Key: "k", Model: "m", KeyLimits: lim, KeyModelLimits: lim, ModelLimits: lim, Cost: Cost{1, 100, 100}}
	now := time.Now()
	b.ReportAllocs()
	defer reportCPU(b, ownCPU())
	for b.Loop() {
		now = now.Add(time.Microsecond)
		r, err := l.Reserve(b.Context(), now, q)
		if err != nil {
			b.Fatal(err)
		}
		r.Settle(now, Actual{OutcomeDone, 100, 50})
	}
}

// BenchmarkRedisReserve is one round trip for three scopes, with settlements
// going on, while few or many requests of one model are under way.
func BenchmarkRedisReserve(b *testing.B) {
	for _, n := range []int{0, 10, 100, 1000} {
		b.Run(strconv.Itoa(n), func(b *testing.B) { benchmarkRedis(b, n) })
	}
}

// redisCPU is the processor time of Redis' main thread in microseconds.
func redisCPU(b *testing.B, srv *redisServer) float64 {
	info, err := srv.client().Info(b.Context(), "cpu").Result()
	if err != nil {
		b.Fatal(err)
	}
	var sum float64
	for line := range strings.Lines(info) {
		for _, p := range []string{"used_cpu_user_main_thread:", "used_cpu_sys_main_thread:"} {
			if v, ok := strings.CutPrefix(strings.TrimSpace(line), p); ok {
				f, _ := strconv.ParseFloat(v, 64)
				sum += f * 1e6
			}
		}
	}
	return sum
}

func benchmarkRedis(b *testing.B, underWay int) {
	srv := startRedis(b)
	l := redisLimiter(b, srv.addr(), func(o *Options) { o.Redis.Timeout = time.Second })
	lim := &configs.Limits{RequestsPerMinute: 1e9, TokensPerMinute: 1e10, Concurrency: 100_000}
	q := &Request{Key: "k", Model: "m", KeyLimits: lim, KeyModelLimits: lim, ModelLimits: lim, Cost: Cost{1, 100, 100}}
	var open []*Reservation
	times := make([]time.Duration, 0, 1<<16)
	wantMode(b, l, lim, ModeRedis)
	local, cpu := 0, redisCPU(b, srv)
	b.ReportAllocs()
	for b.Loop() {
		start := time.Now()
		r, err := l.Reserve(b.Context(), start, q)
		if err != nil {
			b.Fatal(err)
		}
		if r.Mode() != ModeRedis {
			local++
		}
		times = append(times, time.Since(start))
		if open = append(open, r); len(open) > underWay {
			open[0].Settle(time.Now(), Actual{OutcomeDone, 100, 50})
			open = open[1:]
		}
	}
	b.ReportMetric((redisCPU(b, srv)-cpu)/float64(len(times)), "redis-CPU-µs")
	b.ReportMetric(float64(local), "not-redis")
	slices.Sort(times)
	b.ReportMetric(float64(times[len(times)*99/100].Microseconds()), "p99-µs")
}

// prompt is so much work.
type prompt int

func (p prompt) Work() int { return int(p) }

// BenchmarkQueueDispatch ends one request and dispatches the next while a
// thousand of ten keys wait.
func BenchmarkQueueDispatch(b *testing.B) {
	q := NewQueue("m", configs.Queue{MaxLength: 2000, MaxWait: time.Hour, WaitingCredit: 0.085}, func() float64 { return 1e4 })
	o := &q.order
	now := time.Now()
	push := func(i int) *Ticket {
		t := &Ticket{Binder: bindFunc(func() (bool, error) { return true, nil })}
		t.Item = Item{Key: strconv.Itoa(i % 10), Input: i * 7919 % 4096, Output: 100, Prompt: prompt(i * 7919 % 4096), owner: t}
		o.Push(now, now, &t.Item)
		return t
	}
	for i := range 1000 {
		push(i)
	}
	i := 1000
	defer reportCPU(b, ownCPU())
	for b.Loop() {
		now = now.Add(time.Millisecond)
		q.mu.Lock()
		push(i)
		q.rounds++
		if !q.dispatch(time.Time{}) {
			b.Fatal("nothing dispatched")
		}
		o.Settle(now, q.buf[0], 100, 100)
		q.mu.Unlock()
		i++
	}
}

// BenchmarkAcquire is a limited request through a queue in which nobody waits,
// from its reservation to its end.
func BenchmarkAcquire(b *testing.B) {
	q := NewQueue("m", configs.Queue{}, nil)
	l, _ := New(Options{OnSlot: func(_, _ string) { q.Kick() }})
	lim := &configs.Limits{RequestsPerMinute: 1e9, TokensPerMinute: 1e10, Concurrency: 100}
	b.ReportAllocs()
	defer reportCPU(b, ownCPU())
	for b.Loop() {
		r, err := l.Reserve(b.Context(), time.Now(), &Request{Key: "k", Model: "m", KeyLimits: lim, Cost: Cost{1, 100, 100}})
		if err != nil {
			b.Fatal(err)
		}
		tk := &Ticket{Item: Item{Key: "k", Input: 100, Output: 100}, Reservation: r, Binder: bindFunc(func() (bool, error) { return true, nil })}
		if err := q.Acquire(b.Context(), tk); err != nil {
			b.Fatal(err)
		}
		q.Kick()
		r.Settle(time.Now(), Actual{OutcomeDone, 100, 50})
		q.Settle(time.Now(), tk, 100, 50)
	}
}

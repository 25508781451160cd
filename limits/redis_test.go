package limits

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"penstock/configs"
)

// slack is what a request may take beyond redis.timeout on a busy machine.
const slack = 250 * time.Millisecond

func keyRequest(l *configs.Limits) *Request {
	return &Request{Key: "k", Model: "m", KeyLimits: l, Cost: Cost{Requests: 1, Input: 10, Output: 10}}
}

// TestThreeGatewaysShareALimitWithoutOveradmission asks from three gateways as
// fast as they can.
func TestThreeGatewaysShareALimitWithoutOveradmission(t *testing.T) {
	t.Parallel()
	srv := startRedis(t)
	lim := &configs.Limits{RequestsPerMinute: 600, RequestsBurst: 100, TokensPerMinute: 60_000, TokensBurst: 3000}
	start := time.Now()
	var admitted atomic.Int64
	var wg sync.WaitGroup
	for range 3 {
		l := redisLimiter(t, srv.addr(), patient)
		for range 4 {
			wg.Go(func() {
				for time.Since(start) < 500*time.Millisecond {
					r, err := l.Reserve(t.Context(), time.Now(), keyRequest(lim))
					if err == nil {
						admitted.Add(1)
						if r.Mode() != ModeRedis {
							t.Errorf("mode %v, want redis", r.Mode())
						}
						r.Settle(time.Now(), Actual{Outcome: OutcomeDone, Input: 10, Output: 10})
					}
				}
			})
		}
	}
	wg.Wait()
	most := 100 + int64(time.Since(start).Seconds()*600/60) + 1
	if n := admitted.Load(); n > most || n < 100 {
		t.Errorf("%d admitted, want at least the burst of 100 and at most %d", n, most)
	}
}

// TestThreeGatewaysShareSlots: never more at once than the limit, and a slot
// that one gives back is got by those who wait at another.
func TestThreeGatewaysShareSlots(t *testing.T) {
	t.Parallel()
	srv := startRedis(t)
	lim := &configs.Limits{Concurrency: 4}
	var running, most, done atomic.Int64
	var wg sync.WaitGroup
	for range 3 {
		var q *Queue
		l := redisLimiter(t, srv.addr(), patient, func(o *Options) { o.OnSlot = func(_, _ string) { q.Kick() } })
		q = newTestQueue(configs.Queue{MaxWait: 20 * time.Second})
		for range 12 {
			wg.Go(func() {
				r, err := l.Reserve(t.Context(), time.Now(), keyRequest(lim))
				if err != nil {
					t.Error(err)
					return
				}
				tk := &Ticket{Item: Item{Key: "k"}, Reservation: r, Binder: bindFunc(func() (bool, error) { return true, nil })}
				if err := q.Acquire(t.Context(), tk); err != nil {
					t.Error(err)
					return
				}
				n := running.Add(1)
				for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
				}
				<-time.After(10 * time.Millisecond)
				running.Add(-1)
				done.Add(1)
				r.Settle(time.Now(), Actual{Outcome: OutcomeDone})
				q.Settle(time.Now(), tk, 10, 10)
			})
		}
	}
	wg.Wait()
	if most.Load() > 4 || done.Load() != 36 {
		t.Errorf("%d at once and %d done, want at most 4 and all 36", most.Load(), done.Load())
	}
}

// TestSettlingTwiceCountsOnce repeats a batch, as after a time-out.
func TestSettlingTwiceCountsOnce(t *testing.T) {
	srv := startRedis(t)
	l := playedLimiter(t, srv.addr(), "twice")
	lim := &configs.Limits{TokensPerMinute: 6000}
	now := epochTime()
	reserve := func(n int64) *Reservation {
		r, err := l.Reserve(t.Context(), now, &Request{Key: "k", KeyLimits: lim, Cost: Cost{Input: n}})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	reserve(1000)
	reserve(2000).Settle(now, Actual{Outcome: OutcomeDone, Input: 500, Output: 0})
	todo := l.redis.worker.pending
	todo = append(todo, todo...)
	for range 3 {
		if _, err := l.redis.call("settle", l.redis.settleScript, settleKeys(todo), l.redis.settleArgs(todo)); err != nil {
			t.Fatal(err)
		}
	}
	if got := reserve(0).State().Tokens.Remaining; got != 4500 {
		t.Errorf("%d tokens left, want 6000 − 1000 − 500", got)
	}
}

// TestCrashedGatewayGivesItsSlotsBack lets a gateway vanish.
func TestCrashedGatewayGivesItsSlotsBack(t *testing.T) {
	srv := startRedis(t)
	crashed, other := playedLimiter(t, srv.addr(), "crash"), playedLimiter(t, srv.addr(), "crash")
	other.redis.gateway = "other"
	lim := &configs.Limits{Concurrency: 1}
	now := epochTime()
	if r, err := crashed.Reserve(t.Context(), now, keyRequest(lim)); err != nil || !r.TrySlot(now) {
		t.Fatalf("first: no slot (%v)", err)
	}
	try := func(at time.Time) bool {
		r, err := other.Reserve(t.Context(), at, keyRequest(lim))
		if err != nil {
			t.Fatal(err)
		}
		return r.hasSlot()
	}
	if try(now.Add(leaseLife - time.Second)) {
		t.Error("a slot was got while its lease ran")
	}
	// Renewed, it is kept for another life.
	crashed.redis.at.Store(now.Add(leaseLife / 2).UnixMicro())
	crashed.redis.renew()
	if try(now.Add(leaseLife + time.Second)) {
		t.Error("a slot was got although its lease was renewed")
	}
	if !try(now.Add(leaseLife/2 + leaseLife + time.Second)) {
		t.Error("the crashed gateway's slot was not given back after its lease")
	}
}

// fault is one way for Redis to be away.
type fault struct {
	name string
	hit  func(*redisServer)
	heal func(*redisServer)
}

func faults() []fault {
	return []fault{
		{"stopped", (*redisServer).kill, (*redisServer).start},
		{
			"paused", func(s *redisServer) { s.signal(syscall.SIGSTOP) },
			func(s *redisServer) { s.signal(syscall.SIGCONT) },
		},
		{
			"out of memory",
			func(s *redisServer) {
				s.t.Helper()
				for _, kv := range [][2]string{{"maxmemory-policy", "noeviction"}, {"maxmemory", "1"}} {
					if err := s.client().ConfigSet(s.t.Context(), kv[0], kv[1]).Err(); err != nil {
						s.t.Fatal(err)
					}
				}
			},
			func(s *redisServer) {
				if err := s.client().ConfigSet(s.t.Context(), "maxmemory", "0").Err(); err != nil {
					s.t.Fatal(err)
				}
			},
		},
	}
}

// TestNoRequestWaitsForARedisThatIsAway takes Redis away in several ways. No
// Reserve takes longer than redis.timeout, the limit is enforced in part, the
// mode shows in hook, log and reservation, and all comes back with Redis.
func TestNoRequestWaitsForARedisThatIsAway(t *testing.T) {
	t.Parallel()
	for _, f := range faults() {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			srv := startRedis(t)
			var log syncBuffer
			var modes modeList
			l := redisLimiter(t, srv.addr(), func(o *Options) {
				o.Redis.Gateways = 2
				o.Logger = slog.New(slog.NewTextHandler(&log, nil))
				o.OnMode = modes.note
			})
			lim := &configs.Limits{RequestsPerMinute: 60, RequestsBurst: 1000}
			wantMode(t, l, lim, ModeRedis)
			f.hit(srv)
			var worst time.Duration
			local := 0
			for range 600 {
				start := time.Now()
				r, err := l.Reserve(t.Context(), start, keyRequest(lim))
				worst = max(worst, time.Since(start))
				if err == nil && r.Mode() == ModeLocal {
					local++
					r.Settle(time.Now(), Actual{Outcome: OutcomeDone})
				}
			}
			if worst > 50*time.Millisecond+slack {
				t.Errorf("a Reserve took %v, want at most the time-out of 50ms", worst)
			}
			// Half of the burst of 1000, and what a minute's 30 give meanwhile.
			if local < 500 || local > 510 {
				t.Errorf("%d admitted locally, want limit ÷ gateways: 500", local)
			}
			modes.want(t, ModeLocal)
			f.heal(srv)
			modes.want(t, ModeRedis)
			wantMode(t, l, lim, ModeRedis)
			if s := log.String(); !strings.Contains(s, "Redis is away") || !strings.Contains(s, "Redis is back") {
				t.Errorf("log %q, want a line for each change", s)
			}
			t.Logf("longest Reserve %v", worst)
		})
	}
}

func wantMode(t testing.TB, l *Limiter, lim *configs.Limits, want Mode) {
	t.Helper()
	eventually(t, "reserved in mode "+want.String(), func() bool {
		r, err := l.Reserve(t.Context(), time.Now(), keyRequest(lim))
		if err != nil {
			t.Fatal(err)
		}
		defer r.Settle(time.Now(), Actual{})
		return r.Mode() == want
	})
}

// patient gives Redis more time than a busy machine makes it take.
func patient(o *Options) { o.Redis.Timeout = 5 * time.Second }

// modeList is what OnMode was told last.
type modeList struct{ last atomic.Int32 }

func (m *modeList) note(_, to Mode, _ error) { m.last.Store(int32(to)) }

func (m *modeList) want(t *testing.T, want Mode) {
	t.Helper()
	eventually(t, "the hook was told "+want.String(), func() bool { return Mode(m.last.Load()) == want })
}

// syncBuffer is a log that a test may read while it is written.
type syncBuffer struct {
	mu sync.Mutex
	b  strings.Builder
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// delayProxy passes bytes to Redis and back, each answer late by delay.
type delayProxy struct {
	addr  string
	delay atomic.Int64
}

func startDelayProxy(t *testing.T, to string) *delayProxy {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &delayProxy{addr: ln.Addr().String()}
	t.Cleanup(func() { _ = ln.Close() })
	go func() {
		for {
			in, err := ln.Accept()
			if err != nil {
				return
			}
			go p.pass(in, to)
		}
	}()
	return p
}

func (p *delayProxy) pass(in net.Conn, to string) {
	defer in.Close()
	out, err := net.Dial("tcp", to)
	if err != nil {
		return
	}
	defer out.Close()
	go func() {
		_, _ = io.Copy(out, in)
		_ = out.Close()
	}()
	buf := make([]byte, 64<<10)
	for {
		n, err := out.Read(buf)
		if err != nil {
			return
		}
		<-time.After(time.Duration(p.delay.Load()))
		if _, err := in.Write(buf[:n]); err != nil {
			return
		}
	}
}

// TestSlowRedisIsGivenUpAtTheTimeout: at 10 ms it is used, at 200 ms it is not waited for.
func TestSlowRedisIsGivenUpAtTheTimeout(t *testing.T) {
	t.Parallel()
	srv := startRedis(t)
	p := startDelayProxy(t, srv.addr())
	l := redisLimiter(t, p.addr)
	lim := &configs.Limits{RequestsPerMinute: 6000}
	p.delay.Store(int64(5 * time.Millisecond))
	wantMode(t, l, lim, ModeRedis)
	p.delay.Store(int64(200 * time.Millisecond))
	var worst time.Duration
	var wg sync.WaitGroup
	var mu sync.Mutex
	for range 40 {
		wg.Go(func() {
			for range 5 {
				start := time.Now()
				r, err := l.Reserve(t.Context(), start, keyRequest(lim))
				mu.Lock()
				worst = max(worst, time.Since(start))
				mu.Unlock()
				if err == nil {
					r.Settle(time.Now(), Actual{})
				}
			}
		})
	}
	wg.Wait()
	if worst > 50*time.Millisecond+slack || l.Mode() != ModeLocal {
		t.Errorf("longest Reserve %v in mode %v, want at most 50ms and local", worst, l.Mode())
	}
	p.delay.Store(0)
	wantMode(t, l, lim, ModeRedis)
}

// TestLateReserveIsUndone pauses Redis until a Reserve gave up; Redis does it
// when it comes back, and then it must not stay charged.
func TestLateReserveIsUndone(t *testing.T) {
	t.Parallel()
	srv := startRedis(t)
	l := redisLimiter(t, srv.addr())
	lim := &configs.Limits{RequestsPerMinute: 100, Concurrency: 10}
	wantMode(t, l, lim, ModeRedis)
	srv.signal(syscall.SIGSTOP)
	for range 5 {
		r, err := l.Reserve(t.Context(), time.Now(), keyRequest(lim))
		if err != nil {
			t.Fatal(err)
		}
		r.Settle(time.Now(), Actual{Outcome: OutcomeDone})
	}
	srv.signal(syscall.SIGCONT)
	eventually(t, "all given back", func() bool {
		r, err := l.Reserve(t.Context(), time.Now(), keyRequest(lim))
		if err != nil || r.Mode() != ModeRedis {
			return false
		}
		left := r.State().Requests.Remaining
		r.Settle(time.Now(), Actual{})
		n, err := srv.client().ZCard(t.Context(), "{test}:s:k:k").Result()
		return err == nil && left == 99 && n <= 1
	})
}

// TestRedisRestartedEmptyAndFlushedScripts goes on without a wrong answer.
func TestRedisRestartedEmptyAndFlushedScripts(t *testing.T) {
	t.Parallel()
	srv := startRedis(t)
	l := redisLimiter(t, srv.addr(), func(o *Options) { o.Redis.Timeout = time.Second })
	lim := &configs.Limits{RequestsPerMinute: 100, Concurrency: 1}
	wantMode(t, l, lim, ModeRedis)
	eventually(t, "settled", func() bool { return l.redis.worker.idle() })
	r, err := l.Reserve(t.Context(), time.Now(), keyRequest(lim))
	if err != nil || r.Mode() != ModeRedis {
		t.Fatalf("got %v", err)
	}
	if err := srv.client().ScriptFlush(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	again, err := l.Reserve(t.Context(), time.Now(), keyRequest(lim))
	if err != nil || again.Mode() != ModeRedis || again.hasSlot() {
		t.Fatalf("after the scripts were flushed: %v, mode %v, slot %v; want redis and no slot", err, again.Mode(), again.hasSlot())
	}
	srv.kill()
	srv.start()
	wantMode(t, l, lim, ModeRedis)
	// What was under way settles without harm; the next starts from full.
	r.Settle(time.Now(), Actual{Outcome: OutcomeDone})
	again.Settle(time.Now(), Actual{Outcome: OutcomeDone})
	eventually(t, "full buckets and free slots", func() bool {
		r, err := l.Reserve(t.Context(), time.Now(), keyRequest(lim))
		if err != nil {
			return false
		}
		ok := r.State().Requests.Remaining == 99 && r.hasSlot()
		r.Settle(time.Now(), Actual{})
		return ok
	})
}

func TestOnErrorOpenAdmitsAndClosedRefuses(t *testing.T) {
	dead := "127.0.0.1:" + freePort(t)
	lim := &configs.Limits{RequestsPerMinute: 1}
	for onError, want := range map[string]Mode{"open": ModeOpen, "closed": ModeClosed} {
		l := redisLimiter(t, dead, func(o *Options) { o.Redis.OnError = onError })
		for range 10 {
			r, err := l.Reserve(t.Context(), time.Now(), keyRequest(lim))
			switch f, refused := errors.AsType[*Refusal](err); {
			case want == ModeOpen && (err != nil || r.Mode() != ModeOpen || !r.TrySlot(time.Now())):
				t.Fatalf("on_error open: got %v, want admitted", err)
			case want == ModeClosed && (!refused || f.Kind != KindUnavailable || f.RetryAfter <= 0):
				t.Fatalf("on_error closed: got %v, want unavailable", err)
			}
			if r != nil {
				r.Settle(time.Now(), Actual{Outcome: OutcomeDone})
			}
		}
		if l.Mode() != want {
			t.Errorf("mode %v, want %v", l.Mode(), want)
		}
	}
}

// TestGatewaysAreCountedByHeartbeat starts three and reads what each divides by.
func TestGatewaysAreCountedByHeartbeat(t *testing.T) {
	srv := startRedis(t)
	a, b, c := playedLimiter(t, srv.addr(), "beat"), playedLimiter(t, srv.addr(), "beat"), playedLimiter(t, srv.addr(), "beat")
	for i, l := range []*Limiter{a, b, c, a} {
		l.redis.gateway = fmt.Sprint("gw", i%3)
		l.redis.at.Store(epochTime().UnixMicro())
		l.redis.renew()
	}
	if n := a.redis.gateways(); n != 3 {
		t.Errorf("%d gateways counted, want 3", n)
	}
	a.redis.at.Store(epochTime().Add(gatewayLife + time.Second).UnixMicro())
	a.redis.renew()
	if n := a.redis.gateways(); n != 1 {
		t.Errorf("%d gateways after two fell silent, want 1", n)
	}
}

// idle tells whether all is settled.
func (w *redisWorker) idle() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.pending) == 0
}

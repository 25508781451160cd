package limits

import (
	"context"
	"crypto/rand"
	"embed"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/sony/gobreaker/v2"
)

//go:embed lua/*.lua
var luaFiles embed.FS

const (
	// leaseLife is how long a concurrency slot outlives the gateway that took
	// it; it is renewed three times as often.
	leaseLife = 30 * time.Second
	// recordLife is how long the record of an unsettled attempt outlives its gateway.
	recordLife = 10 * time.Minute
	// breakerFailures in a row open the breaker for breakerOpen.
	breakerFailures = 3
	breakerOpen     = time.Second
)

// redisStore keeps the buckets in Redis, for several gateways. Any number of
// goroutines may use it; what is not on a request's way is its worker's.
type redisStore struct {
	l       *Limiter
	client  redis.UniversalClient
	breaker *gobreaker.CircuitBreaker[[]any]
	policy  Mode // while Redis is away
	timeout time.Duration
	prefix  string
	gateway string
	fixed   int64 // gateways, as configured; 0: counted
	onRedis func(op string, took time.Duration, err error)
	// played makes time an argument also for Redis. For tests.
	played bool
	at     atomic.Int64 // then: microseconds

	reserveScript, settleScript, slotsScript, renewScript, peekScript *redis.Script

	ids     atomic.Uint64
	failed  atomic.Int64 // calls in a row that failed
	counted atomic.Int64 // gateways alive when last asked
	hold    atomic.Int64 // moving mean of the time a slot is held
	changes chan change

	worker redisWorker
}

// change is one change of mode, told by the worker.
type change struct {
	from, to Mode
	cause    error
}

var (
	errRedisOpen  = errors.New("the breaker round Redis is open")
	errShortReply = errors.New("redis: a script answered with too few values")
)

func newRedisStore(l *Limiter, o Options) (*redisStore, error) {
	opts, err := RedisOptions(&o.Redis)
	if err != nil {
		return nil, err
	}
	s := &redisStore{
		l: l, policy: ModeLocal, timeout: opts.ReadTimeout, prefix: RedisPrefix(&o.Redis),
		gateway: o.Gateway, fixed: int64(o.Redis.Gateways), onRedis: o.OnRedis, changes: make(chan change, 64),
	}
	if s.gateway == "" {
		s.gateway = rand.Text()
	}
	switch o.Redis.OnError {
	case "open":
		s.policy = ModeOpen
	case "closed":
		s.policy = ModeClosed
	}
	s.counted.Store(1)
	if err := s.loadScripts(); err != nil {
		return nil, err
	}
	redis.SetLogger(redisLog{l.log}) // the library has one for the process
	s.client = redis.NewUniversalClient(opts)
	s.breaker = s.newBreaker()
	s.worker.init()
	return s, nil
}

func (s *redisStore) loadScripts() error {
	lib, err := luaFiles.ReadFile("lua/lib.lua")
	if err != nil {
		return err
	}
	for name, script := range map[string]**redis.Script{
		"reserve": &s.reserveScript, "settle": &s.settleScript, "slots": &s.slotsScript,
		"renew": &s.renewScript, "peek": &s.peekScript,
	} {
		body, err := luaFiles.ReadFile("lua/" + name + ".lua")
		if err != nil {
			return err
		}
		*script = redis.NewScript(string(lib) + string(body))
	}
	return nil
}

func (s *redisStore) newBreaker() *gobreaker.CircuitBreaker[[]any] {
	return gobreaker.NewCircuitBreaker[[]any](gobreaker.Settings{
		Name: "redis", MaxRequests: 1, Timeout: breakerOpen,
		ReadyToTrip: func(gobreaker.Counts) bool { return s.failed.Load() >= breakerFailures },
		// Under the breaker's lock: only note it, the worker tells.
		OnStateChange: func(_ string, _, to gobreaker.State) {
			mode := s.policy
			if to == gobreaker.StateClosed {
				mode = ModeRedis
			}
			s.l.mode.Store(uint32(mode))
		},
	})
}

// call runs a script through the breaker. It takes redis.timeout at most.
func (s *redisStore) call(op string, script *redis.Script, keys []string, args []any) ([]any, error) {
	start := time.Now()
	before := s.l.Mode()
	reply, err := s.breaker.Execute(func() ([]any, error) {
		reply, err := s.run(script, keys, args)
		if err != nil {
			s.failed.Add(1)
		} else if op != opSlots {
			s.failed.Store(0)
		}
		return reply, err
	})
	if s.onRedis != nil {
		s.onRedis(op, time.Since(start), err)
	}
	if after := s.l.Mode(); after != before {
		s.tell(change{before, after, err})
	}
	return reply, err
}

// opSlots is the call that finds out, as a rule, that nothing is free: a Redis
// that has no memory left, and cannot count any more, can still do that.
const opSlots = "slots"

// read runs a script that only reads. A Redis that can be read but not written
// is away all the same, so the breaker is not told of its success.
func (s *redisStore) read(op string, script *redis.Script, keys []string, args []any) ([]any, error) {
	start := time.Now()
	reply, err := s.run(script, keys, args)
	if s.onRedis != nil {
		s.onRedis(op, time.Since(start), err)
	}
	return reply, err
}

func (s *redisStore) run(script *redis.Script, keys []string, args []any) ([]any, error) {
	ctx, cancel := context.WithTimeout(context.Background(), s.timeout)
	defer cancel()
	return script.Run(ctx, s.client, keys, args...).Slice()
}

// tell passes a change of mode to the worker.
func (s *redisStore) tell(c change) {
	select {
	case s.changes <- c:
	default:
	}
}

// micros is the time for the scripts: 0, Redis' own, but in tests.
func (s *redisStore) micros() int64 {
	if s.played {
		return s.at.Load()
	}
	return 0
}

// gateways is by how many the limits are divided while Redis is away.
func (s *redisStore) gateways() int64 {
	if s.fixed > 0 {
		return s.fixed
	}
	return max(1, s.counted.Load())
}

// meanHold is how long a slot is held.
func (s *redisStore) meanHold() time.Duration { return time.Duration(s.hold.Load()) }

// name is a subject's part of its keys.
func (sub subject) name() string {
	switch sub.scope {
	case ScopeModel:
		return "m:" + sub.model
	case ScopeKey:
		return "k:" + sub.key
	}
	return fmt.Sprintf("km:%d:%s:%s", len(sub.key), sub.key, sub.model)
}

// identify gives a reservation its name and keys in Redis.
func (s *redisStore) identify(r *Reservation) {
	r.record = &record{id: fmt.Sprintf("%s-%d", s.gateway, s.ids.Add(1))}
	r.keys = make([]string, 1, 1+2*r.n)
	r.keys[0] = s.prefix + "r:" + r.id
	for i := range r.n {
		name := r.subject(i).name()
		r.keys = append(r.keys, s.prefix+"b:"+name, s.prefix+"s:"+name)
	}
}

// reserve charges r in Redis. An error says that Redis did not answer.
func (s *redisStore) reserve(now time.Time, r *Reservation, ahead Cost) ([]violation, error) {
	if s.breaker.State() != gobreaker.StateClosed {
		return nil, errRedisOpen // the worker tries it
	}
	if s.played {
		s.at.Store(now.UnixMicro())
	}
	s.identify(r)
	reply, err := s.call("reserve", s.reserveScript, r.keys, s.reserveArgs(r, ahead))
	if err == nil && len(reply) != 4+9*r.n {
		err = errShortReply
	}
	if err != nil {
		s.worker.abort(r)
		return nil, err
	}
	r.where = inRedis
	n := integers(reply)
	if n[0] == 0 {
		return violations(r, ahead, n), nil
	}
	r.seq = n[1]
	r.slotted, r.since = n[2] == 1, now
	r.note(n)
	s.worker.hold(r)
	return nil, nil
}

func (s *redisStore) reserveArgs(r *Reservation, ahead Cost) []any {
	args := make([]any, 0, 11+13*r.n)
	take := 1
	if s.worker.waitsFor(r.key) {
		take = 0 // those who wait go first
	}
	args = append(args, r.id, s.micros(), r.cost.Requests, r.cost.Input, r.cost.Output,
		ahead.Requests, ahead.Input, ahead.Output, recordLife.Milliseconds(), leaseLife.Milliseconds(), take)
	for i := range r.n {
		sc := &r.scopes[i]
		for k := range rates {
			rt := sc.rate(k, 1)
			args = append(args, rt.limit, rt.burst, rt.whole)
		}
		args = append(args, slotsOf(sc.limits, 1))
	}
	return args
}

// integers are a script's answer.
func integers(reply []any) []int64 {
	n := make([]int64, len(reply))
	for i, v := range reply {
		n[i], _ = v.(int64)
	}
	return n
}

// reset forgets what the subjects used.
func (s *redisStore) reset(subs []subject) error {
	keys := make([]string, len(subs))
	for i, sub := range subs {
		keys[i] = s.prefix + "b:" + sub.name()
	}
	ctx, cancel := context.WithTimeout(context.Background(), s.timeout)
	defer cancel()
	return s.client.Del(ctx, keys...).Err()
}

// note takes the levels from a reserve's reply.
func (r *Reservation) note(n []int64) {
	for i := range r.n {
		r.inUse[i] = n[4+9*i]
		for k := range rates {
			r.scopes[i].used[k] = n[5+9*i+2*int(k)]
		}
	}
}

// violations reads which limits refused, as memory.check does.
func violations(r *Reservation, ahead Cost, n []int64) []violation {
	r.note(n)
	now := n[3]
	var bad []violation
	for i := range r.n {
		s := &r.scopes[i]
		for k := range rates {
			rt := s.rate(k, 1)
			if rt.limit == 0 {
				continue
			}
			b := bucket{used: s.used[k], at: n[6+9*i+2*int(k)]}
			if w := b.wait(r.cost.of(k), ahead.of(k), rt); w != 0 {
				if w > 0 {
					w += max(0, b.at-now)
				}
				bad = append(bad, violation{scope: s.scope, kind: k, rate: rt, used: b.used, wait: w})
			}
		}
	}
	return bad
}

// trySlot takes r's slots if they are known to be free, else asks the worker to
// try. r is locked.
func (s *redisStore) trySlot(now time.Time, r *Reservation) bool {
	if r.concurrency() == 0 {
		return true
	}
	switch s.l.Mode() {
	case ModeRedis:
		s.worker.want(r)
		return false
	case ModeOpen:
		return true
	}
	s.l.memory.attach(now, r)
	r.slotted = s.l.memory.slot(r, s.gateways())
	r.local, r.since = r.slotted, now
	return r.slotted
}

// concurrency is how many of r's scopes limit it.
func (r *Reservation) concurrency() int {
	n := 0
	for i := range r.n {
		if slotsOf(r.scopes[i].limits, 1) > 0 {
			n++
		}
	}
	return n
}

// settle hands the settlement to the worker.
func (s *redisStore) settle(r *Reservation, used Cost) {
	r.mu.Lock()
	if r.slotted && !r.local {
		mean := time.Duration(s.hold.Load())
		s.hold.Store(int64(mean + (time.Since(r.since)-mean)/8))
	}
	r.mu.Unlock()
	s.worker.settle(r, used)
}

// redisLog takes what go-redis says: it repeats what the breaker tells.
type redisLog struct{ log *slog.Logger }

func (r redisLog) Printf(ctx context.Context, format string, v ...any) {
	r.log.DebugContext(ctx, "redis: "+fmt.Sprintf(format, v...))
}

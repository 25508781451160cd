package limits

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"penstock/configs"
)

// Mode is where the counters are.
type Mode uint32

const (
	// ModeMemory: in this process, since no Redis is configured.
	ModeMemory Mode = iota
	// ModeRedis: shared by all gateways.
	ModeRedis
	// ModeLocal: Redis is away, each gateway enforces its part.
	ModeLocal
	// ModeOpen: Redis is away, nothing is limited.
	ModeOpen
	// ModeClosed: Redis is away, everything is refused.
	ModeClosed
)

// String is the mode as the metric, the log and the answer's header tell it.
func (m Mode) String() string {
	switch m {
	case ModeMemory:
		return "memory"
	case ModeRedis:
		return "redis"
	case ModeLocal:
		return "local"
	case ModeOpen:
		return "open"
	case ModeClosed:
		return "closed"
	}
	return "unknown"
}

// Degraded tells whether Redis is configured but away.
func (m Mode) Degraded() bool { return m >= ModeLocal }

// Options are a Limiter's. Every hook may be nil, and must not block.
type Options struct {
	// MaxKeys bounds the keys whose counters are held in memory. Default 100000.
	MaxKeys int
	// Redis is shared by several gateways where its URL is set.
	Redis configs.Redis
	// Gateway names this process among those that share a Redis. Default: random.
	Gateway string
	// Logger gets a line for each change of mode. Default: none.
	Logger *slog.Logger
	// OnMode is told of each change of mode, with what caused it.
	OnMode func(from, to Mode, cause error)
	// OnRedis is told of each round trip: what for, how long, and its error.
	OnRedis func(op string, took time.Duration, err error)
	// OnSlot is told that a concurrency slot came free or was got: the queues
	// in which this key's requests wait are to be kicked.
	OnSlot func(key, model string)
}

// Limiter decides by rates and concurrency. Any number of goroutines may use it.
type Limiter struct {
	o       Options
	log     *slog.Logger
	memory  *memory
	redis   *redisStore // nil: none
	mode    atomic.Uint32
	waiters waiters
}

// New makes a Limiter. Close ends what it runs for Redis; without Redis there
// is nothing to end. A Redis that is away is no error: the mode says so.
func New(o Options) (*Limiter, error) {
	if o.MaxKeys <= 0 {
		o.MaxKeys = 100_000
	}
	l := &Limiter{o: o, log: o.Logger, memory: newMemory(o.MaxKeys)}
	if l.log == nil {
		l.log = slog.New(slog.DiscardHandler)
	}
	if o.Redis.URL == "" {
		return l, nil
	}
	store, err := newRedisStore(l, o)
	if err != nil {
		return nil, err
	}
	l.redis = store
	l.mode.Store(uint32(ModeRedis))
	store.start()
	return l, nil
}

// Close settles what is left and ends the work for Redis, within ctx.
func (l *Limiter) Close(ctx context.Context) error {
	if l.redis == nil {
		return nil
	}
	return l.redis.close(ctx)
}

// Mode is where the counters are now.
func (l *Limiter) Mode() Mode { return Mode(l.mode.Load()) }

// Request is what Reserve is asked for.
type Request struct {
	// Key is the client's name, Model the model's.
	Key, Model string
	// KeyLimits hold for the key, KeyModelLimits for it on this model, and
	// ModelLimits for the model. nil: none.
	KeyLimits, KeyModelLimits, ModelLimits *configs.Limits
	// Cost is the estimate.
	Cost Cost
	// ahead is what others of this key, who wait before it, will take first.
	ahead Cost
}

// Reserve charges the request's cost in all scopes, or in none. The error is a
// *Refusal. What it returns must be settled once, on every path.
//
// With Redis it takes one round trip, bounded by redis.timeout, and tries for
// the concurrency slots on the way.
func (l *Limiter) Reserve(ctx context.Context, now time.Time, q *Request) (*Reservation, error) {
	r := newReservation(l, q)
	if r.n == 0 {
		return r, nil
	}
	bad, err := l.reserve(ctx, now, r, q.ahead)
	switch {
	case err != nil:
		return nil, err
	case bad != nil:
		return nil, newRefusal(r, bad)
	}
	return r, nil
}

// reserve asks Redis, if there is one, else or where it is away the memory.
func (l *Limiter) reserve(_ context.Context, now time.Time, r *Reservation, ahead Cost) ([]violation, error) {
	r.where = inMemory
	if l.redis == nil {
		return l.memory.reserve(now, r, ahead), nil
	}
	bad, err := l.redis.reserve(now, r, ahead)
	if err == nil {
		return bad, nil
	}
	switch l.redis.policy {
	case ModeClosed:
		return nil, &Refusal{
			Kind: KindUnavailable, Key: r.key, Model: r.model, Mode: ModeClosed,
			ConfigKey: ConfigKey(ScopeKey, KindUnavailable, r.key, r.model), RetryAfter: time.Second,
		}
	case ModeOpen:
		r.where = inNothing
		return nil, nil
	}
	r.where, r.share = inMemory, l.redis.gateways()
	return l.memory.reserve(now, r, ahead), nil
}

// tellSlot says that the slots of r's key or model changed.
func (l *Limiter) tellSlot(r *Reservation) {
	if l.o.OnSlot != nil {
		l.o.OnSlot(r.key, r.model)
	}
}

package gateway

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/valyala/fasthttp"

	"penstock/configs"
	"penstock/engine"
	"penstock/gateway/relay"
	"penstock/limits"
	"penstock/metrics"
	"penstock/router"
)

// Options are what a Server is made of.
type Options struct {
	Config *configs.Config
	Logger *slog.Logger
	// Access takes the access lines. nil: Logger does.
	Access  *slog.Logger
	Metrics *metrics.Metrics
	// Page serves /metrics on the admin listener.
	Page http.Handler
	// Reload reads the configuration anew; nil: there is no file to reload.
	Reload func() (*configs.Config, error)
	// Output takes what launched engines print.
	Output io.Writer
	// Version is shown on the status page and by /version.
	Version string
}

// Server is the gateway: its client listener, its admin listener, and all
// state behind them. Make one with New, run it with Serve, end it with Shutdown.
type Server struct {
	log      *slog.Logger
	access   *slog.Logger
	lines    LineTaker // takes access lines; nil: access does
	linePool sync.Pool // *lineFields
	metrics  *metrics.Metrics
	options  Options

	snapshot atomic.Pointer[snapshot]
	fleet    *engine.Fleet
	pools    *pools
	limiter  *limits.Limiter
	sharing  *sharing // nil: placements are not shared
	relay    *relay.Relay
	tracer   *tracer // nil: tracing is off
	budget   atomic.Pointer[relay.Budget]
	attempts *attempts
	waits    context.Context // of all that wait; ended when the drain is over
	endWaits context.CancelCauseFunc
	recent   *recent
	pulse    pulse
	refusals refusals
	feed     *feed     // of the status page
	pace     pace      // the feed's
	looks    sync.Pool // *look

	routes        map[string]*route
	modelRoute    *route
	responseRoute *route
	responses     *responseOwners

	http          *fasthttp.Server
	started       time.Time
	reloading     sync.Mutex
	reloadTrouble atomic.Pointer[mishap] // of the last reload; nil: it was taken over
	draining      atomic.Bool
	background    sync.WaitGroup // what nobody waits for but Shutdown
}

// New makes a Server and starts its engines' discovery. It returns without
// waiting for them: what has not answered yet is not used.
func New(ctx context.Context, o Options) (*Server, error) {
	cfg := o.Config
	s := &Server{
		log: o.Logger, access: cmp.Or(o.Access, o.Logger), metrics: o.Metrics, options: o, started: time.Now(),
		attempts: newAttempts(), recent: newRecent(), routes: map[string]*route{}, responses: newResponseOwners(),
	}
	if l, ok := s.access.Handler().(LineTaker); ok {
		s.lines = l
		s.linePool.New = func() any { return &lineFields{json: l.LineFormat() == "json"} }
	}
	s.feed = newFeed(s.status)
	s.looks.New = func() any {
		return &look{key: router.NewKeyBuilder(cfg.Routing.BlockTokens, cfg.Limits.TokensPerImage)}
	}
	s.waits, s.endWaits = context.WithCancelCause(context.WithoutCancel(ctx))
	s.relay = relay.New(relay.Options{
		MaxEvent: int(cfg.MaxEvent), MaxIdle: cfg.Timeouts.EngineIdle,
		OnPanic: func(v any) { s.reportPanic("", v) },
	})
	s.pools = newPools(s.relay, o.Metrics, o.Logger)
	limiter, err := limits.New(limits.Options{
		MaxKeys: cfg.Limits.MaxKeys, Redis: cfg.Redis, Logger: o.Logger,
		OnMode: s.limitsMode, OnRedis: s.redisCall, OnSlot: s.pools.slotFree,
	})
	if err != nil {
		return nil, fmt.Errorf("redis: %w", err)
	}
	s.limiter = limiter
	s.metrics.LimitsMode(limiter.Mode().String())
	if s.sharing, err = newSharing(&cfg.Redis, s.pools.placements, o.Metrics, o.Logger); err != nil {
		return nil, fmt.Errorf("redis: %w", err)
	}
	if s.sharing != nil {
		s.pools.share = s.sharing.self
	}
	s.addRoutes()
	s.http = s.newHTTPServer(cfg)
	s.fleet = engine.NewFleet(engine.Options{Logger: o.Logger, Notify: s.onEngine, Output: o.Output})
	s.metrics.SetGauges(s.gauges)
	if s.tracer, err = newTracer(ctx, cfg.Tracing, o.Version, o.Logger); err == nil {
		err = s.apply(ctx, cfg)
	}
	if err != nil {
		s.fleet.Close()
		s.tracer.close()
		return nil, err
	}
	s.sharing.start(s.inBackground)
	return s, nil
}

// apply makes cfg the configuration in force: all of it or none.
func (s *Server) apply(ctx context.Context, cfg *configs.Config) error {
	now := time.Now()
	next := newSnapshot(cfg, now)
	before := s.pools.config()
	s.pools.apply(cfg) // first, since the fleet's events need it
	if err := s.fleet.Apply(ctx, cfg); err != nil {
		if before != nil {
			s.pools.apply(before)
		}
		return err
	}
	s.budget.Store(relay.NewBudget(cfg.Retry.Budget, cfg.Retry.MinPerSecond))
	s.snapshot.Store(next)
	s.reloadTrouble.Store(nil)
	s.feed.changed()
	s.metrics.Reloaded(true, now, next.hash)
	s.pools.kickAll()
	return nil
}

// Reload reads the configuration anew and takes it over; on an error the one
// in force stays.
func (s *Server) Reload(ctx context.Context) error {
	if s.options.Reload == nil {
		return errors.New("there is no configuration file to reload")
	}
	s.reloading.Lock()
	defer s.reloading.Unlock()
	cfg, err := s.options.Reload()
	if err == nil {
		if cfg.Hash() == s.snapshot.Load().hash {
			s.reloadTrouble.Store(nil)
			s.metrics.Reloaded(true, time.Now(), cfg.Hash())
			return nil
		}
		err = s.apply(ctx, cfg)
	}
	if err != nil {
		s.reloadTrouble.Store(&mishap{time.Now(), err.Error()})
		s.feed.changed()
		s.metrics.Reloaded(false, time.Now(), "")
		s.log.Error("the configuration was not reloaded; the one before stays in force", "error", err,
			"hint", "'penstock check --config FILE' names each mistake; correct the file, and it is read again")
		return err
	}
	s.log.Info("configuration reloaded", "hash", s.snapshot.Load().hash)
	if keys := needRestart(s.options.Config, cfg); len(keys) > 0 {
		s.log.Warn("changed settings that take effect with the next start only", "keys", strings.Join(keys, ", "))
	}
	for _, w := range cfg.Warnings() {
		s.log.Warn(w)
	}
	return nil
}

// needRestart names the settings that differ and are read at the start alone.
func needRestart(at, now *configs.Config) (keys []string) {
	for _, c := range []struct {
		key     string
		differs bool
	}{
		{"listen", at.Listen != now.Listen},
		{"admin.listen", at.Admin.Listen != now.Admin.Listen},
		{"tls", at.TLS != now.TLS},
		{"max_headers", at.MaxHeaders != now.MaxHeaders},
		{"max_event", at.MaxEvent != now.MaxEvent},
		{"max_connections", at.MaxConnections != now.MaxConnections},
		{"redis", at.Redis != now.Redis},
		{"routing.block_tokens", at.Routing.BlockTokens != now.Routing.BlockTokens},
		{"limits.max_keys", at.Limits.MaxKeys != now.Limits.MaxKeys},
		{"limits.tokens_per_image", at.Limits.TokensPerImage != now.Limits.TokensPerImage},
		{"timeouts.read_headers", at.Timeouts.ReadHeaders != now.Timeouts.ReadHeaders},
		{"timeouts.keep_alive", at.Timeouts.KeepAlive != now.Timeouts.KeepAlive},
		{"timeouts.engine_idle", at.Timeouts.EngineIdle != now.Timeouts.EngineIdle},
		{"tracing", at.Tracing != now.Tracing},
		{"log.format", at.Log.Format != now.Log.Format},
	} {
		if c.differs {
			keys = append(keys, c.key)
		}
	}
	return keys
}

func (s *Server) newHTTPServer(cfg *configs.Config) *fasthttp.Server {
	return &fasthttp.Server{
		Handler:                            s.handle,
		ErrorHandler:                       s.readFailed,
		HeaderReceived:                     s.headersRead,
		ExpectHandler:                      s.expected,
		Name:                               "penstock",
		Concurrency:                        cfg.MaxConnections,
		ReadBufferSize:                     int(cfg.MaxHeaders),
		ReadTimeout:                        cfg.Timeouts.ReadHeaders,
		IdleTimeout:                        cfg.Timeouts.KeepAlive,
		MaxRequestBodySize:                 int(cfg.MaxBody),
		SecureErrorLogMessage:              true,
		DisablePreParseMultipartForm:       true,
		NoDefaultContentType:               true,
		LazyRequestTime:                    true,
		CloseOnShutdown:                    true,
		SleepWhenConcurrencyLimitsExceeded: time.Second,
		Logger:                             quietLogger{s.log},
	}
}

// quietLogger takes fasthttp's own lines, which are about single connections.
type quietLogger struct{ log *slog.Logger }

func (l quietLogger) Printf(format string, args ...any) { l.log.Debug(fmt.Sprintf(format, args...)) }

// Serve accepts clients until Shutdown. With a TLS configuration it speaks TLS.
func (s *Server) Serve(ln net.Listener, tc *tls.Config) error {
	var l net.Listener = listener{ln, s.writeTimeout}
	if tc != nil {
		l = tls.NewListener(l, tc)
	}
	return s.http.Serve(l)
}

// writeTimeout is for how long a client may take nothing of what is written to it.
func (s *Server) writeTimeout() time.Duration { return s.snapshot.Load().cfg.Timeouts.Write }

// WaitKnown waits until every engine has told what it is.
func (s *Server) WaitKnown(ctx context.Context) error { return s.fleet.WaitKnown(ctx) }

// Shutdown ends the server: no new requests, those running may finish within
// timeouts.drain, the rest are cut off with an error event. It returns how
// many those were.
func (s *Server) Shutdown() (cut int) {
	s.draining.Store(true)
	s.feed.changed()
	drain := s.snapshot.Load().cfg.Timeouts.Drain
	s.log.Info("draining: no new requests", "running", s.attempts.count(), "timeout", drain)
	deadline := time.Now().Add(drain)
	s.waitIdle(deadline)
	cut = s.pools.waiting() + s.limiter.Waiting()
	s.endWaits(relay.ErrDraining) // first, so that none of them begins after the others are ended
	if cut += s.attempts.cancelAll(relay.ErrDraining); cut > 0 {
		s.log.Warn("timeouts.drain is over: requests cut off", "requests", cut,
			"hint", "a longer timeouts.drain lets longer answers finish; the pod's grace period must exceed it")
		s.waitIdle(time.Now().Add(time.Second))
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = s.http.ShutdownWithContext(ctx)
	s.sharing.close()
	s.background.Wait()
	s.feed.close()
	s.tracer.close()
	s.fleet.Close()
	_ = s.limiter.Close(ctx)
	s.pools.close()
	s.relay.Close()
	return cut
}

// waitIdle waits until nothing runs or waits, or the deadline.
func (s *Server) waitIdle(deadline time.Time) {
	for time.Now().Before(deadline) && s.attempts.count()+s.pools.waiting()+s.limiter.Waiting() > 0 {
		time.Sleep(10 * time.Millisecond)
	}
}

// sampled says whether a successful request gets an access line.
func (s *Server) sampled(r *request) bool {
	share := r.snap.cfg.Log.SampleSuccess
	return r.record.status >= 400 || r.record.broke() || coin(share)
}

func (s *Server) limitsMode(_, to limits.Mode, _ error) { s.metrics.LimitsMode(to.String()) }

func (s *Server) redisCall(op string, took time.Duration, err error) {
	s.metrics.RedisCall(took)
	if err != nil {
		s.metrics.RedisError(op)
	}
}

package main

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
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/spf13/cobra"

	"penstock/configs"
	"penstock/gateway"
	"penstock/metrics"
)

func newServeCmd(e *env) *cobra.Command {
	s := &serve{env: e}
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the gateway",
		Long: `Run the gateway. Without --config it serves the model penstock-local from four
embedded replicas, without keys, so that an OpenAI SDK works at once.

SIGHUP and a change of the file reload the configuration; SIGTERM and SIGINT
drain: running streams may finish within timeouts.drain.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			for flag, addr := range map[string]string{"listen": s.listen, "admin": s.admin} {
				if _, _, err := net.SplitHostPort(addr); addr != "" && err != nil {
					return usagef(cmd, "--%s %q: expected host:port, such as 127.0.0.1:8080", flag, addr)
				}
			}
			return s.run(cmd.Context())
		},
	}
	cmd.Flags().StringVar(&s.file, "config", "", "the configuration file (default: none, four local replicas)")
	cmd.Flags().StringVar(&s.listen, "listen", "", "address for clients, in place of the configuration's (default 127.0.0.1:8080)")
	cmd.Flags().StringVar(&s.admin, "admin", "", "address for operators, in place of the configuration's (default 127.0.0.1:9090)")
	return cmd
}

// serve is one run of the gateway.
type serve struct {
	*env
	file, listen, admin string

	log   *slog.Logger
	level *slog.LevelVar
	lines *gathered // the access lines
}

// load reads the configuration, with the flags' say.
func (s *serve) load() (*configs.Config, error) {
	cfg := configs.Default()
	if s.file != "" {
		var err error
		if cfg, err = configs.Load(s.file, s.getenv); err != nil {
			return nil, err
		}
	}
	cfg.Listen = cmp.Or(s.listen, cfg.Listen)
	cfg.Admin.Listen = cmp.Or(s.admin, cfg.Admin.Listen)
	return cfg, cfg.Validate()
}

func (s *serve) run(ctx context.Context) error {
	cfg, err := s.load()
	if err != nil {
		return err
	}
	s.log, s.level = s.env.log.newLogger(s.stderr, cfg.Log.Format, cfg.Log.Level)
	ln, adminLn, err := s.listenAll(cfg)
	if err != nil {
		return err
	}
	srv, err := s.newServer(ctx, cfg)
	if err != nil {
		closeAll(ln, adminLn)
		return err
	}
	tc, err := listenerTLS(cfg)
	if err != nil {
		closeAll(ln, adminLn)
		srv.Shutdown()
		return err
	}
	failed := make(chan error, 2)
	go func() { failed <- srv.Serve(ln, tc) }()
	admin := &http.Server{Handler: srv.Admin(), ReadHeaderTimeout: 10 * time.Second, ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelDebug)}
	if adminLn != nil {
		go func() { failed <- admin.Serve(adminLn) }()
	}
	background, stop := context.WithCancel(ctx)
	defer stop()
	go s.followConfig(background, srv)
	s.announce(background, srv, ln, adminLn, tc != nil, cfg)
	select {
	case <-ctx.Done():
	case err = <-failed:
	}
	stop()
	cut := srv.Shutdown()
	s.lines.flush()
	_ = admin.Close()
	if err != nil && !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	s.log.Info("stopped", "cut_off", cut)
	return nil
}

// listenAll takes both ports, so that one in use is known before anything starts.
func (s *serve) listenAll(cfg *configs.Config) (clients, admin net.Listener, err error) {
	var lc net.ListenConfig
	if clients, err = lc.Listen(context.Background(), "tcp", cfg.Listen); err != nil {
		return nil, nil, fmt.Errorf("listen: %s: %w", cfg.Listen, unwrapListen(err))
	}
	if cfg.Admin.Listen == "" {
		return clients, nil, nil
	}
	if admin, err = lc.Listen(context.Background(), "tcp", cfg.Admin.Listen); err != nil {
		_ = clients.Close()
		return nil, nil, fmt.Errorf("admin.listen: %s: %w", cfg.Admin.Listen, unwrapListen(err))
	}
	return clients, admin, nil
}

// unwrapListen says what is the matter with an address, without repeating it.
func unwrapListen(err error) error {
	if oe, ok := errors.AsType[*net.OpError](err); ok {
		err = oe.Err
	}
	if errors.Is(err, syscall.EADDRINUSE) {
		return errors.New("the port is in use by another process")
	}
	return err
}

func closeAll(cs ...io.Closer) {
	for _, c := range cs {
		if c != nil && c != io.Closer(net.Listener(nil)) {
			_ = c.Close()
		}
	}
}

func (s *serve) newServer(ctx context.Context, cfg *configs.Config) (*gateway.Server, error) {
	reg := prometheus.NewRegistry()
	m := metrics.New(reg, metrics.Options{Version: buildVersion(), Runtime: true})
	page := promhttp.HandlerFor(reg, promhttp.HandlerOpts{EnableOpenMetrics: true})
	s.lines = &gathered{w: s.stderr}
	access, level := s.env.log.newLogger(s.lines, cfg.Log.Format, cfg.Log.Level)
	access = s.env.log.takeLines(access, s.lines, cfg.Log.Format)
	var reload func() (*configs.Config, error)
	if s.file != "" {
		reload = func() (*configs.Config, error) {
			next, err := s.load()
			if err == nil {
				s.env.log.setLevel(s.level, next.Log.Level)
				s.env.log.setLevel(level, next.Log.Level)
			}
			return next, err
		}
	}
	return gateway.New(ctx, gateway.Options{Config: cfg, Logger: s.log, Access: access, Metrics: m, Page: page, Reload: reload, Output: s.stderr, Version: buildVersion()})
}

// listenerTLS is the clients' certificate, read anew when its files change.
func listenerTLS(cfg *configs.Config) (*tls.Config, error) {
	if cfg.TLS.Cert == "" {
		return nil, nil
	}
	tc, err := gateway.ListenerTLS(cfg.TLS.Cert, cfg.TLS.Key)
	if err != nil {
		return nil, fmt.Errorf("tls: %w", err)
	}
	return tc, nil
}

// followConfig reloads on SIGHUP and when the file changes.
func (s *serve) followConfig(ctx context.Context, srv *gateway.Server) {
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	defer signal.Stop(hup)
	changed := make(chan struct{}, 1)
	if s.file != "" {
		go func() {
			err := configs.Watch(ctx, s.file, func() {
				select {
				case changed <- struct{}{}:
				default:
				}
			})
			if err != nil && ctx.Err() == nil {
				s.log.Warn("the configuration file is not watched; reload with SIGHUP or POST /reload", "file", s.file, "error", err)
			}
		}()
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-hup:
		case <-changed:
		}
		_ = srv.Reload(ctx) // it has logged its error and keeps the configuration in force
	}
}

// knownWithin is how long the ready message waits for the engines to tell what they are.
const knownWithin = 5 * time.Second

// fewDescriptors is the limit below which a gateway of any size will meet it.
const fewDescriptors = 4096

// reportDescriptors says how many streams the limit on open files allows: each
// takes two, one to the client and one to the engine.
func (s *serve) reportDescriptors() {
	n := descriptorLimit()
	switch {
	case n == 0:
	case n < fewDescriptors:
		s.log.Warn("few file descriptors are allowed: raise the hard limit (LimitNOFILE, ulimit -n)", "limit", n, "streams", n/2)
	default:
		s.log.Info("file descriptors", "limit", n, "streams", n/2)
	}
}

// announce says what is served, from where, and how to try it.
func (s *serve) announce(ctx context.Context, srv *gateway.Server, ln, admin net.Listener, secure bool, cfg *configs.Config) {
	wait, cancel := context.WithTimeout(ctx, knownWithin)
	defer cancel()
	silent := srv.WaitKnown(wait)
	for _, w := range cfg.Warnings() {
		s.log.Warn(w)
	}
	if len(cfg.Keys) == 0 {
		s.log.Info("no keys are configured: every client is served")
	}
	s.reportDescriptors()
	scheme := "http"
	if secure {
		scheme = "https"
	}
	base := scheme + "://" + ln.Addr().String()
	var b strings.Builder
	fmt.Fprintf(&b, "\nPenstock serves %s\n", base+"/v1")
	models := srv.Models()
	for _, m := range models {
		fmt.Fprintf(&b, "  model %s from %s\n", m.Name, strings.Join(m.Replicas, ", "))
	}
	if silent != nil {
		fmt.Fprintf(&b, "  waiting: %v\n", silent)
	}
	if admin != nil {
		fmt.Fprintf(&b, "  status  http://%s/   metrics  http://%s/metrics\n", admin.Addr(), admin.Addr())
	}
	if len(models) > 0 {
		key := ""
		if len(cfg.Keys) > 0 {
			key = " -H 'Authorization: Bearer YOUR_KEY'"
		}
		fmt.Fprintf(&b, "Try it:\n  curl %s/v1/chat/completions%s -H 'Content-Type: application/json' -d '{\"model\": \"%s\", \"messages\": [{\"role\": \"user\", \"content\": \"Hello\"}]}'\n", base, key, models[0].Name)
	}
	if s.env.log.format == "json" || cfg.Log.Format == "json" {
		s.log.Info("ready", "url", base+"/v1", "models", models)
		return
	}
	fmt.Fprintln(s.stderr, b.String())
}

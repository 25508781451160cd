package engine

import (
	"context"
	"fmt"
	"net"
	"sync"

	"penstock/configs"
	"penstock/engine/local"
)

// localPool is a number of embedded engines in this process, each on a
// loopback port of its own.
type localPool struct {
	servers []*local.Server
	serving sync.WaitGroup
}

// prepareLocal starts the engines of a local: entry, so that they can be
// reached as soon as the configuration is taken.
func (f *Fleet) prepareLocal(e *entry, upstream string, used map[string]bool) error {
	l := *e.engine.Local
	w := &localPool{}
	for _, id := range poolIDs(e.engine.ID, "local", max(l.Replicas, 1), used) {
		addr, err := w.start(f, l, upstream)
		if err != nil {
			w.halt()
			return fmt.Errorf("local: %w", err)
		}
		e.want = append(e.want, target{id: id, url: "http://" + addr, kind: string(KindLocal)})
	}
	e.watch = w
	f.log.Info("embedded engines started: a small language model of our own, for trying things out",
		"model", upstream, "replicas", len(w.servers))
	return nil
}

func (w *localPool) start(f *Fleet, l configs.LocalPool, model string) (addr string, err error) {
	srv, err := local.New(local.Options{
		Model: model, Profile: l.Profile, KVTokens: l.KVTokens, MaxRunning: l.MaxRunning,
		TimeScale: l.TimeScale, Logger: f.log,
	})
	if err != nil {
		return "", err
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	w.servers = append(w.servers, srv)
	w.serving.Go(func() {
		if err := srv.Serve(ln); err != nil {
			f.log.Error("embedded engine failed", "addr", ln.Addr().String(), "error", err)
		}
	})
	return ln.Addr().String(), nil
}

// run has nothing to do: the engines run already.
func (w *localPool) run(ctx context.Context, _ func([]target)) { <-ctx.Done() }

func (w *localPool) halt() {
	for _, s := range w.servers {
		s.Close()
	}
	w.serving.Wait()
}

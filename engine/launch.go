package engine

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"time"
)

// launcher runs the children of one launch entry.
type launcher struct {
	fleet    *Fleet
	entry    *entry
	children []*child
}

// prepareLaunch checks a launch and finds ports for its children. Nothing is
// started yet.
func (f *Fleet) prepareLaunch(ctx context.Context, e *entry, used map[string]bool) error {
	l := *e.engine.Launch
	if l.Preflight {
		err := Preflight(ctx, l)
		switch {
		case errors.Is(err, ErrUnchecked):
			f.log.Warn("launch.command goes unchecked", "command", l.Command, "reason", err)
		case err != nil:
			return err
		}
	}
	n := max(l.Replicas, 1)
	ports, err := childPorts(l.Port, n)
	if err != nil {
		return err
	}
	w := &launcher{fleet: f, entry: e}
	for i, id := range poolIDs(e.engine.ID, "launch", n, used) {
		c, err := newChild(l, i, ports[i], id, f.log, f.opts.Output)
		if err != nil {
			return err
		}
		c.up = func() bool { return w.up(id) }
		c.ended = func(reason string) { w.ended(id, reason) }
		w.children = append(w.children, c)
		e.first = append(e.first, target{id: id, url: "http://" + net.JoinHostPort("127.0.0.1", strconv.Itoa(ports[i]))})
	}
	e.watch = w
	return nil
}

// poolIDs names the members of a pool: the id alone for one, id-0, id-1 … for
// more; without an id the first free numbers of a word.
func poolIDs(id, word string, n int, used map[string]bool) []string {
	if id != "" && n == 1 {
		return []string{id}
	}
	free := id == ""
	if free {
		id = word
	}
	var ids []string
	for i := 0; len(ids) < n; i++ {
		name := id + "-" + strconv.Itoa(i)
		if free && used[name] {
			continue
		}
		used[name] = true
		ids = append(ids, name)
	}
	return ids
}

// childPorts are the configured ones, or free ones.
func childPorts(first, n int) ([]int, error) {
	ports := make([]int, n)
	if first > 0 {
		for i := range ports {
			ports[i] = first + i
		}
		return ports, nil
	}
	for i := range ports {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, fmt.Errorf("launch: no free port: %w", err)
		}
		defer ln.Close() // only when all are found, so that they differ
		ports[i] = ln.Addr().(*net.TCPAddr).Port
	}
	return ports, nil
}

// run runs the children until the context ends, and returns when all have ended.
func (w *launcher) run(ctx context.Context, _ func([]target)) {
	var running sync.WaitGroup
	for _, c := range w.children {
		running.Go(func() { c.run(ctx) })
	}
	running.Wait()
}

func (w *launcher) halt() {}

// server is the one of a child's id. The lock is held.
func (w *launcher) server(id string) *server {
	for _, s := range w.entry.servers {
		if s.id == id {
			return s
		}
	}
	return nil
}

// up says whether a child has answered since it was started.
func (w *launcher) up(id string) bool {
	w.fleet.mu.Lock()
	defer w.fleet.mu.Unlock()
	s := w.server(id)
	return s == nil || phase(s.phase.Load()) == healthy
}

// ended takes a child's replicas out at once: its probes need not find out.
func (w *launcher) ended(id, reason string) {
	f := w.fleet
	f.mu.Lock()
	if s := w.server(id); s != nil && phase(s.phase.Load()) == healthy {
		s.refused = true
		s.setPhase(unhealthy, reason, time.Now())
	}
	f.mu.Unlock()
	f.events.flush()
}

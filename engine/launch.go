package engine

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"time"

	"penstock/configs"
)

// launcher runs one child of a launch.
type launcher struct {
	fleet *Fleet
	entry *entry
	child *child
}

// launchKey is what makes a child another one when it changes. How many others
// there are does not.
func launchKey(l configs.Launch, index int) string {
	devices := devicesOf(l, index)
	l.Replicas, l.Devices = 0, nil
	return fmt.Sprintf("%+v\x00%d\x00%s", l, index, devices)
}

// checkLaunch refuses a launch whose command would not start.
func (f *Fleet) checkLaunch(ctx context.Context, l configs.Launch) error {
	if !l.Preflight {
		return nil
	}
	err := Preflight(ctx, l)
	if errors.Is(err, ErrUnchecked) {
		f.log.Warn("launch.command goes unchecked", "command", l.Command, "reason", err)
		return nil
	}
	return err
}

// prepareLaunch finds a port for a child. Nothing is started yet.
func (f *Fleet) prepareLaunch(e *entry, used map[string]bool) error {
	l := *e.engine.Launch
	port, err := childPort(l.Port, e.index, used)
	if err != nil {
		return err
	}
	id := childID(e.engine.ID, max(l.Replicas, 1), e.index, used)
	c, err := newChild(l, e.index, port, id, f.log, f.opts.Output)
	if err != nil {
		return err
	}
	w := &launcher{fleet: f, entry: e, child: c}
	c.up = func() bool { return w.up(id) }
	c.ended = func(reason string) { w.ended(id, reason) }
	e.want = []target{{id: id, url: loopback(port)}}
	e.watch = w
	return nil
}

// childID names one of n children as poolIDs does.
func childID(id string, n, index int, used map[string]bool) string {
	if id == "" {
		return poolIDs("", "launch", 1, used)[0]
	}
	return poolIDs(id, "", n, used)[index]
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

// childPort is the configured one, counted up, or a free one that no other child
// was given.
func childPort(first, index int, used map[string]bool) (int, error) {
	if first > 0 {
		return first + index, nil
	}
	for {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return 0, fmt.Errorf("launch: no free port: %w", err)
		}
		defer ln.Close() // when one is found, so that they differ
		if url := loopback(ln.Addr().(*net.TCPAddr).Port); !used[url] {
			used[url] = true
			return ln.Addr().(*net.TCPAddr).Port, nil
		}
	}
}

// loopback is the URL of a child at that port.
func loopback(port int) string { return "http://" + net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// run runs the child until the context ends, and returns when it has ended.
func (w *launcher) run(ctx context.Context, _ func([]target)) {
	var running sync.WaitGroup // its own goroutine: it keeps its thread, which ends with it
	running.Go(func() { w.child.run(ctx) })
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

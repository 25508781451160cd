package engine

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"
)

// lookupTimeout bounds one look-up of a name.
const lookupTimeout = 5 * time.Second

// absences is how many look-ups in a row an address must be missing from
// before it is dropped: some name servers hand out parts of a list in turn.
const absences = 2

// dnsWatcher makes every address of a name an engine, and looks it up again
// and again.
type dnsWatcher struct {
	fleet *Fleet
	id    string // begins the engines' ids; "": the address alone
	url   *url.URL
	host  string // with the port, for Host headers and certificates
	port  string

	gone map[netip.Addr]int // look-ups in a row without the address
}

func (f *Fleet) prepareDNS(ctx context.Context, e *entry) error {
	_, u, err := cleanURL(e.engine.URL)
	if err != nil {
		return err
	}
	_, port, err := net.SplitHostPort(hostPort(u))
	if err != nil {
		return fmt.Errorf("url %q: %w", e.engine.URL, err)
	}
	w := &dnsWatcher{fleet: f, id: e.engine.ID, url: u, host: u.Host, port: port, gone: make(map[netip.Addr]int)}
	e.watch = w
	if w.update(ctx) { // a name that does not resolve yet is no reason not to start
		e.want = w.targets()
	}
	return nil
}

// update looks the name up; changed says that other addresses are engines now.
// A failing look-up, or an empty answer, changes nothing: whoever is gone is
// found out by probes.
func (w *dnsWatcher) update(ctx context.Context) (changed bool) {
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	addrs, err := w.fleet.opts.Resolver.LookupNetIP(ctx, "ip", w.url.Hostname())
	if err == nil && len(addrs) == 0 {
		err = fmt.Errorf("no addresses")
	}
	if err != nil {
		if ctx.Err() == nil || ctx.Err() == context.DeadlineExceeded {
			w.fleet.log.Warn("name does not resolve: its engines stay as they are", "name", w.url.Hostname(), "error", err)
		}
		return false
	}
	found := make(map[netip.Addr]bool, len(addrs))
	for _, a := range addrs {
		a = a.Unmap()
		found[a] = true
		if _, known := w.gone[a]; !known {
			changed = true
		}
		w.gone[a] = 0
	}
	for a := range w.gone {
		if found[a] {
			continue
		}
		if w.gone[a]++; w.gone[a] >= absences {
			delete(w.gone, a)
			changed = true
		}
	}
	return changed
}

func (w *dnsWatcher) targets() []target {
	var addrs []netip.Addr
	for a := range w.gone {
		addrs = append(addrs, a)
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	var ts []target
	for _, a := range addrs {
		u := *w.url
		u.Host = net.JoinHostPort(a.String(), w.port)
		id := u.Host
		if w.id != "" {
			id = w.id + "-" + strings.ReplaceAll(a.String(), "%", "-")
		}
		ts = append(ts, target{id: id, url: u.String(), host: w.host})
	}
	return ts
}

func (w *dnsWatcher) run(ctx context.Context, set func([]target)) {
	for ctx.Err() == nil {
		t := time.NewTimer(jitter(w.fleet.resolveInterval()))
		select {
		case <-ctx.Done():
		case <-t.C:
			if w.update(ctx) && ctx.Err() == nil {
				set(w.targets())
			}
		}
		t.Stop()
	}
}

func (w *dnsWatcher) halt() {}

// resolveInterval is between two look-ups of a name.
func (f *Fleet) resolveInterval() time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.cfg == nil || f.cfg.Health.ResolveInterval <= 0 {
		return 10 * time.Second
	}
	return f.cfg.Health.ResolveInterval
}

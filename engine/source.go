package engine

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"penstock/configs"
	"penstock/engine/local"
)

// Where a replica comes from.
const (
	sourceStatic = "static"
	sourceDNS    = "dns"
	sourceFile   = "file"
	sourceAdmin  = "admin"
	sourceLaunch = "launch"
	sourceLocal  = "local"
)

// target is one URL that a source has found.
type target struct {
	id   string
	url  string // clean: see cleanURL
	host string // the name that an address was looked up for, with its port; "": the URL's own

	// What the source itself says of it; zero: as the entry has it.
	kind       string
	dpRanks    string
	firstRank  int
	maxRunning int
	kvTokens   int
	roles      []string
}

// entry is one engine of the file, or one added by the admin API, and the
// servers that it has brought.
type entry struct {
	key    string // the same over reloads as long as it is the same engine
	source string
	model  string // as configured; "": what the engines serve
	engine configs.Engine
	index  int // of a launch: which of its children
	tls    *tls.Config
	watch  watcher // nil: the targets never change

	want    []target  // what its source has last found; once begun, guarded by the fleet's lock
	servers []*server // likewise
	stop    context.CancelFunc
	done    chan struct{} // closed when the watcher has returned
}

// watcher is a source whose targets change, or that must be ended.
type watcher interface {
	// run calls set with all targets whenever they change, and returns when the
	// context ends.
	run(ctx context.Context, set func([]target))
	// halt ends what the source has started (child processes, local engines).
	// It is called after run has returned and may be called without it.
	halt()
}

// plan is a configuration that has been checked and can be committed.
type plan struct {
	cfg  *configs.Config
	keep map[*entry]*entry // old → new settings for it
	all  []*entry          // in the order of the file
}

// discard ends what planning has started.
func (p *plan) discard() {
	for _, e := range p.all {
		if e.watch != nil && p.keep[e] == nil {
			e.watch.halt()
		}
	}
}

// plan checks a configuration and makes its entries; those that the fleet has
// already are taken over.
func (f *Fleet) plan(ctx context.Context, cfg *configs.Config) (*plan, error) {
	f.mu.Lock()
	have := make(map[string]*entry, len(f.entries))
	used := make(map[string]bool)
	for _, e := range f.entries {
		for _, s := range e.servers {
			used[s.id], used[s.target.url] = true, true
		}
		if e.source != sourceAdmin {
			have[e.key] = e
		}
	}
	f.mu.Unlock()
	useNamed(cfg, used)
	p := &plan{cfg: cfg, keep: make(map[*entry]*entry)}
	var errs []error
	seen := make(map[string]int)
	for mi := range cfg.Models {
		m := &cfg.Models[mi]
		for ei := range m.Engines {
			entries, err := newEntries(m, mi, &m.Engines[ei], seen)
			if err == nil {
				err = f.planEntries(ctx, p, entries, have, cmp.Or(m.Upstream, m.Name, local.DefaultModel), used)
			}
			if err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", where(m, mi, ei), err))
			}
		}
	}
	if err := f.uniqueIDs(p); err != nil {
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		p.discard()
		return nil, err
	}
	return p, nil
}

// useNamed notes the ids that the file itself gives, wherever in it, so that
// pools without one are numbered around them.
func useNamed(cfg *configs.Config, used map[string]bool) {
	for _, m := range cfg.Models {
		for _, eng := range m.Engines {
			used[eng.ID] = true
			if eng.URL == "" || eng.Resolve != "" {
				continue
			}
			if t, err := staticTarget(eng); err == nil {
				used[t.id] = true
			}
		}
	}
}

// planEntries takes the entries of one engine of the file into the plan.
func (f *Fleet) planEntries(ctx context.Context, p *plan, entries []*entry, have map[string]*entry, upstream string, used map[string]bool) error {
	checked := false
	for _, e := range entries {
		if old := have[e.key]; old != nil {
			p.keep[old] = e
			p.all = append(p.all, old)
			continue
		}
		if l := e.engine.Launch; l != nil && !checked {
			if err := f.checkLaunch(ctx, *l); err != nil {
				return err
			}
			checked = true
		}
		if err := f.prepare(ctx, e, upstream, used); err != nil {
			return err
		}
		p.all = append(p.all, e)
	}
	return nil
}

func where(m *configs.Model, mi, ei int) string {
	if m.Name != "" {
		return fmt.Sprintf("model %s: engines[%d]", m.Name, ei)
	}
	return fmt.Sprintf("models[%d].engines[%d]", mi, ei)
}

// newEntries reads one engine of the file. Each child of a launch is an entry of
// its own, so that a change of their number leaves the others alone.
func newEntries(m *configs.Model, mi int, eng *configs.Engine, seen map[string]int) ([]*entry, error) {
	n := 1
	if eng.Launch != nil {
		n = max(eng.Launch.Replicas, 1)
	}
	entries := make([]*entry, n)
	for i := range entries {
		e, err := newEntry(m, mi, eng, i, seen)
		if err != nil {
			return nil, err
		}
		entries[i] = e
	}
	return entries, nil
}

func newEntry(m *configs.Model, mi int, eng *configs.Engine, index int, seen map[string]int) (*entry, error) {
	tc, err := loadTLS(eng.TLS)
	if err != nil {
		return nil, err
	}
	if eng.Kind != "" {
		if _, err := newAdapter(Kind(eng.Kind)); err != nil {
			return nil, err
		}
	}
	e := &entry{model: m.Name, engine: *eng, index: index, tls: tc}
	model := m.Name
	if model == "" {
		model = fmt.Sprintf("#%d", mi)
	}
	var what string
	switch {
	case eng.Launch != nil:
		e.source, what = sourceLaunch, launchKey(*eng.Launch, index)
	case eng.Local != nil:
		e.source, what = sourceLocal, fmt.Sprintf("%+v", *eng.Local)
	case eng.File != "":
		e.source, what = sourceFile, eng.File
	case eng.Resolve == "dns":
		e.source, what = sourceDNS, eng.URL
	default:
		e.source, what = sourceStatic, eng.URL
	}
	e.key = strings.Join([]string{model, e.source, eng.ID, what}, "\x00")
	seen[e.key]++
	e.key += fmt.Sprintf("\x00%d", seen[e.key])
	return e, nil
}

// prepare makes a new entry's source and finds the targets that it starts with.
// upstream is the name by which the engines are asked for the model; used are
// the ids and URLs given out so far.
func (f *Fleet) prepare(ctx context.Context, e *entry, upstream string, used map[string]bool) error {
	var err error
	switch e.source {
	case sourceLaunch:
		err = f.prepareLaunch(e, used)
	case sourceLocal:
		err = f.prepareLocal(e, upstream, used)
	case sourceFile:
		err = f.prepareFile(e)
	case sourceDNS:
		err = f.prepareDNS(ctx, e)
	default:
		var t target
		if t, err = staticTarget(e.engine); err == nil {
			e.want = []target{t}
		}
	}
	return err
}

func staticTarget(eng configs.Engine) (target, error) {
	clean, u, err := cleanURL(eng.URL)
	if err != nil {
		return target{}, err
	}
	t := target{id: eng.ID, url: clean}
	if t.id == "" {
		t.id = hostPort(u)
	}
	return t, nil
}

// cleanURL checks an engine's URL and cuts off a trailing slash and the /v1
// that stands in many clients' settings.
func cleanURL(raw string) (string, *url.URL, error) {
	u, err := parseURL(raw)
	if err != nil {
		return "", nil, err
	}
	u.Path = strings.TrimSuffix(strings.TrimSuffix(strings.TrimRight(u.Path, "/"), "/v1"), "/")
	u.RawQuery, u.Fragment, u.User = "", "", nil
	return u.String(), u, nil
}

// uniqueIDs checks the ids that are known before anything is looked up. Of an
// entry that stays they are those of its engines now: what its source found at
// the start may be long gone.
func (f *Fleet) uniqueIDs(p *plan) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	seen := make(map[string]string)
	for _, e := range p.all {
		ts := e.want
		if p.keep[e] != nil {
			ts = nil
			for _, s := range e.servers {
				ts = append(ts, s.target)
			}
		}
		for _, t := range ts {
			if other, ok := seen[t.id]; ok {
				return fmt.Errorf("two engines have the id %q (%s and %s): set engines[].id", t.id, other, t.url)
			}
			seen[t.id] = t.url
		}
	}
	return nil
}

// commit makes the plan the fleet's. The lock is held.
func (f *Fleet) commit(p *plan) error {
	now := time.Now()
	f.cfg = p.cfg
	f.upstream = make(map[string]string)
	for i := range p.cfg.Models {
		f.upstream[p.cfg.Models[i].Name] = p.cfg.Models[i].Upstream
	}
	old := f.entries
	f.entries = nil
	for _, e := range old {
		if p.keep[e] == nil && e.source != sourceAdmin {
			f.retire(e, now)
		}
	}
	f.entries = slices.Clone(p.all) // known before any begins, and asks whether an id is taken
	for _, e := range old {
		if e.source == sourceAdmin {
			f.entries = append(f.entries, e)
		}
	}
	for _, e := range p.all {
		if fresh := p.keep[e]; fresh != nil {
			e.engine, e.tls = fresh.engine, fresh.tls
			continue
		}
		f.begin(e, now)
	}
	f.fillAll(now)
	f.entries = slices.DeleteFunc(f.entries, func(e *entry) bool { return e.source == sourceAdmin && len(e.servers) == 0 })
	return f.reconfigure()
}

// begin starts a new entry: its first targets, and its watcher. The lock is held.
func (f *Fleet) begin(e *entry, now time.Time) {
	f.setTargets(e, e.want, now)
	if e.watch == nil {
		return
	}
	ctx, cancel := context.WithCancel(f.ctx)
	e.stop, e.done = cancel, make(chan struct{})
	f.wg.Go(func() {
		defer close(e.done)
		e.watch.run(ctx, func(ts []target) { f.found(ctx, e, ts) })
	})
}

// found takes other targets of a source, unless a reload has dropped it: it is
// ended only when its requests have.
func (f *Fleet) found(ctx context.Context, e *entry, ts []target) {
	f.mu.Lock()
	if ctx.Err() == nil && slices.Contains(f.entries, e) {
		f.setTargets(e, ts, time.Now())
	}
	f.mu.Unlock()
	f.events.flush()
}

// settingsFor are the settings of one target. The lock is held.
func (f *Fleet) settingsFor(e *entry, t target) *settings {
	eng := e.engine
	if t.kind != "" {
		eng.Kind = t.kind
	}
	if t.dpRanks != "" {
		eng.DPRanks = t.dpRanks
	}
	if t.roles != nil {
		eng.Roles = t.roles
	}
	eng.FirstRank = firstPositive(t.firstRank, eng.FirstRank)
	eng.MaxRunning = firstPositive(t.maxRunning, eng.MaxRunning)
	eng.KVTokens = firstPositive(t.kvTokens, eng.KVTokens)
	set := &settings{source: e.source, engine: eng, health: f.cfg.Health, breaker: f.cfg.Breaker, timeouts: f.cfg.Timeouts}
	for i := range f.cfg.Models {
		if m := &f.cfg.Models[i]; m.Name == e.model && m.Timeouts.Connect > 0 {
			set.timeouts.Connect = m.Timeouts.Connect
		}
	}
	return set
}

// reconfigure gives every server its settings anew. The lock is held.
func (f *Fleet) reconfigure() error {
	var errs []error
	for _, e := range f.entries {
		for _, s := range e.servers {
			if err := s.configure(e, f.settingsFor(e, s.target)); err != nil {
				errs = append(errs, err)
				continue
			}
			s.ask()
		}
	}
	for _, g := range f.groups { // a new setting made a new breaker, closed
		f.judge(g)
	}
	return errors.Join(errs...)
}

// retire takes an entry out. What it has started itself is ended when the
// requests there have, or when they must have. The lock is held.
func (f *Fleet) retire(e *entry, now time.Time) {
	servers := e.servers
	for _, s := range servers {
		s.remove(now)
	}
	if e.stop == nil {
		return
	}
	limit := f.cfg.Timeouts.Request
	f.wg.Go(func() {
		ctx, cancel := context.WithTimeout(f.ctx, limit)
		defer cancel()
		for _, s := range servers {
			s.waitIdle(ctx)
		}
		e.halt()
	})
}

// halt ends an entry's watcher and what it has started, at once.
func (e *entry) halt() {
	if e.stop == nil {
		return
	}
	e.stop()
	<-e.done
	e.watch.halt()
}

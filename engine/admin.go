package engine

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"penstock/configs"
)

// Add takes in an engine by the admin API. The model must be one that the
// configuration names; "" is allowed where there is one only. The engine needs
// a URL, and is otherwise as in the file. It survives reloads, not a restart.
// The ids of its replicas begin with the returned one.
func (f *Fleet) Add(model string, eng configs.Engine) (id string, err error) {
	f.applying.Lock()
	defer f.applying.Unlock()
	if eng.URL == "" {
		return "", fmt.Errorf("%w: url is missing, expected http://host:port", ErrInvalid)
	}
	if eng.Launch != nil || eng.Local != nil || eng.File != "" || eng.Resolve != "" {
		return "", fmt.Errorf("%w: only an engine with a url can be added", ErrInvalid)
	}
	t, err := staticTarget(eng)
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	seen := make(map[string]int)
	e, err := newEntry(&configs.Model{Name: model}, 0, &eng, 0, seen)
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	e.source, e.want = sourceAdmin, []target{t}
	f.mu.Lock()
	err = f.admit(e, t)
	f.mu.Unlock()
	f.events.flush()
	return t.id, err
}

// admit puts an added engine in. The lock is held.
func (f *Fleet) admit(e *entry, t target) error {
	if f.closed || f.cfg == nil {
		return ErrClosed
	}
	if err := f.chooseModel(e); err != nil {
		return err
	}
	if _, s := f.holder(t.id); s != nil {
		return fmt.Errorf("%w: there is a replica %q already", ErrConflict, t.id)
	}
	f.entries = append(f.entries, e)
	f.setTargets(e, e.want, time.Now())
	return nil
}

func (f *Fleet) chooseModel(e *entry) error {
	var names []string
	for i := range f.cfg.Models {
		m := &f.cfg.Models[i]
		if m.Name == e.model || slices.Contains(m.Aliases, e.model) && e.model != "" {
			e.model = m.Name
			return nil
		}
		names = append(names, m.Name)
	}
	if e.model == "" && len(names) == 1 {
		e.model = names[0]
		return nil
	}
	if len(names) == 1 && names[0] == "" { // the one model takes its name from its engines
		if _, ok := f.groups[e.model]; ok {
			e.model = ""
			return nil
		}
	}
	return fmt.Errorf("%w: model %q, expected one of %s", ErrNotFound, e.model, strings.Join(names, ", "))
}

// Remove takes out a replica that the admin API has added: a URL by its id, or
// one of its ranks. Requests in flight go on to their end. ErrConflict for one
// that the file names: it would be back at the next reload.
func (f *Fleet) Remove(id string) error {
	f.applying.Lock()
	defer f.applying.Unlock()
	f.mu.Lock()
	err := f.remove(id, time.Now())
	f.mu.Unlock()
	f.events.flush()
	return err
}

func (f *Fleet) remove(id string, now time.Time) error {
	e, s, r := f.find(id)
	if s == nil {
		return fmt.Errorf("%w: no replica %q", ErrNotFound, id)
	}
	if e.source != sourceAdmin {
		return fmt.Errorf("%w: replica %q comes from the configuration (%s): take it out there, or drain it", ErrConflict, id, e.source)
	}
	if r != nil && len(s.replicas) > 1 { // one of several ranks
		s.drop(r, now)
		return nil
	}
	e.servers = nil
	f.entries = slices.DeleteFunc(f.entries, func(o *entry) bool { return o == e })
	s.remove(now)
	f.log.Info("engine removed", "replica", s.id, "url", s.target.url, "source", e.source)
	return nil
}

// drop takes out one rank. The fleet's lock is held.
func (s *server) drop(r *Replica, now time.Time) {
	s.dropped = append(s.dropped, r.rank)
	r.removed.Store(true)
	s.replicas = slices.DeleteFunc(s.replicas, func(o *Replica) bool { return o == r })
	s.fleet.events.add(Event{Type: Removed, Replica: r, At: now})
}

// Drain stops new requests to a replica, or to all ranks of a URL; those in
// flight go on. Undrain takes it back.
func (f *Fleet) Drain(id string) error { return f.setDraining(id, true) }

// Undrain lets new requests to a drained replica again.
func (f *Fleet) Undrain(id string) error { return f.setDraining(id, false) }

func (f *Fleet) setDraining(id string, on bool) error {
	f.mu.Lock()
	now := time.Now()
	_, s, r := f.find(id)
	switch {
	case s == nil:
		f.mu.Unlock()
		return fmt.Errorf("%w: no replica %q", ErrNotFound, id)
	case r != nil && r.rank >= 0:
		if r.draining.Swap(on) != on && s.announced {
			f.events.add(Event{Type: StateChanged, Replica: r, State: r.State(), At: now})
		}
	default:
		for _, rank := range s.replicas {
			rank.draining.Store(false)
		}
		if s.draining.Swap(on) != on {
			s.tell(StateChanged, "", now)
		}
		f.log.Info("draining", "replica", s.id, "on", on)
	}
	if s.group != nil {
		f.judge(s.group)
	}
	f.mu.Unlock()
	f.events.flush()
	return nil
}

// find looks up an id: of a URL (r is nil, or its only replica) or of one rank.
// The lock is held.
func (f *Fleet) find(id string) (*entry, *server, *Replica) {
	for _, e := range f.entries {
		for _, s := range e.servers {
			for _, r := range s.replicas {
				if r.id == id {
					return e, s, r
				}
			}
			if s.id == id {
				return e, s, nil
			}
		}
	}
	return nil, nil, nil
}

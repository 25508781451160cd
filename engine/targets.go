package engine

import (
	"reflect"
	"slices"
	"time"
)

// setTargets takes what an entry's source has found. The lock is held.
func (f *Fleet) setTargets(e *entry, ts []target, now time.Time) {
	e.want = ts
	gone := f.shed(e, now)
	for _, t := range f.fill(e, now) {
		f.log.Error("two engines have one id: the later is left out until the other is gone", "id", t.id, "url", t.url)
	}
	if gone {
		f.fillAll(now)
	}
}

// shed takes out the servers that an entry's source has no more; any says that
// there were such. The lock is held.
func (f *Fleet) shed(e *entry, now time.Time) (any bool) {
	var gone []*server
	e.servers = slices.DeleteFunc(e.servers, func(s *server) bool {
		stays := slices.ContainsFunc(e.want, func(t target) bool { return t.id == s.id && t.url == s.target.url })
		if !stays {
			gone = append(gone, s)
		}
		return !stays
	})
	for _, s := range gone {
		f.log.Info("engine removed", "replica", s.id, "url", s.target.url, "source", e.source)
		s.remove(now)
	}
	return len(gone) > 0
}

// fillAll lets every entry take what it was refused as long as another had the
// id: an engine that moves from one source to another may be read in the new
// one first. The lock is held.
func (f *Fleet) fillAll(now time.Time) {
	for _, e := range f.entries {
		f.fill(e, now)
	}
}

// fill makes servers of the targets that an entry lacks, and gives those it has
// what their source says of them now; left are those whose id another entry
// has. The lock is held.
func (f *Fleet) fill(e *entry, now time.Time) (left []target) {
	for _, t := range e.want {
		o, s := f.holder(t.id)
		switch {
		case s == nil:
			f.addServer(e, t)
		case o == e:
			if !reflect.DeepEqual(s.target, t) {
				f.retarget(e, s, t)
			}
		case o.source == sourceAdmin && e.source != sourceAdmin:
			f.takeOver(e, t, o, s, now)
		default:
			left = append(left, t)
		}
	}
	return left
}

func (f *Fleet) addServer(e *entry, t target) {
	s, err := f.newServer(e, t, f.settingsFor(e, t))
	if err != nil {
		f.log.Error("engine left out", "id", t.id, "url", t.url, "error", err)
		return
	}
	e.servers = append(e.servers, s)
	s.start()
}

// retarget gives a server what its source says of it now. The lock is held.
func (f *Fleet) retarget(e *entry, s *server, t target) {
	was := s.target
	s.target = t
	set := f.settingsFor(e, t)
	if err := s.configure(e, set); err != nil {
		s.target = was
		f.log.Error("engine keeps its settings", "replica", s.id, "error", err)
		return
	}
	eng := set.engine
	f.log.Info("engine has new settings", "replica", s.id, "source", e.source, "kind", eng.Kind, "roles", eng.Roles, "dp_ranks", eng.DPRanks,
		"first_rank", eng.FirstRank, "max_running", eng.MaxRunning, "kv_tokens", eng.KVTokens)
	s.ask()
}

// takeOver gives an entry of the file the id of an engine that the admin API
// has added: the same engine with all its state, or another in its place. The
// admin's entry stays empty until the next commit. The lock is held.
func (f *Fleet) takeOver(e *entry, t target, admin *entry, s *server, now time.Time) {
	admin.want, admin.servers = nil, nil // it has one server
	if s.target.url != t.url || s.model != e.model {
		f.log.Warn("engine of the admin API removed: the file names its id for another", "replica", s.id, "url", s.target.url)
		s.remove(now)
		f.addServer(e, t)
		return
	}
	e.servers = append(e.servers, s)
	f.retarget(e, s, t)
}

// holder finds the server of an id. The lock is held.
func (f *Fleet) holder(id string) (*entry, *server) {
	for _, e := range f.entries {
		for _, s := range e.servers {
			if s.id == id {
				return e, s
			}
		}
	}
	return nil, nil
}

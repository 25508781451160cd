package gateway

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
)

const (
	// shownKeys bounds the keys in one update; the busiest are shown, all are on /limits.
	shownKeys = 100
	// limitsTimeout bounds what Redis is given to tell the counters of all keys.
	limitsTimeout = time.Second
)

// statusObject is one update of the status page: what the other paths of the
// admin listener tell, as of one moment, with what is wrong in plain words.
type statusObject struct {
	Time        time.Time       `json:"time"`
	Version     string          `json:"version"`
	StartedAt   time.Time       `json:"started_at"`
	ConfigHash  string          `json:"config_hash"`
	LoadedAt    time.Time       `json:"config_loaded_at"`
	CanReload   bool            `json:"can_reload"` // there is a configuration file
	NeedsKey    bool            `json:"needs_key"`  // actions need admin.key
	Draining    bool            `json:"draining"`
	Connections int             `json:"connections"`
	Summary     summary         `json:"summary"`
	Replicas    []replicaObject `json:"replicas"`
	Limits      limitsObject    `json:"limits"`
	KeysTotal   int             `json:"keys_total"` // those in limits are the busiest of these
	Trouble     []trouble       `json:"trouble"`
	Point       point           `json:"point"`

	before []point // the history before the first update
}

// summary is the state of it all in one sentence.
type summary struct {
	Level string `json:"level"` // ok, warn or bad
	Text  string `json:"text"`
}

// Levels of summaries and trouble.
const (
	levelOK   = "ok"
	levelNote = "note"
	levelWarn = "warn"
	levelBad  = "bad"
)

// status takes a snapshot for the status page. The feed calls it, one call at
// a time.
func (s *Server) status(first bool) *statusObject {
	now := time.Now()
	snap := s.snapshot.Load()
	ctx, cancel := context.WithTimeout(context.Background(), limitsTimeout)
	defer cancel()
	o := &statusObject{
		Time: now, Version: s.options.Version, StartedAt: s.started, ConfigHash: snap.hash, LoadedAt: snap.loadedAt,
		CanReload: s.options.Reload != nil, NeedsKey: snap.cfg.Admin.Key != "", Draining: s.draining.Load(),
		Connections: int(s.http.GetOpenConnectionsCount()), Replicas: s.replicaObjects(now), Limits: s.limitsObject(ctx, now),
	}
	o.KeysTotal = len(o.Limits.Keys)
	o.Limits.Keys = busiest(o.Limits.Keys, shownKeys)
	o.Trouble = append(s.standing(o), pastTrouble(s.recent, now)...)
	o.Summary = summarize(o)
	x := s.sums(now)
	if first {
		o.before, s.pace = s.backfill(now, x)
	}
	o.Point = s.pace.next(x, s.firstTokens(now))
	return o
}

// firstTokens is the spread of the last seconds' first-token times, over all replicas.
func (s *Server) firstTokens(now time.Time) *spread {
	var ms []float64
	for _, pl := range s.pools.all() {
		for _, m := range *pl.members.Load() {
			ms = m.tally.appendFirsts(ms, now.Add(-(smoothing+1)*time.Second))
		}
	}
	return newSpread(ms)
}

// busiest is at most n keys: those that wait, run and are refused most, in the
// order of the configuration.
func busiest(keys []keyObject, n int) []keyObject {
	if len(keys) <= n {
		return keys
	}
	at := make([]int, len(keys))
	for i := range at {
		at[i] = i
	}
	slices.SortStableFunc(at, func(a, b int) int {
		x, y := &keys[a], &keys[b]
		return cmp.Or(cmp.Compare(y.Waiting+y.Running, x.Waiting+x.Running), cmp.Compare(y.Served, x.Served), cmp.Compare(len(y.Refusals), len(x.Refusals)))
	})
	at = at[:n]
	slices.Sort(at)
	out := make([]keyObject, n)
	for i, k := range at {
		out[i] = keys[k]
	}
	return out
}

// summarize says in one sentence how things are.
func summarize(o *statusObject) summary {
	usable, running, waiting := 0, 0, 0
	var out []string
	for i := range o.Replicas {
		r := &o.Replicas[i]
		running += r.InFlight
		if r.Usable {
			usable++
		} else {
			out = append(out, r.ID)
		}
	}
	for _, q := range o.Limits.Queues {
		waiting += q.Waiting
	}
	work := fmt.Sprintf("%s running, %s waiting.", count(running, "request"), orNone(waiting))
	n := len(o.Replicas)
	switch {
	case o.Draining:
		return summary{levelWarn, "This gateway is shutting down: no new requests, " + work}
	case n == 0:
		return summary{levelBad, "There is no replica: every request is refused."}
	case usable == 0:
		return summary{levelBad, "No replica takes requests: " + some(out) + ". " + work}
	}
	for _, pl := range o.Limits.Queues {
		if !slices.ContainsFunc(o.Replicas, func(r replicaObject) bool { return r.Model == pl.Model && r.Usable }) {
			return summary{levelBad, "No replica of " + pl.Model + " takes requests. " + work}
		}
	}
	switch {
	case usable < n:
		return summary{levelWarn, fmt.Sprintf("%d of %d replicas take no requests: %s. %s", n-usable, n, some(out), work)}
	case lately(o, func(t trouble) bool { return t.Level == levelBad }):
		return summary{levelWarn, fmt.Sprintf("%s, but some failed in the last minute: see below. %s", all(n), work)}
	case lately(o, func(t trouble) bool { return t.Code == "queue_full" || t.Code == "queue_timeout" }):
		return summary{levelWarn, fmt.Sprintf("%s, but there is not enough room for all. %s", all(n), work)}
	}
	return summary{levelOK, all(n) + ". " + work}
}

// lately says that there was such trouble in the last minute.
func lately(o *statusObject, is func(trouble) bool) bool {
	return slices.ContainsFunc(o.Trouble, func(t trouble) bool { return is(t) && o.Time.Sub(t.Last) < time.Minute })
}

func all(n int) string {
	switch n {
	case 1:
		return "The one replica takes requests"
	case 2:
		return "Both replicas take requests"
	}
	return fmt.Sprintf("All %d replicas take requests", n)
}

// some is the first few names.
func some(names []string) string {
	const most = 4
	if n := len(names); n > most {
		return strings.Join(names[:most], ", ") + fmt.Sprintf(" and %d more", n-most)
	}
	return strings.Join(names, ", ")
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func orNone(n int) string {
	if n == 0 {
		return "none"
	}
	return fmt.Sprint(n)
}

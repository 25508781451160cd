package gateway

import (
	"context"
	"net/http"
	"time"

	"penstock/configs"
	"penstock/limits"
	"penstock/metrics"
)

// limitsObject is GET /limits: every key's and model's use of its limits, and
// the queues.
type limitsObject struct {
	Mode   string             `json:"mode"`
	Keys   []keyObject        `json:"keys"`
	Models []modelLimits      `json:"models"`
	Queues []limits.QueueStat `json:"queues"`
	Error  string             `json:"error,omitempty"` // Redis did not answer: the states are this gateway's own
}

type keyObject struct {
	Key      string        `json:"key"`
	Weight   float64       `json:"weight"`
	Priority string        `json:"priority,omitempty"`
	Waiting  int           `json:"waiting"`
	Running  int           `json:"running"`
	Served   float64       `json:"served"` // tokens lately, uncached input + 2 × output
	Share    float64       `json:"share"`  // of all that was served lately
	Limits   []limits.Stat `json:"limits"`
	// Refusals are the key's refused requests since the start, by reason.
	Refusals map[string]int64 `json:"refusals"`
}

type modelLimits struct {
	Model   string          `json:"model"`
	Derived *limits.Derived `json:"derived,omitempty"` // by limits.mode: auto
	Limits  []limits.Stat   `json:"limits"`
}

// adminLimits tells every key's use of its limits.
func (s *Server) adminLimits(w http.ResponseWriter, r *http.Request) {
	writeJSON(w, http.StatusOK, s.limitsObject(r.Context(), time.Now()))
}

func (s *Server) limitsObject(ctx context.Context, now time.Time) limitsObject {
	snap := s.snapshot.Load()
	o := limitsObject{Mode: s.limiter.Mode().String(), Keys: []keyObject{}, Models: []modelLimits{}, Queues: []limits.QueueStat{}}
	pools := s.pools.all()
	for _, pl := range pools {
		o.Queues = append(o.Queues, pl.queue.Stats(now))
	}
	subjects, owner := s.limitSubjects(snap, pools)
	stats, err := s.limiter.Stats(ctx, now, subjects)
	if err != nil {
		o.Error = "Redis did not answer; what follows is this gateway's own count"
	}
	at := map[string]int{}
	var total float64
	for _, name := range snap.names {
		k := keyObject{Key: name, Weight: snap.byName[name].share, Priority: snap.byName[name].key.Priority, Limits: []limits.Stat{}, Refusals: s.refusals.of(name)}
		for _, q := range o.Queues {
			for _, part := range q.Keys {
				if part.Key == name {
					k.Waiting, k.Running, k.Served = k.Waiting+part.Waiting, k.Running+part.Running, k.Served+part.Served
				}
			}
		}
		total += k.Served
		at[name] = len(o.Keys)
		o.Keys = append(o.Keys, k)
	}
	for i := range o.Keys {
		if total > 0 {
			o.Keys[i].Share = o.Keys[i].Served / total
		}
	}
	for _, pl := range pools {
		at["\x00"+pl.name] = len(o.Models)
		o.Models = append(o.Models, modelLimits{Model: pl.name, Derived: pl.derived.Load(), Limits: []limits.Stat{}})
	}
	for i, st := range stats {
		if subjects[i].Scope == limits.ScopeModel {
			m := &o.Models[at["\x00"+owner[i]]]
			m.Limits = append(m.Limits, st)
			continue
		}
		k := &o.Keys[at[owner[i]]]
		k.Limits = append(k.Limits, st)
	}
	return o
}

// limitSubjects is whose limits there are, and under which key or model each is shown.
func (s *Server) limitSubjects(snap *snapshot, pools []*pool) (subjects []limits.Subject, owner []string) {
	for _, name := range snap.names {
		c := snap.byName[name]
		subjects, owner = append(subjects, limits.Subject{Scope: limits.ScopeKey, Key: name, Limits: &c.key.Limits}), append(owner, name)
		for _, pl := range pools {
			if l, ok := c.key.LimitsFor(pl.config.Load()); ok {
				subjects = append(subjects, limits.Subject{Scope: limits.ScopeKeyModel, Key: name, Model: pl.name, Limits: &l})
				owner = append(owner, name)
			}
		}
	}
	for _, pl := range pools {
		if l := &pl.config.Load().Limits; *l != (configs.Limits{}) {
			subjects, owner = append(subjects, limits.Subject{Scope: limits.ScopeModel, Model: pl.name, Limits: l}), append(owner, pl.name)
		}
	}
	return subjects, owner
}

// adminReset fills a key's buckets again.
func (s *Server) adminReset(w http.ResponseWriter, r *http.Request) {
	key := r.PathValue("key")
	if _, ok := s.snapshot.Load().byName[key]; !ok {
		s.writeError(w, &Error{Status: http.StatusNotFound, Type: typeInvalid, Code: "not_found", Message: "No key is called " + clip(key, 100) + "."})
		return
	}
	var models []string
	for _, pl := range s.pools.all() {
		models = append(models, pl.name)
	}
	if err := s.limiter.Reset(r.Context(), key, models); err != nil {
		e := serverError(http.StatusServiceUnavailable, "limits_unavailable", "Redis did not answer; this gateway's own buckets are full again, the shared ones are not.")
		e.Cause = err
		s.writeError(w, e)
		return
	}
	s.log.Info("limits reset by the admin API", "key", key)
	s.pools.kickAll()
	writeJSON(w, http.StatusOK, map[string]string{"reset": key})
}

// limitGauges are the limits as the metrics show them.
func (s *Server) limitGauges(ctx context.Context, now time.Time) ([]metrics.KeyGauges, []metrics.LimitGauge) {
	o := s.limitsObject(ctx, now)
	var keys []metrics.KeyGauges
	var all []metrics.LimitGauge
	add := func(key, model string, st limits.Stat) {
		for _, r := range st.Rates {
			all = append(all, metrics.LimitGauge{Key: key, Model: model, Limit: r.Kind, Value: float64(r.Limit), Remaining: float64(r.Remaining)})
		}
		if st.Concurrency > 0 {
			all = append(all, metrics.LimitGauge{Key: key, Model: model, Limit: "concurrency", Value: float64(st.Concurrency), Remaining: float64(st.Concurrency - st.Running)})
		}
	}
	for _, k := range o.Keys {
		keys = append(keys, metrics.KeyGauges{Key: k.Key, InFlight: k.Running, Waiting: k.Waiting})
		for _, st := range k.Limits {
			add(k.Key, st.Model, st)
		}
	}
	for _, m := range o.Models {
		for _, st := range m.Limits {
			add("", m.Model, st)
		}
	}
	return keys, all
}

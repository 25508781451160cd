package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/goccy/go-yaml"

	"penstock/configs"
	"penstock/engine"
)

func (s *Server) adminReady(w http.ResponseWriter, _ *http.Request) {
	usable := s.usable()
	switch {
	case s.draining.Load():
		s.writeError(w, serverError(http.StatusServiceUnavailable, "draining", "This gateway is shutting down."))
	case usable == 0:
		s.writeError(w, noReplica(""))
	default:
		writeJSON(w, http.StatusOK, readiness{Status: "ok", Replicas: usable})
	}
}

// replicaObject is one replica on /replicas.
type replicaObject struct {
	ID            string      `json:"id"`
	Model         string      `json:"model"`
	URL           string      `json:"url"`
	Kind          string      `json:"kind"`
	Version       string      `json:"version"`
	DPRank        *int        `json:"dp_rank"`
	RanksIgnored  bool        `json:"ranks_ignored"`
	Source        string      `json:"source"`
	Roles         []string    `json:"roles"`
	State         string      `json:"state"`
	Usable        bool        `json:"usable"`
	InFlight      int         `json:"in_flight"`
	Streams       int         `json:"streams"`
	Waiting       int         `json:"waiting"`
	QueuedTokens  int         `json:"queued_tokens"`
	KVTokens      int         `json:"kv_tokens"`
	KVInFlight    int         `json:"kv_in_flight"`
	MaxRunning    int         `json:"max_running"`
	RunningBy     string      `json:"max_running_by"`
	PageSize      int         `json:"page_size"`
	IndexBlocks   int         `json:"index_blocks"`
	RequestsTotal uint64      `json:"requests_total"`
	HitPredicted  *float64    `json:"hit_predicted"`
	HitActual     *float64    `json:"hit_actual"`
	PrefillRate   float64     `json:"prefill_rate"`
	FailuresTotal int64       `json:"failures_total"` // attempts
	FirstTokenMS  *spread     `json:"first_token_ms"` // of the last minutes' streams; null: none
	LastFailure   *mishap     `json:"last_failure"`   // of an attempt
	Down          *mishap     `json:"down"`           // why the engine is unhealthy
	Load          *loadObject `json:"load"`
}

// loadObject is what the engine last said of itself.
type loadObject struct {
	Running         int     `json:"running"`
	Waiting         int     `json:"waiting"`
	WaitingUncached int     `json:"waiting_uncached_tokens"`
	UsedTokens      int     `json:"used_tokens"`
	AgeSeconds      float64 `json:"age_seconds"`
}

func (s *Server) adminReplicas(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, s.replicaObjects(time.Now()))
}

func (s *Server) replicaObjects(now time.Time) []replicaObject {
	out := []replicaObject{}
	for _, r := range s.fleet.Replicas() {
		out = append(out, s.replicaObject(r, now))
	}
	return out
}

func (s *Server) replicaObject(r *engine.Replica, now time.Time) replicaObject {
	c := r.Capacity()
	o := replicaObject{
		ID: r.ID(), Model: r.Model(), URL: r.URL(), Kind: string(r.Kind()), Version: r.Version(), RanksIgnored: r.RanksIgnored(),
		Source: r.Source(), Roles: r.Roles(), State: r.State().String(), Usable: r.Usable(),
		KVTokens: c.KVTokens, MaxRunning: c.MaxRunning, RunningBy: c.RunningBy, PageSize: c.PageSize, InFlight: r.InFlight(), RequestsTotal: uint64(r.Total()),
	}
	if o.Roles == nil {
		o.Roles = []string{roleChat, roleScoring}
	}
	if r.Rank() >= 0 {
		o.DPRank = new(r.Rank())
	}
	if l, ok := r.Load(); ok {
		o.Load = &loadObject{Running: l.Running, Waiting: l.Waiting, WaitingUncached: l.WaitingUncached, UsedTokens: l.UsedTokens, AgeSeconds: now.Sub(l.At).Seconds()}
	}
	m := s.pools.member(r)
	if m == nil {
		return o
	}
	o.FailuresTotal, o.LastFailure, o.Down = m.tally.failures.Load(), m.tally.failed.Load(), m.tally.down.Load()
	o.FirstTokenMS = newSpread(m.tally.appendFirsts(nil, now.Add(-historySeconds*time.Second)))
	st := m.route.Stats()
	o.Streams, o.Waiting, o.QueuedTokens, o.KVInFlight = st.Streams, st.Waiting, st.QueuedTokens, st.KVInFlight
	o.MaxRunning, o.IndexBlocks, o.PrefillRate = st.MaxRunning, st.IndexBlocks, st.PrefillRate
	if st.HitPredicted >= 0 {
		o.HitPredicted, o.HitActual = new(st.HitPredicted), new(st.HitActual)
	}
	return o
}

// newReplica is the body of POST /replicas: as an engine of the file, and the model.
type newReplica struct {
	Model      string   `json:"model"`
	URL        string   `json:"url"`
	ID         string   `json:"id"`
	Kind       string   `json:"kind"`
	DPRanks    string   `json:"dp_ranks"`
	FirstRank  int      `json:"first_rank"`
	MaxRunning int      `json:"max_running"`
	KVTokens   int      `json:"kv_tokens"`
	Roles      []string `json:"roles"`
}

// maxReplicaBody bounds the body of POST /replicas.
const maxReplicaBody = 1 << 20

// adminAdd takes a replica in until the process ends or it is deleted.
func (s *Server) adminAdd(w http.ResponseWriter, r *http.Request) {
	var in newReplica
	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxReplicaBody))
	d.DisallowUnknownFields()
	err := d.Decode(&in)
	if _, large := errors.AsType[*http.MaxBytesError](err); large {
		s.writeError(w, &Error{Status: http.StatusRequestEntityTooLarge, Type: typeInvalid, Code: "request_too_large", Message: "The body is larger than 1MiB."})
		return
	}
	if err != nil {
		s.writeError(w, invalid("invalid_json", "", "The body is not a replica: %v; expected {\"url\": …, \"model\": …} and optionally id, kind, dp_ranks, first_rank, max_running, kv_tokens, roles", err))
		return
	}
	id, err := s.fleet.Add(in.Model, configs.Engine{
		URL: in.URL, ID: in.ID, Kind: in.Kind, DPRanks: in.DPRanks, FirstRank: in.FirstRank,
		MaxRunning: in.MaxRunning, KVTokens: in.KVTokens, Roles: in.Roles,
	})
	if err != nil {
		s.writeError(w, fleetError(err))
		return
	}
	writeJSON(w, http.StatusCreated, map[string]string{"id": id})
}

// adminRemove takes a replica out that the admin API added; one that the file
// names is the file's to remove.
func (s *Server) adminRemove(w http.ResponseWriter, r *http.Request) {
	if err := s.fleet.Remove(r.PathValue("id")); err != nil {
		s.writeError(w, fleetError(err))
		return
	}
	writeJSON(w, http.StatusOK, map[string]string{"removed": r.PathValue("id")})
}

// adminDrain stops, or with /undrain allows again, new requests to a replica.
func (s *Server) adminDrain(w http.ResponseWriter, r *http.Request) {
	path := r.PathValue("id")
	id, drain := strings.CutSuffix(path, "/drain")
	if !drain {
		var undrain bool
		if id, undrain = strings.CutSuffix(path, "/undrain"); !undrain {
			s.writeError(w, &Error{Status: http.StatusNotFound, Type: typeInvalid, Code: "unknown_url", Message: "Unknown action on a replica. There are /replicas/{id}/drain and /replicas/{id}/undrain."})
			return
		}
	}
	set := s.fleet.Undrain
	if drain {
		set = s.fleet.Drain
	}
	if err := set(id); err != nil {
		s.writeError(w, fleetError(err))
		return
	}
	writeJSON(w, http.StatusOK, map[string]any{"id": id, "draining": drain})
}

func fleetError(err error) *Error {
	switch {
	case errors.Is(err, engine.ErrNotFound):
		return &Error{Status: http.StatusNotFound, Type: typeInvalid, Code: "not_found", Message: err.Error()}
	case errors.Is(err, engine.ErrConflict):
		return &Error{Status: http.StatusConflict, Type: typeInvalid, Code: "conflict", Message: err.Error()}
	case errors.Is(err, engine.ErrInvalid):
		return invalid("invalid_value", "", "%s", err.Error())
	}
	return internalError(err)
}

func (s *Server) adminConfig(w http.ResponseWriter, r *http.Request) {
	b, err := s.effective().Redacted()
	if err != nil {
		s.writeError(w, internalError(err))
		return
	}
	if !strings.Contains(r.Header.Get("Accept"), "json") {
		w.Header().Set("Content-Type", "application/yaml")
		_, _ = w.Write(b)
		return
	}
	j, err := yaml.YAMLToJSON(b)
	if err != nil {
		s.writeError(w, internalError(err))
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(j)
}

// effective is the configuration in force, with the numbers that limits.mode:
// auto has derived.
func (s *Server) effective() *configs.Config {
	c := *s.snapshot.Load().cfg
	c.Models = slices.Clone(c.Models)
	for i := range c.Models {
		m := &c.Models[i]
		for _, pl := range s.pools.all() {
			if d := pl.derived.Load(); d != nil && (m.Name == pl.name || m.Name == "") {
				derived(m, *d)
			}
		}
	}
	return &c
}

// reloadTimeout bounds the checks of a new configuration.
const reloadTimeout = 30 * time.Second

func (s *Server) adminReload(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), reloadTimeout)
	defer cancel()
	if err := s.Reload(ctx); err != nil {
		s.writeError(w, invalid("invalid_config", "", "The configuration was not reloaded, and the one before stays in force: %v", err))
		return
	}
	snap := s.snapshot.Load()
	writeJSON(w, http.StatusOK, map[string]any{"hash": snap.hash, "loaded_at": snap.loadedAt})
}

// adminRequests lists the last requests; ?errors=1 only those that failed.
func (s *Server) adminRequests(w http.ResponseWriter, r *http.Request) {
	onlyErrors := r.URL.Query().Get("errors") != ""
	writeJSON(w, http.StatusOK, s.recent.last(100, func(e *explanation) bool { return !onlyErrors || e.Status >= 400 || e.Code != "" }))
}

func (s *Server) adminRequest(w http.ResponseWriter, r *http.Request) {
	e, ok := s.recent.find(r.PathValue("id"))
	if !ok {
		s.writeError(w, &Error{Status: http.StatusNotFound, Type: typeInvalid, Code: "not_found", Message: "No request " + clip(r.PathValue("id"), 128) + " among the last 1000."})
		return
	}
	if e.Code != "" {
		e.Advice = adviceFor(e.Code).todo
	}
	writeJSON(w, http.StatusOK, e)
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	_ = e.Encode(v)
}

// writeError answers with an error. One that has a cause is logged under the
// answer's x-request-id: nobody else would learn of it.
func (s *Server) writeError(w http.ResponseWriter, e *Error) {
	h := w.Header()
	if e.Cause != nil {
		id := newID()
		h.Set("X-Request-Id", id)
		s.log.Error("a request to the admin listener failed", "request_id", id, "code", e.Code, "error", e.Cause, "hint", hint(e.Code))
	}
	h.Set("Content-Type", "application/json")
	e.headers(h.Set)
	w.WriteHeader(e.Status)
	_, _ = w.Write(append(e.body(shapeOpenAI, ""), '\n'))
}

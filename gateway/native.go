package gateway

import (
	"crypto/subtle"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/valyala/fasthttp"

	"penstock/engine"
	"penstock/gateway/relay"
	"penstock/router"
)

// ready answers /health and /readyz: 200 while some replica can take requests.
func (s *Server) ready(r *request) {
	if s.draining.Load() {
		r.fail(&Error{Status: fasthttp.StatusServiceUnavailable, Type: typeServer, Code: "draining", RetryAfter: time.Second, Message: "This gateway is shutting down."})
		return
	}
	usable := s.usable()
	if usable == 0 {
		r.fail(noReplica(""))
		return
	}
	r.answer(fasthttp.StatusOK, readiness{Status: "ok", Replicas: usable})
}

// usable is how many replicas can take requests: they answer, and their models
// know of them.
func (s *Server) usable() int {
	n := 0
	for _, pl := range s.pools.all() {
		for _, m := range *pl.members.Load() {
			if m.engine.Usable() {
				n++
			}
		}
	}
	return n
}

type readiness struct {
	Status   string `json:"status"`
	Replicas int    `json:"replicas,omitempty"`
}

// alive answers /healthz: 200 as long as the process serves.
func (s *Server) alive(r *request) { r.answer(fasthttp.StatusOK, readiness{Status: "ok"}) }

// passToAny sends a request about an engine to one that is usable: that of the
// query's model, or of the default or only one.
func (s *Server) passToAny(r *request) {
	if err := r.who(); err != nil {
		r.fail(err)
		return
	}
	r.watchClient()
	r.look = s.looks.Get().(*look) //nolint:forcetypeassert // the pool holds nothing else
	r.look.reset()
	r.asked = string(r.ctx.QueryArgs().Peek("model"))
	err := r.findAnyModel()
	if err == nil {
		r.lane = router.Embed
		r.choice = router.Request{Tokens: 1, Lane: r.lane}
		err = r.bind(time.Now())
	}
	for again := true; err == nil && again; {
		again, err = s.relayAttempt(r)
		if again {
			err = r.bind(time.Now())
		}
	}
	if err != nil {
		r.fail(err)
	}
}

// findAnyModel is findModel for requests that need no model: the first that the key may use will do.
func (r *request) findAnyModel() error {
	err := r.findModel()
	if err == nil || r.asked != "" {
		return err
	}
	for _, e := range r.s.pools.current.Load().list {
		if r.client.allows(e.id) {
			r.asked = e.id
			return r.findModel()
		}
	}
	return err
}

// flushed is what /flush_cache reports of one engine.
type flushed struct {
	Replica string `json:"replica"`
	Status  int    `json:"status"`
	Error   string `json:"error,omitempty"`
}

const flushTimeout = 10 * time.Second

// flushCaches empties the prefix cache of every engine and our index of it. It
// needs the admin key where one is configured, and without one a gateway that
// has no keys at all.
func (s *Server) flushCaches(r *request) {
	if err := s.adminOnly(r); err != nil {
		r.fail(err)
		return
	}
	byURL := map[string][]*member{}
	for _, pl := range s.pools.all() {
		for _, m := range *pl.members.Load() {
			byURL[m.engine.URL()] = append(byURL[m.engine.URL()], m)
		}
	}
	var (
		mu  sync.Mutex
		out = []flushed{}
		wg  sync.WaitGroup
	)
	for _, ms := range byURL {
		wg.Go(func() {
			f := s.flush(ms[0].engine)
			if f.Status == fasthttp.StatusOK {
				for _, m := range ms {
					m.route.Flush()
				}
			}
			mu.Lock()
			out = append(out, f)
			mu.Unlock()
		})
	}
	wg.Wait()
	slices.SortFunc(out, func(a, b flushed) int { return strings.Compare(a.Replica, b.Replica) })
	status := fasthttp.StatusOK
	for _, f := range out {
		if f.Status != fasthttp.StatusOK {
			status = fasthttp.StatusBadGateway
		}
	}
	r.answer(status, out)
}

// flush empties one engine's cache.
func (s *Server) flush(e *engine.Replica) flushed {
	f := flushed{Replica: e.ID()}
	up, err := s.pools.upstream(e.Conn())
	if err != nil {
		f.Error = "not reachable"
		return f
	}
	path := "/flush_cache"
	if e.Tongue() == engine.KindVLLM {
		path = "/reset_prefix_cache"
	}
	call := relay.Call{ID: newID(), Start: time.Now(), Timeouts: relay.Timeouts{Connect: flushTimeout, Request: flushTimeout}}
	var resp fasthttp.Response
	ans, err := up.Do(&call, &relay.Request{Path: path, Dialect: relay.DialectNone, Whole: true}, &resp)
	if err != nil {
		s.log.Warn("an engine's cache was not flushed", "replica", e.ID(), "error", err,
			"hint", "its prefixes are still reckoned with; try again when the engine answers")
		f.Error = "not reachable"
		return f
	}
	f.Status = ans.Status
	ans.Discard()
	return f
}

// adminOnly lets through who presents the admin key, or anybody where neither
// an admin key nor any other is configured.
func (s *Server) adminOnly(r *request) error {
	want := []byte(r.snap.cfg.Admin.Key)
	if len(want) == 0 && len(r.snap.clients) == 0 {
		r.client = r.snap.byName[anonymous]
		return nil
	}
	if len(want) > 0 && subtle.ConstantTimeCompare(presentedKey(r.ctx), want) == 1 {
		return nil
	}
	return &Error{Status: fasthttp.StatusUnauthorized, Type: typeInvalid, Code: "invalid_api_key", Message: "This path needs the admin key (admin.key)."}
}

// oneResponse reads, cancels or deletes a stored response at the replica that made it.
func (s *Server) oneResponse(r *request) {
	if err := r.who(); err != nil {
		r.fail(err)
		return
	}
	id := responseID(r.ctx.URI().PathOriginal())
	m, ok := s.responses.owner(id, r.client.name)
	if !ok {
		r.fail(responseNotFound(id))
		return
	}
	r.watchClient()
	r.look = s.looks.Get().(*look) //nolint:forcetypeassert // the pool holds nothing else
	r.look.reset()
	r.target = target{pool: m.pool}
	r.lane = router.Embed
	r.choice = router.Request{Tokens: 1, Lane: r.lane, Only: func(rr *router.Replica) bool { return rr == m.route }}
	err := r.bind(time.Now())
	if err == nil {
		_, err = s.relayAttempt(r)
	}
	if err != nil {
		r.fail(err)
	}
}

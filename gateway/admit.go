package gateway

import (
	"errors"
	"slices"
	"strconv"
	"time"

	"penstock/configs"
	"penstock/limits"
	"penstock/router"
)

// admit reserves the request's cost in all its limits, or refuses it.
func (s *Server) admit(r *request) error {
	r.estimate()
	limited := r.limited(limits.Cost{Requests: 1, Input: int64(r.input), Output: int64(r.output)})
	q := &limited
	var err error
	began := r.trace.now()
	if r.client.key.OnRateLimit == onRateLimitWait && !r.noQueue {
		came := time.Now()
		r.reservation, err = s.limiter.ReserveWait(&r.wait, q, r.maxWait(), r.client.key.Queue.MaxLength)
		r.record.queued = time.Since(came)
	} else {
		r.reservation, err = s.limiter.Reserve(&r.wait, time.Now(), q)
	}
	r.trace.admitted(began, r, err)
	return err
}

// limited is the request as the limits see it: whose they are, and what it costs.
func (r *request) limited(cost limits.Cost) limits.Request {
	q := limits.Request{Key: r.client.name, KeyLimits: &r.client.key.Limits, Cost: cost}
	if r.target.pool == nil { // the model is not known, or not yet
		return q
	}
	m := r.target.pool.config.Load()
	q.Model, q.ModelLimits = r.target.pool.name, &m.Limits
	if len(r.client.key.ModelLimits) > 0 {
		if l, ok := r.client.key.LimitsFor(m); ok {
			q.KeyModelLimits = &l
		}
	}
	return q
}

const onRateLimitWait = "wait"

// estimate finds what the request will probably use.
func (r *request) estimate() {
	v, pl := &r.look.view, r.target.pool
	r.sized = limits.Size{Bytes: v.TextBytes, Tokens: v.TokenIDs, Media: v.Media}
	r.input = int(pl.estimator.Input(pl.name, r.sized))
	out := limits.Output{
		Max: int64(v.MaxTokens), N: v.N, BestOf: v.BestOf, Prompts: v.PromptCount(),
		Input: int64(r.input), Context: int64(pl.contextLength()),
		Default: int64(r.snap.cfg.Limits.DefaultOutputTokens), None: r.lane == router.Embed,
	}
	if v.Echo && v.MaxTokens < 0 {
		out.Max = engineDefaultTokens
	}
	r.output = int(out.Tokens())
}

// engineDefaultTokens is the engines' own max_tokens of a completion that names none.
const engineDefaultTokens = 16

// contextLength is the greatest of the pool's replicas; 0: unknown.
func (pl *pool) contextLength() int {
	n := 0
	for _, m := range *pl.members.Load() {
		n = max(n, m.engine.MaxModelLen())
	}
	return n
}

// maxWait is how long the request may wait, for its rates and for room.
func (r *request) maxWait() time.Duration {
	bounds, _ := r.bounds()
	d := bounds.MaxWait
	if d <= 0 {
		d = r.target.pool.config.Load().Queue.MaxWait
	}
	if r.clientWait > 0 {
		d = min(d, r.clientWait)
	}
	return d
}

// readHeaders reads the headers by which a client steers its waiting:
// x-penstock-no-queue, and x-penstock-max-wait in seconds or as Go writes durations.
func (r *request) readHeaders() error {
	r.noQueue = r.isOn("X-Penstock-No-Queue")
	r.rankHeader = slices.ContainsFunc(r.ctx.Request.Header.PeekAll(engineRankHeader), func(v []byte) bool { return len(v) > 0 })
	v := string(trimSpace(r.ctx.Request.Header.Peek("X-Penstock-Max-Wait")))
	if v == "" {
		return nil
	}
	d, err := time.ParseDuration(v)
	if err != nil {
		var seconds float64
		if seconds, err = strconv.ParseFloat(v, 64); err == nil {
			d = time.Duration(seconds * float64(time.Second))
		}
	}
	if err != nil || d < 0 {
		return invalid("invalid_value", "x-penstock-max-wait", "The header x-penstock-max-wait is %q. Expected seconds, or a duration such as 20s.", clip(v, 40))
	}
	r.clientWait = max(d, time.Millisecond)
	return nil
}

// isOn reads a header that is on when it is there and neither 0 nor false.
func (r *request) isOn(name string) bool {
	v := trimSpace(r.ctx.Request.Header.Peek(name))
	return len(v) > 0 && string(v) != "0" && !asciiEqualFold(v, "false")
}

// choose binds the request to a replica: at once where one has room, else
// after waiting in the queue. One that is tried again keeps its place there.
func (s *Server) choose(r *request) error {
	pl := r.target.pool
	if r.ticket == nil {
		r.describe()
	} else {
		r.ticket = r.newTicket()
		r.ticket.Began = r.start
	}
	began := r.trace.now()
	err := pl.queue.Acquire(&r.wait, r.ticket)
	waited := r.ticket.Took()
	r.record.queued += waited
	pl.metrics.QueueWait(waited)
	pl.router.SetHeld(pl.queue.Len())
	r.trace.chosen(began, r, err)
	return err
}

// describe describes the request to the router and to the queue.
func (r *request) describe() {
	session := r.choice.Session
	if r.leg == nil {
		session = r.session()
	}
	r.choice = router.Request{
		Key: r.key(), Tokens: r.input, Output: r.output, Streamed: r.look.view.Stream,
		Lane: r.lane, Session: session, Only: r.only(), Explain: r.target.pool.explains(),
	}
	r.ticket = r.newTicket()
}

// key is the prompt's; scoring requests stay out of the prefix index.
func (r *request) key() router.Key {
	if r.lane != router.Generate {
		return router.Key{}
	}
	k := r.look.key.Key()
	if v := &r.look.view; len(v.Prompts) > 1 {
		k.Bytes = max(k.Bytes, v.TextBytes+4*v.TokenIDs) // what the prompts have in common is a part of all
	}
	return k
}

// ownerLane is the queue's lane of requests that only one replica can take, and
// adapterLane of those for an adapter that only some have.
const ownerLane, adapterLane = 7, 6

// queueLane keeps requests that wait for different things out of each other's way.
func (r *request) queueLane() uint8 {
	switch {
	case r.owner != nil:
		return ownerLane
	case r.target.lora != "" && !r.target.pool.allServe(r.target.lora):
		return adapterLane
	}
	return uint8(r.lane)
}

// allServe says whether all replicas have the adapter.
func (pl *pool) allServe(lora string) bool {
	for _, m := range *pl.members.Load() {
		if !m.engine.Serves(lora) {
			return false
		}
	}
	return true
}

func (r *request) newTicket() *limits.Ticket {
	bounds, waitKey := r.bounds()
	return &limits.Ticket{
		Item: limits.Item{
			Key: r.client.name, Weight: r.client.share, Input: r.input, Output: r.output, Lane: r.queueLane(),
			Prompt: r, Part: r.leg != nil && r.leg.follows != nil,
		},
		Binder: r, Reservation: r.reservation, Bounds: bounds, WaitKey: waitKey,
		Asked: r.clientWait, NoQueue: r.noQueue, Waited: r.record.queued,
	}
}

// Work is the least that the request has to compute anywhere, for the queue,
// which asks under its lock: a panic must not leave that locked.
func (r *request) Work() (tokens int) {
	defer func() {
		if v := recover(); v != nil {
			r.s.reportPanic(r.id, v)
			tokens = r.input
		}
	}()
	return r.target.pool.router.Work(&r.choice)
}

// patience is how long a request must be ready to wait for the router to let it
// wait where that is cheaper, although some replica has room.
const patience = 4 * time.Second

// arriving says that the fleet has a replica for the pool that it is about to
// tell of, or has just told of.
func (s *Server) arriving(pl *pool) bool {
	if s.fleet.Coming(pl.name, time.Now()) {
		return true
	}
	for _, r := range s.fleet.Replicas() {
		if r.Model() == pl.name && r.Usable() && s.pools.member(r) == nil {
			return true
		}
	}
	return false
}

// bindRounds is how often a choice is repeated that met a change of all replicas.
const bindRounds = 3

// mayWait says whether the router may hold the request although there is room:
// for half of the time, and in half of the places, that waiting has. The rest is
// for those that have no choice.
func (r *request) mayWait(now time.Time) bool {
	pl, wait := r.target.pool, r.maxWait()
	if r.noQueue || r.snap.cfg.Routing.MaxHold == 0 || r.lane != router.Generate || wait < patience || now.Sub(r.start) >= wait/2 {
		return false
	}
	places := pl.config.Load().Queue.MaxLength
	if own := r.client.key.Queue.MaxLength; own > 0 {
		places = min(places, own)
	}
	return 2*pl.queue.Len() <= places && places > 0
}

// TryBind is bind for the queue: no room is no error. It runs in whichever
// request's goroutine dispatches, so a panic is made this request's own error.
func (r *request) TryBind(now time.Time) (ok bool, err error) {
	defer func() {
		if v := recover(); v != nil {
			r.s.reportPanic(r.id, v)
			ok, err = false, internalError(errPanic)
		}
	}()
	pl := r.target.pool
	pl.router.SetHeld(max(0, pl.queue.Len()-1))
	r.choice.MayWait = r.mayWait(now)
	err = r.bind(now)
	coming := false
	for range bindRounds {
		if coming = errors.Is(err, router.ErrNoReplica) && r.owner == nil && r.s.arriving(pl); coming || !errors.Is(err, router.ErrNoReplica) {
			break
		}
		err = r.bind(now) // one may have come since
	}
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, router.ErrNoRoom):
		pl.wakeAt(pl.router.Due())
		return false, nil
	case errors.Is(err, router.ErrHeld):
		pl.wakeAt(pl.router.Due())
		return false, limits.ErrHeld
	case coming:
		return false, nil // a reload has just named others: they are about to answer
	default:
		return false, err
	}
}

// bounds are the key's own bounds on waiting; scoring requests wait longer, as
// the configuration key says that is named then.
func (r *request) bounds() (q configs.Queue, waitKey string) {
	q = r.client.key.Queue
	if r.lane == router.Score && q.MaxWait <= 0 {
		q.MaxWait, waitKey = r.snap.cfg.Scoring.MaxWait, "scoring.max_wait"
	}
	return q, waitKey
}

// explained is the size of a pool up to which the candidates of every choice
// are remembered.
const explained = 32

func (pl *pool) explains() bool { return len(*pl.members.Load()) <= explained }

// session is what the session policy hashes: the configured header, else the
// body's user or prompt_cache_key.
func (r *request) session() string {
	m := r.target.pool.config.Load()
	if m.Policy != "session" {
		return ""
	}
	if m.SessionHeader != "" {
		if v := r.ctx.Request.Header.Peek(m.SessionHeader); len(v) > 0 {
			return string(v)
		}
	}
	if v := r.look.view.User; len(v) > 0 {
		return string(v)
	}
	return string(r.look.view.Session)
}

// only limits the choice to replicas of the lane's role, and to those that have
// the adapter; nil: all.
func (r *request) only() func(*router.Replica) bool {
	if r.owner != nil {
		return r.onlyOwner
	}
	pl, lora := r.target.pool, r.target.lora
	if lora == "" && !pl.roles.Load() {
		return nil
	}
	role := roleChat
	if r.lane == router.Score {
		role = roleScoring
	}
	return func(route *router.Replica) bool {
		m := (*pl.members.Load())[route]
		return m != nil && m.engine.HasRole(role) && (lora == "" || m.engine.Serves(lora))
	}
}

package limits

import (
	"context"
	"slices"
	"sync"
	"time"
)

const (
	// batch bounds what one script call settles, tries or renews.
	batch = 64
	// maxPending bounds the settlements kept while Redis is away; the oldest are
	// dropped then, and what they reserved comes back with time.
	maxPending = 100_000
	// slotPoll is how often requests that wait for a slot ask Redis, which
	// cannot tell when another gateway gives one back.
	slotPoll = 25 * time.Millisecond
	// heartbeat is how often a gateway says that it lives, and retryEvery how
	// often it tries Redis while that is away.
	heartbeat  = 5 * time.Second
	retryEvery = 500 * time.Millisecond
	// gatewayLife is how long a gateway counts after its last heartbeat.
	gatewayLife = 4 * heartbeat
)

// redisWorker does what is not on a request's way, one thing after the other:
// settlements in batches, slots for those who wait, leases and heartbeats.
// That it is one goroutine keeps a slot's release behind its taking.
type redisWorker struct {
	mu       sync.Mutex
	held     map[string]*Reservation // not settled
	pending  []settlement
	dropped  int            // of the oldest, since the last batch was taken
	wanting  []*Reservation // for slots
	wantKeys map[string]int
	closing  bool

	wake chan struct{}
	done chan struct{}
}

// settlement is one attempt's end.
type settlement struct {
	r     *Reservation
	used  Cost
	early bool // its reserve may come after it
}

func (w *redisWorker) init() {
	w.held = make(map[string]*Reservation)
	w.wantKeys = make(map[string]int)
	w.wake, w.done = make(chan struct{}, 1), make(chan struct{})
}

func (w *redisWorker) poke() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// hold has r's leases renewed until it is settled.
func (w *redisWorker) hold(r *Reservation) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.held[r.id] = r
}

// settle queues r's settlement.
func (w *redisWorker) settle(r *Reservation, used Cost) {
	w.mu.Lock()
	delete(w.held, r.id)
	w.unwant(r)
	w.add(settlement{r: r, used: used})
	w.mu.Unlock()
	w.poke()
}

// abort queues the undoing of a reserve that Redis may or may not have done, or may do yet.
func (w *redisWorker) abort(r *Reservation) {
	gone := &Reservation{record: r.record, n: r.n, scopes: r.scopes, cost: r.cost, key: r.key, model: r.model}
	w.mu.Lock()
	w.add(settlement{r: gone, early: true})
	w.mu.Unlock()
	w.poke()
}

func (w *redisWorker) add(s settlement) {
	if len(w.pending) >= maxPending {
		w.pending = slices.Delete(w.pending, 0, batch)
		w.dropped += batch
	}
	w.pending = append(w.pending, s)
}

// want has slots tried for r until it has them or is settled.
func (w *redisWorker) want(r *Reservation) {
	w.mu.Lock()
	if !slices.Contains(w.wanting, r) {
		w.wanting = append(w.wanting, r)
		w.wantKeys[r.key]++
	}
	w.mu.Unlock()
	w.poke()
}

func (w *redisWorker) unwant(r *Reservation) {
	i := slices.Index(w.wanting, r)
	if i < 0 {
		return
	}
	w.wanting = slices.Delete(w.wanting, i, i+1)
	if w.wantKeys[r.key]--; w.wantKeys[r.key] == 0 {
		delete(w.wantKeys, r.key)
	}
}

// waitsFor tells whether requests of the key wait for slots here.
func (w *redisWorker) waitsFor(key string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.wantKeys[key] > 0
}

// start runs the worker until close.
func (s *redisStore) start() { go s.work() }

// close settles what is pending, within ctx, and ends the worker.
func (s *redisStore) close(ctx context.Context) error {
	s.worker.mu.Lock()
	s.worker.closing = true
	s.worker.mu.Unlock()
	s.worker.poke()
	select {
	case <-s.worker.done:
		return s.client.Close()
	case <-ctx.Done():
		_ = s.client.Close() // what it waits for fails now
		<-s.worker.done
		return context.Cause(ctx)
	}
}

// work is the worker's loop.
func (s *redisStore) work() {
	defer close(s.worker.done)
	told := ModeRedis
	var beat, tried time.Time
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-s.worker.wake:
		case <-timer.C:
		case c := <-s.changes:
			told = s.announce(told, c)
		}
		now := time.Now()
		ok := s.l.Mode() == ModeRedis
		if due := s.beatEvery(ok); now.Sub(beat) >= due {
			beat = now
			ok = s.renew()
		}
		if ok {
			ok = s.flush()
		}
		if ok && now.Sub(tried) >= slotPoll/2 {
			tried = now
			s.trySlots()
		}
		if s.ended(ok) {
			return
		}
		timer.Reset(s.pause(ok))
	}
}

func (s *redisStore) beatEvery(ok bool) time.Duration {
	if ok {
		return heartbeat
	}
	return retryEvery
}

// pause is how long there is nothing to do unless somebody pokes.
func (s *redisStore) pause(ok bool) time.Duration {
	s.worker.mu.Lock()
	defer s.worker.mu.Unlock()
	switch {
	case !ok:
		return retryEvery
	case len(s.worker.wanting) > 0:
		return slotPoll
	}
	return heartbeat
}

// ended tells whether the worker is asked to end and has nothing left that it could do.
func (s *redisStore) ended(ok bool) bool {
	s.worker.mu.Lock()
	defer s.worker.mu.Unlock()
	return s.worker.closing && (len(s.worker.pending) == 0 || !ok)
}

// announce tells a change of mode: in the log, the hook, and to those who wait
// for slots, which they get elsewhere now.
func (s *redisStore) announce(told Mode, c change) Mode {
	now := s.l.Mode()
	if now == told {
		return told
	}
	if now == ModeRedis {
		s.l.log.Info("limits: Redis is back", "mode", now.String(), "was", told.String())
	} else {
		s.l.log.Warn("limits: Redis is away", "mode", now.String(), "was", told.String(), "gateways", s.gateways(), "error", c.cause)
	}
	if s.l.o.OnMode != nil {
		s.l.o.OnMode(told, now, c.cause)
	}
	s.worker.mu.Lock()
	wanting := slices.Clone(s.worker.wanting)
	if now != ModeRedis {
		s.worker.wanting = s.worker.wanting[:0]
		clear(s.worker.wantKeys)
	}
	s.worker.mu.Unlock()
	for _, r := range wanting {
		s.l.tellSlot(r)
	}
	return now
}

// flush settles what is pending. False: Redis does not answer.
func (s *redisStore) flush() bool {
	for {
		s.worker.mu.Lock()
		todo := slices.Clone(s.worker.pending[:min(batch, len(s.worker.pending))])
		s.worker.dropped = 0
		s.worker.mu.Unlock()
		if len(todo) == 0 {
			return true
		}
		if _, err := s.call("settle", s.settleScript, settleKeys(todo), s.settleArgs(todo)); err != nil {
			return false
		}
		s.worker.mu.Lock()
		s.worker.pending = slices.Delete(s.worker.pending, 0, len(todo)-min(len(todo), s.worker.dropped))
		s.worker.mu.Unlock()
		for _, t := range todo {
			if t.r.hasSlot() {
				s.l.tellSlot(t.r)
			}
		}
	}
}

func settleKeys(todo []settlement) []string {
	keys := make([]string, 0, 7*len(todo))
	for _, t := range todo {
		keys = append(keys, t.r.keys...)
	}
	return keys
}

func (s *redisStore) settleArgs(todo []settlement) []any {
	args := make([]any, 1, 1+34*len(todo))
	args[0] = s.micros()
	for _, t := range todo {
		r, early := t.r, 0
		if t.early {
			early = 1
		}
		args = append(args, r.id, early, r.n, r.cost.Requests, r.cost.Input, r.cost.Output,
			t.used.Requests, t.used.Input, t.used.Output)
		for i := range r.n {
			for k := range rates {
				rt := r.scopes[i].rate(k, 1)
				args = append(args, rt.limit, rt.burst)
			}
		}
	}
	return args
}

// trySlots tries for the slots of those who want some, in the order of asking.
func (s *redisStore) trySlots() {
	s.worker.mu.Lock()
	todo := slices.Clone(s.worker.wanting[:min(batch, len(s.worker.wanting))])
	s.worker.mu.Unlock()
	if len(todo) == 0 {
		return
	}
	args := []any{s.micros(), leaseLife.Milliseconds()}
	var keys []string
	for _, r := range todo {
		args = append(args, r.id, r.concurrency())
		for i := range r.n {
			if n := slotsOf(r.scopes[i].limits, 1); n > 0 {
				args = append(args, n)
				keys = append(keys, r.keys[2+2*i])
			}
		}
	}
	reply, err := s.call(opSlots, s.slotsScript, keys, args)
	if err != nil {
		return
	}
	for i, r := range todo {
		if got, _ := reply[i].(int64); got == 1 {
			s.grant(r)
		}
	}
	s.worker.turn(todo)
}

// turn puts those that were asked for behind the others, so that no more than a
// batch of keys that are full does not hide the rest.
func (w *redisWorker) turn(asked []*Reservation) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.wanting) <= batch {
		return
	}
	rest := slices.DeleteFunc(slices.Clone(w.wanting), func(r *Reservation) bool { return slices.Contains(asked, r) })
	for _, r := range asked {
		if slices.Contains(w.wanting, r) {
			rest = append(rest, r)
		}
	}
	w.wanting = rest
}

// grant gives r the slots that were got. A settlement that came meanwhile is
// pending and gives them back.
func (s *redisStore) grant(r *Reservation) {
	r.mu.Lock()
	r.slotted, r.since = true, time.Now()
	r.mu.Unlock()
	s.worker.mu.Lock()
	s.worker.unwant(r)
	s.worker.mu.Unlock()
	s.l.tellSlot(r)
}

// hasSlot tells whether r got its slots in Redis.
func (r *Reservation) hasSlot() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.slotted && !r.local
}

// renew says that this gateway lives and prolongs what its requests hold.
func (s *redisStore) renew() bool {
	s.worker.mu.Lock()
	held := make([]*Reservation, 0, len(s.worker.held))
	for _, r := range s.worker.held {
		held = append(held, r)
	}
	s.worker.mu.Unlock()
	for first := true; first || len(held) > 0; first = false {
		n := min(batch, len(held))
		if !s.renewSome(held[:n]) {
			return false
		}
		held = held[n:]
	}
	return true
}

func (s *redisStore) renewSome(held []*Reservation) bool {
	args := []any{s.micros(), s.gateway, gatewayLife.Milliseconds(), recordLife.Milliseconds(), leaseLife.Milliseconds()}
	keys := []string{s.prefix + "g"}
	for _, r := range held {
		slotted, n := r.hasSlot(), 0
		if slotted {
			n = r.concurrency()
		}
		args = append(args, r.id, n)
		keys = append(keys, r.keys[0])
		for i := range r.n {
			if slotted && slotsOf(r.scopes[i].limits, 1) > 0 {
				keys = append(keys, r.keys[2+2*i])
			}
		}
	}
	reply, err := s.call("renew", s.renewScript, keys, args)
	if err != nil {
		return false
	}
	if n, ok := reply[0].(int64); ok {
		s.counted.Store(n)
	}
	return true
}

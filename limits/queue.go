package limits

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"penstock/configs"
)

// Ticket is one request that wants room on a replica. It is used once, for one
// Acquire.
type Ticket struct {
	Item
	Binder Binder
	// Reservation holds the limits; its concurrency slots are got before room. nil: none.
	Reservation *Reservation
	// Bounds are the key's own; zero values: the model's.
	Bounds configs.Queue
	// WaitKey names the configuration key of Bounds.MaxWait where that is not the key's own.
	WaitKey string
	// Asked shortens the wait, as the client asked for. 0: not.
	Asked time.Duration
	// NoQueue refuses at once what would have to wait.
	NoQueue bool
	// Began is when a request that is tried again first began to wait: it keeps
	// its place and is not refused for the queue's length. Zero: now.
	Began time.Time
	// Waited is for how long it has waited before; it counts towards the bound.
	Waited time.Duration

	deadline time.Time
	wait     time.Duration
	entered  uint64        // the round under way when it came
	round    uint64        // in which it fitted nowhere
	binding  bool          // TryBind runs
	held     bool          // it said ErrHeld when last asked
	left     error         // why it wants to leave while TryBind runs
	done     chan struct{} // closed when resolved; nil until somebody waits
	resolved bool
	err      error
	took     time.Duration
}

// Took is how long Acquire took, 0 if the ticket needed but one look; once that has returned.
func (t *Ticket) Took() time.Duration { return t.took }

// Binder is the request behind a ticket.
type Binder interface {
	// TryBind binds the request to a replica that has room: true when it did.
	// ErrHeld says that there is room but better to come. Any other error ends
	// the wait with it. It runs in any goroutine, one at a time
	// for a queue, under no lock, and must be quick.
	TryBind(now time.Time) (bool, error)
}

// Queue holds the requests for one model that wait for a concurrency slot or
// for room. Any number of goroutines may use it. It runs nothing of its own:
// whoever kicks it dispatches, one at a time.
type Queue struct {
	model string
	rate  func() float64

	mu        sync.Mutex
	bounds    configs.Queue
	order     Order
	busy      bool // somebody dispatches
	again     bool // and is to look once more
	rounds    uint64
	missed    [maxLanes]bool // some request of the lane found no room in the round under way
	short     [maxLanes]bool // or in the one before
	lastRound time.Time
	rated     time.Time // when the prefill rate was asked
	late      []*Ticket // without a place: what does not fit in its first round must go
	drain     drainRate
	buf       []*Item
}

const (
	// maxTries and maxTriesPerKey bound the requests tried in one round.
	maxTries, maxTriesPerKey = 64, 8
	// nudge is how often a waiting request looks whether anybody dispatched:
	// room may come without a kick, as predictions run out.
	nudge = time.Second
)

// ErrHeld is what TryBind says of a request that waits although it would fit.
var ErrHeld = errors.New("limits: held for a better replica")

// NewQueue makes the queue of a model. rate is the prefill rate of one replica
// in tokens per second, asked now and then; nil: waiting earns no credit.
func NewQueue(model string, bounds configs.Queue, rate func() float64) *Queue {
	q := &Queue{model: model, rate: rate}
	q.Configure(bounds)
	return q
}

// Configure changes the bounds; those who wait stay.
// A length below 0 means that none may wait: what has no room at once is refused.
func (q *Queue) Configure(b configs.Queue) {
	switch {
	case b.MaxLength == 0:
		b.MaxLength = 1000
	case b.MaxLength < 0:
		b.MaxLength = 0
	}
	if b.MaxWait <= 0 {
		b.MaxWait = 30 * time.Second
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.bounds = b
	q.order.Credit, q.order.Hold = b.WaitingCredit, b.HeadHold
}

// Acquire returns nil once the ticket is bound; Settle it when it has run. The
// error is a *Refusal, what TryBind said, or the context's cause when the client
// left. It never waits longer than the ticket's bound.
func (q *Queue) Acquire(ctx context.Context, t *Ticket) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	now := time.Now() // read once where nothing has to wait: it is not cheap
	if q.begin(now, t) {
		return t.err
	}
	err := q.await(ctx, t)
	t.took = time.Since(now)
	return err
}

// begin puts the ticket into the order and dispatches. It tells whether that
// was all; otherwise the ticket has a place, or another goroutine dispatches.
func (q *Queue) begin(now time.Time, t *Ticket) (resolved bool) {
	if r := t.Reservation; r != nil && t.Slots == nil {
		t.Slots = r
		t.asked = r.slotHeld() // got with the reservation: others that wait for one must not hide it
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if f := q.enter(now, t); f != nil {
		q.resolve(t, f)
		return true
	}
	q.kick(now)
	if t.resolved {
		t.took = max(0, q.lastRound.Sub(now)) // others may have been dispatched, too
		return true
	}
	t.done = make(chan struct{})
	return false
}

// enter puts the ticket into the order, if there is a place for it. q is locked.
func (q *Queue) enter(now time.Time, t *Ticket) *Refusal {
	since := t.Began
	if since.IsZero() {
		since = now
	}
	t.wait = q.bounds.MaxWait
	if t.Bounds.MaxWait > 0 {
		t.wait = t.Bounds.MaxWait
	}
	if t.Asked > 0 {
		t.wait = min(t.wait, t.Asked)
	}
	t.deadline = now.Add(t.wait - t.Waited)
	if q.order.Len() == 0 {
		q.short = [maxLanes]bool{} // who lacked room is gone
	}
	t.Item.owner = t
	late := t.NoQueue || q.bounds.MaxLength == 0 && !t.placed()
	if !late && !t.placed() && q.over(t, 1) {
		// A burst comes faster than it is dispatched: while nobody lacks room, a
		// place in the queue is nothing that a request needs yet.
		if late = q.busy && !q.short[t.Lane%maxLanes]; !late {
			if f := q.place(t, 1); f != nil {
				return f
			}
		}
	}
	if q.rate != nil && q.order.Len() > 0 && now.Sub(q.rated) >= time.Second {
		q.rated = now
		q.order.SetRate(q.rate())
	}
	q.order.Push(now, since, &t.Item)
	t.entered = q.rounds
	if late {
		q.late = append(q.late, t)
	}
	return nil
}

// over says that with so many more of the ticket's key too many wait.
func (q *Queue) over(t *Ticket, more int) bool {
	bound := t.Bounds.MaxLength
	return bound > 0 && q.order.KeyPlaces(t.Key)+more > bound || q.order.Places()+more > q.bounds.MaxLength
}

// place finds a place for so many more of the ticket's key where too many wait.
// The key that has most waiting for its weight gives way: its last request is refused.
func (q *Queue) place(t *Ticket, more int) *Refusal {
	n := q.order.KeyPlaces(t.Key) + more - 1
	if bound := t.Bounds.MaxLength; bound > 0 && n >= bound {
		return q.full(t, ScopeKey, bound, n)
	}
	out := q.order.crowd(t.Key, t.Weight, n+1)
	if out == nil || out.owner.binding {
		return q.full(t, ScopeModel, q.bounds.MaxLength, q.order.Places())
	}
	f := q.full(out.owner, ScopeModel, q.bounds.MaxLength, q.order.Places())
	q.order.Remove(out)
	q.resolve(out.owner, f)
	return nil
}

// await waits for the ticket's end.
func (q *Queue) await(ctx context.Context, t *Ticket) error {
	timer := time.NewTimer(min(nudge, time.Until(t.deadline)))
	defer timer.Stop()
	for {
		select {
		case <-t.done:
			return t.err
		case <-ctx.Done():
			return q.leave(t, func() error { return context.Cause(ctx) })
		case <-timer.C:
		}
		now := time.Now()
		left := t.deadline.Sub(now)
		if left <= 0 {
			return q.leave(t, func() error { return q.timeout(t, now) })
		}
		q.nudge(now)
		timer.Reset(min(nudge, left))
	}
}

// nudge kicks the queue if nobody has for a while.
func (q *Queue) nudge(now time.Time) {
	q.mu.Lock()
	stale := now.Sub(q.lastRound) >= nudge
	q.mu.Unlock()
	if stale {
		q.Kick()
	}
}

// leave takes a waiting ticket out for the reason given, unless it was
// resolved meanwhile: a ticket that was bound stays bound.
func (q *Queue) leave(t *Ticket, why func() error) error {
	q.mu.Lock()
	if !t.resolved && t.binding {
		t.left = why()
		q.mu.Unlock()
		<-t.done
		return t.err
	}
	defer q.mu.Unlock()
	if !t.resolved {
		q.order.Remove(&t.Item)
		q.resolve(t, why())
	}
	return t.err
}

// resolve ends the ticket's wait. q is locked.
func (q *Queue) resolve(t *Ticket, err error) {
	t.resolved, t.err = true, err
	if t.done != nil {
		close(t.done)
	}
}

// Kick dispatches as long as something fits. It is to be called whenever room
// or a concurrency slot may have come.
//
// It costs nothing while nobody waits. Who enters just then needs no kick: he
// looks for room himself, and after whoever kicks has given it back.
func (q *Queue) Kick() {
	if q.order.Len() == 0 {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.kick(time.Time{})
}

// kick is Kick. q is locked. now is the time, zero where it is still to be read.
func (q *Queue) kick(now time.Time) {
	q.again = true
	if q.busy {
		return
	}
	q.busy = true
	for q.again && q.order.Len() > 0 {
		q.again, q.missed = false, [maxLanes]bool{}
		q.rounds++
		for q.dispatch(now) {
			now = time.Time{}
		}
		now = time.Time{}
		q.short = q.missed
		q.sendAway()
	}
	q.busy = false
}

// sendAway refuses those without a place that had their round, and did not fit.
func (q *Queue) sendAway() {
	if len(q.late) == 0 {
		return
	}
	slices.Reverse(q.late) // who came last goes first
	defer func() { slices.Reverse(q.late) }()
	q.late = slices.DeleteFunc(q.late, func(t *Ticket) bool {
		if !t.resolved && t.entered >= q.rounds {
			return false // it came during this round; its own Kick is the next
		}
		if t.resolved {
			return true
		}
		var f *Refusal
		switch {
		case t.NoQueue || q.bounds.MaxLength == 0:
			f = q.unqueued(t)
		case q.over(t, 0):
			f = q.place(t, 0)
		}
		if f != nil {
			q.order.Remove(&t.Item)
			q.resolve(t, f)
		}
		return true
	})
}

// dispatch tries the candidates until one is bound. Those that fitted nowhere
// in this round are not tried again in it. q is locked, but not during TryBind.
func (q *Queue) dispatch(now time.Time) bool {
	if q.order.Len() == 0 {
		return false
	}
	if now.IsZero() {
		now = time.Now()
	}
	q.lastRound = now
	q.buf = q.order.Candidates(now, q.buf[:0], maxTries, maxTriesPerKey)
	for i, it := range q.buf {
		t := it.owner
		if t.round == q.rounds || it.state != itemWaiting {
			continue
		}
		ok, err := q.try(now, t)
		switch {
		case ok:
			q.drain.dispatched(now, q.order.Len() > 1)
			q.order.Dispatch(now, it, q.buf[:i])
			q.resolve(t, nil)
			return true
		case t.left != nil:
			q.order.Remove(it)
			q.resolve(t, t.left)
		case err == nil || err == ErrHeld: //nolint:errorlint // nobody wraps it
			t.round, t.held = q.rounds, err != nil
			if err == nil {
				q.missed[t.Lane%maxLanes], q.short[t.Lane%maxLanes] = true, true
			}
		default:
			q.order.Remove(it)
			q.resolve(t, err)
		}
	}
	return false
}

// try runs TryBind without the lock.
func (q *Queue) try(now time.Time, t *Ticket) (ok bool, err error) {
	t.binding = true
	q.mu.Unlock()
	defer func() {
		q.mu.Lock()
		t.binding = false
		if v := recover(); v != nil { // it is the ticket's own; whose goroutine this is, and the queue, go on
			ok, err = false, fmt.Errorf("limits: TryBind panicked: %v", v)
		}
	}()
	return t.Binder.TryBind(now)
}

// Settle corrects what the ticket's key was charged for it by what it used:
// uncached input and output tokens, 0 if the engine failed. Only the first
// call after Acquire counts.
func (q *Queue) Settle(now time.Time, t *Ticket, uncached, output int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.order.Settle(now, &t.Item, uncached, output)
}

// Len is how many wait.
func (q *Queue) Len() int { return q.order.Len() }

// unqueued is the refusal of a ticket that may not wait: by its own wish, or since nobody may.
func (q *Queue) unqueued(t *Ticket) *Refusal {
	f := q.timeout(t, time.Now())
	if !t.NoQueue && f.Kind == KindQueueTimeout {
		return q.full(t, ScopeModel, 0, 0)
	}
	return f
}

// full is the refusal for the length of the queue.
func (q *Queue) full(t *Ticket, s Scope, limit, n int) *Refusal {
	f := q.refusal(t, s, KindQueueFull)
	f.Limit, f.Used = int64(limit), int64(n)
	f.RetryAfter = q.drain.until(time.Now(), n)
	return f
}

// timeout is the refusal of a ticket that waited long enough, or may not wait:
// by its key's concurrency if that is what it waits for, else for want of room.
// A model's concurrency is our capacity, not the caller's limit.
func (q *Queue) timeout(t *Ticket, now time.Time) *Refusal {
	model := ""
	if r := t.Reservation; r != nil && !r.TrySlot(now) {
		f := r.ConcurrencyRefusal(now)
		if f.Scope != ScopeModel {
			return f
		}
		model = f.ConfigKey
	}
	s, header := ScopeModel, ""
	if t.Bounds.MaxWait > 0 {
		s = ScopeKey
	}
	f := q.refusal(t, s, KindQueueTimeout)
	f.Limit, f.Used = t.wait.Milliseconds(), now.Sub(t.since).Milliseconds()
	switch {
	case t.NoQueue:
		f.Limit, header = 0, "the header x-penstock-no-queue"
	case t.Asked > 0 && t.Asked == t.wait:
		header = "the header x-penstock-max-wait"
	}
	f.ConfigKey = cmp.Or(model, header, t.WaitKey, f.ConfigKey)
	f.RetryAfter = q.drain.until(now, 1)
	return f
}

func (q *Queue) refusal(t *Ticket, s Scope, k Kind) *Refusal {
	f := &Refusal{Scope: s, Kind: k, Key: t.Key, Model: q.model, Needed: 1, ConfigKey: ConfigKey(s, k, t.Key, q.model)}
	if r := t.Reservation; r != nil {
		f.State, f.Mode = r.State(), r.Mode()
	}
	return f
}

// drainRate is how fast a queue empties: dispatches per second while others
// waited, fading over half a minute.
type drainRate struct {
	rate  float64
	at    time.Time
	since time.Time // when it began to be measured
}

const drainFade = 30.0 // seconds

func (d *drainRate) dispatched(now time.Time, others bool) {
	if !others {
		return
	}
	if d.at.IsZero() || now.Sub(d.at).Seconds() > 10*drainFade {
		d.rate, d.at, d.since = 0, now, now
		return
	}
	d.rate = d.rate*fade(now.Sub(d.at)) + 1/drainFade
	d.at = now
}

// until estimates the time in which n leave, give or take a fifth so that
// those refused do not come back together: a second at least, a minute at most.
func (d *drainRate) until(now time.Time, n int) time.Duration {
	est := 5.0 // nothing known
	if r := d.perSecond(now); r > 0 {
		est = float64(n) / r
	}
	est *= 0.8 + 0.4*rand.Float64()
	return time.Duration(min(60, max(1, est)) * float64(time.Second))
}

// perSecond is the rate; 0: not known.
func (d *drainRate) perSecond(now time.Time) float64 {
	if seen := 1 - fade(d.at.Sub(d.since)); d.rate > 0 && seen > 0 {
		return d.rate / seen * fade(now.Sub(d.at))
	}
	return 0
}

func fade(d time.Duration) float64 { return math.Exp(-d.Seconds() / drainFade) }

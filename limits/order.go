package limits

import (
	"cmp"
	"math"
	"slices"
	"sync/atomic"
	"time"
)

// outputWeight is what an output token counts beside an uncached input token.
const outputWeight = 2

// Item is one waiting request in an Order. The exported fields are its maker's.
type Item struct {
	// Key is the client's name.
	Key string
	// Weight is its share, priorities included; 0 is 1.
	Weight float64
	// Prompt tells the request's work. nil: Input.
	Prompt Prompt
	// Input and Output are the estimated tokens.
	Input, Output int
	// Lane tells apart requests that do not compete for the same room, as
	// scoring and chat: room kept for the head of one lane does not hold up the
	// others. Below maxLanes.
	Lane uint8
	// Part says that it belongs to a request that has begun: it waits, but takes
	// no place of its key's or the model's.
	Part bool
	// Slots are the concurrency slots that it needs. nil: none.
	Slots Slots

	owner  *Ticket
	since  time.Time
	work   int       // uncached input tokens when last asked
	price  float64   // orders the requests of one key: less goes first
	passed time.Time // when another went first because it fitted nowhere; zero: not yet
	weight float64
	charge float64 // charged at dispatch, over weight
	share  *share
	asked  bool // its slots were tried for, or are held
	ready  bool // it has them
	state  itemState
}

// Prompt is a request's input.
type Prompt interface {
	// Work is the least uncached input tokens anywhere. It is asked again as
	// time passes, since what is cached changes.
	Work() int
}

// Slots are the concurrency slots that a request needs.
type Slots interface {
	// TrySlot takes them all if they are free, and says whether they are held.
	// It must be quick.
	TrySlot(now time.Time) bool
}

type itemState uint8

const (
	itemNew itemState = iota
	itemWaiting
	itemRunning
	itemDone
)

// Since is when the item began to wait.
func (it *Item) Since() time.Time { return it.since }

// share is one key's part in an Order.
type share struct {
	key      string
	settled  float64 // virtual tokens served and settled
	pending  float64 // virtual tokens charged to what runs
	running  int
	waiting  []*Item   // by price
	parts    int       // of these, that take no place
	looked   time.Time // when their work was last asked
	turn     int       // where the rest of them is asked next
	output   float64   // moving mean of output tokens; 0: unknown
	served   float64   // tokens served, not divided by the weight, fading over a minute
	servedAt time.Time
	weight   float64 // as the newest item said
}

func (s *share) counter() float64 { return s.settled + s.pending }

// Order decides who goes next: the key with the lowest virtual token counter,
// and of its requests the one with the least uncached work, less a credit for
// the time waited. It is pure: it takes the time, does no I/O and starts
// nothing. It is not safe for concurrent use, Len aside; Queue is.
//
// A key's counter is (uncached input + 2 × output) ÷ weight of all that was
// dispatched for it: as estimated while it runs, as it was once it is settled.
// A key with nothing waiting that comes again starts at the least settled
// counter of those that wait, or where the newest stood when none does: being
// away earns nothing and costs nothing.
type Order struct {
	// Credit is the part of the prefill rate by which waiting lowers the work. Default 0.085.
	Credit float64
	// Hold is how long a head that fits nowhere is passed over before room is kept for it.
	Hold time.Duration

	rate    float64   // prefill rate in tokens per second
	epoch   time.Time // times of coming are counted from it
	shares  map[string]*share
	active  []*share // those with requests waiting
	waiting atomic.Int64
	parts   int           // of these, that take no place
	lanes   [maxLanes]int // waiting in each
	floor   float64       // the settled counter of the newest key served with no other waiting
}

const (
	// lookEvery is how long the work of a key's requests is not asked again,
	// and lookAt how many of them are then: half of them the first ones, half in turn.
	lookEvery = 250 * time.Millisecond
	lookAt    = 64
	// maxLanes bounds Item.Lane.
	maxLanes = 8
	// maxIdleShares bounds the counters kept of keys with nothing here.
	maxIdleShares = 4096
)

// Len is how many wait.
func (o *Order) Len() int { return int(o.waiting.Load()) }

// Places is how many wait that take a place.
func (o *Order) Places() int { return o.Len() - o.parts }

// KeyPlaces is how many of these are the key's.
func (o *Order) KeyPlaces(key string) int {
	if s := o.shares[key]; s != nil {
		return s.places()
	}
	return 0
}

// placed says that the item waits on whatever else waits: its request has begun,
// or it is tried again and keeps the place that it had.
func (it *Item) placed() bool { return it.Part || it.owner != nil && !it.owner.Began.IsZero() }

func (s *share) places() int { return len(s.waiting) - s.parts }

// count counts one more waiting item, or one less.
func (o *Order) count(it *Item, by int) {
	o.waiting.Add(int64(by))
	o.lanes[it.Lane%maxLanes] += by
	if it.Part {
		o.parts += by
		it.share.parts += by
	}
}

// Push adds an item that waits since the given time.
func (o *Order) Push(now, since time.Time, it *Item) {
	s := o.share(it.Key)
	it.weight = it.Weight
	if it.weight <= 0 {
		it.weight = 1
	}
	s.weight = it.weight
	if o.epoch.IsZero() {
		o.epoch = since
	}
	if len(s.waiting) == 0 {
		if f := o.start(); s.counter() < f {
			s.settled = f - s.pending
		}
		o.active = append(o.active, s)
		s.looked = now
	}
	it.share, it.state, it.since, it.passed = s, itemWaiting, since, time.Time{}
	o.look(it)
	i, _ := slices.BinarySearchFunc(s.waiting, it, func(a, b *Item) int {
		return cmp.Or(cmp.Compare(a.price, b.price), -1) // after its equals
	})
	s.waiting = slices.Insert(s.waiting, i, it)
	o.count(it, 1)
}

func (o *Order) share(key string) *share {
	if o.shares == nil {
		o.shares = make(map[string]*share)
	}
	s := o.shares[key]
	if s == nil {
		if len(o.shares) >= maxIdleShares {
			o.forget()
		}
		s = &share{key: key}
		o.shares[key] = s
	}
	return s
}

// forget drops the shares of keys with nothing here, which would start at the
// floor again anyway, or soon.
func (o *Order) forget() {
	for k, s := range o.shares {
		if s.running == 0 && len(s.waiting) == 0 {
			delete(o.shares, k)
		}
	}
}

// start is where a key begins that comes again.
func (o *Order) start() float64 {
	if len(o.active) == 0 {
		return o.floor
	}
	least := math.Inf(1)
	for _, s := range o.active {
		least = min(least, s.settled)
	}
	return least
}

// Remove takes a waiting item out. It tells whether it was waiting.
func (o *Order) Remove(it *Item) bool {
	if it.state != itemWaiting {
		return false
	}
	s := it.share
	i := slices.Index(s.waiting, it)
	s.waiting = slices.Delete(s.waiting, i, i+1)
	it.state = itemDone
	o.count(it, -1)
	if len(s.waiting) == 0 {
		i = slices.Index(o.active, s)
		o.active = slices.Delete(o.active, i, i+1)
	}
	return true
}

// look asks the item's work and prices it. Of two requests the one that is
// cheaper now is so at any time, so the time waited enters as the time of coming.
func (o *Order) look(it *Item) {
	it.work = it.Input
	if it.Prompt != nil {
		it.work = it.Prompt.Work()
	}
	o.reprice(it)
}

func (o *Order) reprice(it *Item) {
	it.price = float64(it.work) + o.Credit*o.rate*it.since.Sub(o.epoch).Seconds()
}

// refresh asks the work of a key's requests again when it is old.
func (o *Order) refresh(now time.Time, s *share) {
	if now.Sub(s.looked) < lookEvery {
		return
	}
	s.looked = now
	n := len(s.waiting)
	for i := range min(n, lookAt/2) {
		o.look(s.waiting[i])
	}
	for range min(lookAt/2, n-lookAt/2) {
		s.turn = (s.turn + 1) % n
		o.look(s.waiting[s.turn])
	}
	s.sort()
}

func (s *share) sort() {
	slices.SortStableFunc(s.waiting, func(a, b *Item) int { return cmp.Compare(a.price, b.price) })
}

// SetRate tells the prefill rate of one replica in tokens per second, by which
// waiting is credited. 0 (at first): waiting counts nothing.
func (o *Order) SetRate(rate float64) {
	if d := rate - o.rate; math.Abs(d) <= 0.05*o.rate {
		return
	}
	o.rate = rate
	for _, s := range o.active {
		for _, it := range s.waiting {
			o.reprice(it)
		}
		s.sort()
	}
}

// isReady tells whether the item has its slots. Slots are the key's: once one
// of its requests got none, only those are asked that were before.
func (it *Item) isReady(now time.Time, blocked *bool) bool {
	if it.ready || it.Slots == nil {
		return true
	}
	if *blocked && !it.asked {
		return false
	}
	it.asked = true
	it.ready = it.Slots.TrySlot(now)
	if !it.ready {
		*blocked = true
	}
	return it.ready
}

// Candidates appends to buf those that may go next, the first first: of each
// lane at most n, and perKey of one key. None of its lane follows a head for
// which room is kept.
func (o *Order) Candidates(now time.Time, buf []*Item, n, perKey int) []*Item {
	slices.SortFunc(o.active, func(a, b *share) int {
		return cmp.Or(cmp.Compare(a.counter(), b.counter()), cmp.Compare(a.running, b.running), cmp.Compare(a.key, b.key))
	})
	var left [maxLanes]int // that may be added
	open := 0              // lanes with any left and anybody waiting
	for l := range left {
		if o.lanes[l] > 0 {
			left[l] = n
			open++
		}
	}
	for _, s := range o.active {
		if open == 0 {
			break
		}
		o.refresh(now, s)
		buf, open = o.ofKey(now, s, buf, &left, open, perKey)
	}
	return buf
}

// ofKey appends one key's candidates, and tells how many lanes are left open.
func (o *Order) ofKey(now time.Time, s *share, buf []*Item, left *[maxLanes]int, open, perKey int) ([]*Item, int) {
	var got [maxLanes]int
	usable, blocked := open, false // lanes that may have more of this key
	for _, it := range s.waiting {
		l := it.Lane % maxLanes
		if left[l] == 0 || got[l] == perKey || !it.isReady(now, &blocked) {
			continue
		}
		buf = append(buf, it)
		left[l]--
		if !it.passed.IsZero() && now.Sub(it.passed) >= o.Hold {
			left[l] = 0
		}
		got[l]++
		if left[l] == 0 {
			open--
		}
		if left[l] == 0 || got[l] == perKey {
			if usable--; usable == 0 {
				break
			}
		}
	}
	return buf, open
}

// Dispatch takes a waiting item out and charges it to its key. over are those
// that were tried before it and fitted nowhere.
func (o *Order) Dispatch(now time.Time, it *Item, over []*Item) {
	s := it.share
	if !o.Remove(it) {
		return
	}
	for _, p := range over {
		if p.passed.IsZero() && (p.owner == nil || !p.owner.held) { // no room is kept for one that had some
			p.passed = now
		}
	}
	out := float64(it.Output)
	if s.output > 0 {
		out = min(out, s.output)
	}
	it.state = itemRunning
	it.charge = (float64(it.work) + outputWeight*out) / it.weight
	s.pending += it.charge
	s.running++
	if len(o.active) == 0 || len(o.active) == 1 && o.active[0] == s {
		o.floor = max(o.floor, s.settled)
	}
}

// Settle corrects the charge of an item that ran by what it used.
func (o *Order) Settle(now time.Time, it *Item, uncached, output int) {
	if it.state != itemRunning {
		return
	}
	it.state = itemDone
	s := it.share
	s.running--
	s.pending -= it.charge
	if s.running == 0 {
		s.pending = 0 // no rounding left over
	}
	served := float64(uncached) + outputWeight*float64(output)
	s.settled += served / it.weight
	s.served = s.recent(now) + served
	s.servedAt = now
	if output > 0 {
		if s.output == 0 {
			s.output = float64(output)
		}
		s.output += (float64(output) - s.output) / 16
	}
}

// recent is what was served, fading over a minute.
func (s *share) recent(now time.Time) float64 {
	if s.served == 0 {
		return 0
	}
	return s.served * math.Exp(-now.Sub(s.servedAt).Minutes())
}

// crowd is the last waiting request of the key that has most of them for its
// weight, if that key has more than the one that asks, which would have n.
func (o *Order) crowd(key string, weight float64, n int) *Item {
	if weight <= 0 {
		weight = 1
	}
	most := float64(n) / weight
	var last *Item
	for _, s := range o.active {
		if n := float64(s.places()) / s.weight; n > most && s.key != key {
			for _, it := range slices.Backward(s.waiting) {
				if !it.placed() {
					most, last = n, it
					break
				}
			}
		}
	}
	return last
}

// Next is one round for those who run the order alone, as a simulator does: it
// tries the candidates in order, dispatches the first that fits and returns
// it, nil if none does.
func (o *Order) Next(now time.Time, fits func(*Item) bool) *Item {
	all := o.Candidates(now, nil, math.MaxInt, math.MaxInt)
	for i, it := range all {
		if fits(it) {
			o.Dispatch(now, it, all[:i])
			return it
		}
	}
	return nil
}

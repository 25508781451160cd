package limits

import "slices"

const (
	// unit is how many of a bucket's units make one token (or request): with
	// it, a limit per minute is the number of units refilled per millisecond,
	// so that levels and times are whole numbers and Go and Lua agree to the last bit.
	unit = 60_000
	// maxTokens bounds limits, bursts and costs: three times as many units stay
	// below 2^53, which is as far as Lua counts exactly.
	maxTokens = 20_000_000_000
	// clockBack is how far, in milliseconds, the clock may go back before the
	// buckets follow it. Less is goroutines that overtake one another.
	clockBack = 5000
)

// bucket is one token bucket with debt: GCRA as a continuous-state leaky
// bucket. It holds the units used and not refilled yet; the level is
// burst − used, and below zero after a settlement that charged more than was
// reserved. Its owner locks it.
//
// The used units are kept as a stack of layers, one per charge, and time takes
// them from the top. So a refund can be exact: what is given back is what the
// charge would still weigh now had it never been made, which is the least that
// was in use at any time since. Taking off simply what was reserved too much
// would give again what time gave already, and let more through than the limit.
//
// Every layer but the newest bears the number of a charge that is not settled
// yet, so there is at most one more of them than requests under way.
type bucket struct {
	limit  int64 // units per millisecond = tokens per minute, as last told
	burst  int64 // tokens, as last told
	at     int64 // milliseconds since 1970; used is as of this time
	used   int64 // units: the sum of layers
	layers []layer
}

// layer is what is left of one charge and of the settled ones just before it.
type layer struct {
	seq, amount int64
}

// drain lets time refill the bucket up to now (milliseconds).
func (b *bucket) drain(now int64) {
	elapsed := now - b.at
	if elapsed <= 0 {
		if elapsed < -clockBack {
			b.at = now
		}
		return
	}
	b.at = now
	switch {
	case b.used == 0 || b.limit <= 0:
	case elapsed > b.used/b.limit:
		b.reset()
	default:
		b.pop(elapsed * b.limit)
	}
}

// pop takes units from the newest layers.
func (b *bucket) pop(units int64) {
	b.used -= units
	for units > 0 {
		top := &b.layers[len(b.layers)-1]
		if top.amount > units {
			top.amount -= units
			return
		}
		units -= top.amount
		b.layers = b.layers[:len(b.layers)-1]
	}
}

// set puts a limit in force from now on. What was used stays used.
func (b *bucket) set(now int64, r rate) {
	b.drain(now)
	b.limit, b.burst = r.limit, r.burst
}

// wait is the time in milliseconds until cost tokens fit, after ahead tokens
// of others: 0 now, -1 never.
func (b *bucket) wait(cost, ahead int64, r rate) int64 {
	if cost > r.whole {
		return -1
	}
	over := b.used + (min(cost, r.burst)+ahead-r.burst)*unit
	if over <= 0 || cost <= 0 {
		return 0
	}
	return (over + r.limit - 1) / r.limit
}

// charge adds tokens under a sequence number above all before it. newest is
// the newest charge not settled yet. It is called for charges that do not count
// here too, with 0.
func (b *bucket) charge(seq, tokens, newest int64) {
	b.push(seq, max(0, tokens)*unit, newest)
}

// push puts units on top. A top layer newer than the newest unsettled charge is
// nobody's any more: it becomes seq's.
func (b *bucket) push(seq, units, newest int64) {
	b.used += units
	if top := len(b.layers) - 1; top >= 0 && b.layers[top].seq > newest {
		b.layers[top] = layer{seq, b.layers[top].amount + units}
	} else if units > 0 {
		b.layers = append(b.layers, layer{seq, units})
	}
}

// settle ends the charge seq, of which next is the oldest after it that is not
// settled yet, 0 if there is none, and newest the newest. delta is what was
// used less what was reserved: more is charged now under the number fresh, down
// to a debt of one burst; less is given back as far as time has not done so.
func (b *bucket) settle(now, seq, next, newest, fresh, delta int64) {
	b.drain(now)
	i := b.find(seq)
	if i >= 0 && delta < 0 {
		b.refund(i, -delta*unit)
		i = b.find(seq)
	}
	if i >= 0 && b.layers[i].seq == seq {
		b.bequeath(i, next)
	}
	if delta > 0 {
		b.owe(fresh, delta, newest)
	}
}

// find is the newest layer not newer than seq; -1 if there is none.
func (b *bucket) find(seq int64) int {
	i, found := slices.BinarySearchFunc(b.layers, seq, func(l layer, s int64) int {
		switch {
		case l.seq < s:
			return -1
		case l.seq > s:
			return 1
		}
		return 0
	})
	if found {
		return i
	}
	return i - 1
}

// refund takes units from layer i and those under it.
func (b *bucket) refund(i int, units int64) {
	end, n := i+1, i+1
	for n > 0 && units > 0 {
		l := &b.layers[n-1]
		take := min(l.amount, units)
		l.amount -= take
		units -= take
		b.used -= take
		if l.amount > 0 {
			break
		}
		n--
	}
	b.layers = slices.Delete(b.layers, n, end)
}

// bequeath gives a settled charge's layer to the next unsettled charge: it is
// the first whose refund may still reach it.
func (b *bucket) bequeath(i int, next int64) {
	top := i == len(b.layers)-1
	switch {
	case next > 0 && (top || next < b.layers[i+1].seq):
		b.layers[i].seq = next
	case !top:
		b.layers[i+1].amount += b.layers[i].amount
		b.layers = slices.Delete(b.layers, i, i+1)
	}
}

// owe charges tokens that were not reserved.
func (b *bucket) owe(fresh, tokens, newest int64) {
	if add := min(tokens*unit, 2*b.burst*unit-b.used); add > 0 {
		b.push(fresh, add, newest)
	}
}

// reset fills the bucket.
func (b *bucket) reset() {
	b.used, b.layers = 0, b.layers[:0]
}

// level is what is left in whole tokens, rounded down; below zero it is a debt.
func level(used, burst int64) int64 {
	return burst - (used+unit-1)/unit
}

// refill is the time in milliseconds until a bucket with so much used is full.
func refill(used, limit int64) int64 {
	if used <= 0 || limit <= 0 {
		return 0
	}
	return (used + limit - 1) / limit
}

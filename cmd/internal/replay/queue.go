package replay

import (
	"time"

	"penstock/limits"
)

// queue holds the requests that are not bound yet, in the gateway's own order
// (limits.Order), tried as the gateway's queue tries them.
type queue struct {
	order limits.Order
	of    map[*limits.Item]*request
	buf   []*limits.Item
}

// tries bounds the requests tried in one round, as the gateway does for one key.
const tries = 8

func newQueue(credit float64) queue {
	return queue{order: limits.Order{Credit: credit, Hold: 5 * time.Second}, of: map[*limits.Item]*request{}}
}

// add puts a request in.
func (q *queue) add(now time.Time, r *request) {
	it := &limits.Item{Key: "replay", Prompt: r, Input: r.row.Input, Output: r.row.Output}
	q.of[it] = r
	q.order.Push(now, now, it)
}

// dispatch offers the requests in order; bind says whether one was taken.
func (q *queue) dispatch(now time.Time, bind func(*request) bool) {
	for q.order.Len() > 0 {
		q.buf = q.order.Candidates(now, q.buf[:0], tries, tries)
		bound := 0
		var over []*limits.Item
		for _, it := range q.buf {
			if !bind(q.of[it]) {
				over = append(over, it)
				continue
			}
			q.order.Dispatch(now, it, over)
			q.order.Settle(now, it, 0, 0)
			delete(q.of, it)
			bound++
		}
		if bound == 0 {
			return
		}
	}
}

package replay

import (
	"slices"
	"sort"
)

// queue holds the requests that fit on no replica, in the order of the
// gateway's: least uncached work first, less a credit for the time waited. As
// the credit grows alike for all, the order of two does not depend on the time:
// a request's place is work + credit × arrival.
type queue struct {
	items  []*request
	credit float64 // tokens for each ms
	work   func(*request) int
	next   int // whose work is looked at again next
}

const (
	// queueMisses is how many that do not fit are passed over in one round.
	queueMisses = 16
	// queueRefresh is how many are looked at again in one round: prefixes come and go.
	queueRefresh = 16
)

func (q *queue) place(r *request) float64 { return float64(r.work) + q.credit*r.at }

func (q *queue) add(r *request) {
	r.work = q.work(r)
	q.insert(r)
}

func (q *queue) insert(r *request) {
	p := q.place(r)
	i := sort.Search(len(q.items), func(i int) bool { return q.place(q.items[i]) > p })
	q.items = slices.Insert(q.items, i, r)
}

// refresh looks again at the work of some, in turn.
func (q *queue) refresh() {
	for range min(queueRefresh, len(q.items)) {
		q.next = (q.next + 1) % len(q.items)
		q.look(q.next)
	}
}

// look brings the work of item i up to date; it says whether the item stayed where it is.
func (q *queue) look(i int) bool {
	r := q.items[i]
	if w := q.work(r); w != r.work {
		q.items = slices.Delete(q.items, i, i+1)
		r.work = w
		q.insert(r)
		return q.items[i] == r
	}
	return true
}

// dispatch offers the requests in order; bind says whether one was taken.
func (q *queue) dispatch(bind func(*request) bool) {
	q.refresh()
	for i, misses, looks := 0, 0, 0; i < len(q.items) && misses <= queueMisses; {
		if looks < 2*queueMisses && !q.look(i) {
			looks++
			continue
		}
		if bind(q.items[i]) {
			q.items = slices.Delete(q.items, i, i+1)
			continue
		}
		misses++
		i++
	}
}

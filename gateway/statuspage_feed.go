package gateway

import (
	"bytes"
	"encoding/json"
	"sync"
	"time"
)

const (
	// feedInterval is the time between two updates of the status page.
	feedInterval = time.Second
	// maxWatchers bounds the status pages, and 'penstock top's, at once.
	maxWatchers = 64
)

// feed sends one snapshot a second to whoever watches. It takes them in one
// goroutine for all watchers, which ends when the last one leaves: nobody
// watching costs nothing.
type feed struct {
	take func(first bool) *statusObject // one snapshot; first: it begins the history anew
	kick chan struct{}                  // something changed: do not wait for the second

	mu       sync.Mutex
	watchers map[chan []byte]struct{}
	history  []point
	last     []byte // the last update, for those who come between two
	quit     chan struct{}
	done     sync.WaitGroup
	closed   bool
}

func newFeed(take func(first bool) *statusObject) *feed {
	return &feed{take: take, kick: make(chan struct{}, 1), watchers: map[chan []byte]struct{}{}}
}

// watch returns what is to be sent first, the channel of all further updates,
// and how to leave. A watcher that falls behind misses updates; ok is false
// when there are too many, or the gateway ends.
func (f *feed) watch() (first []byte, updates <-chan []byte, leave func(), ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed || len(f.watchers) >= maxWatchers {
		return nil, nil, nil, false
	}
	if len(f.watchers) == 0 {
		f.history, f.last = nil, nil
		f.collect(true)
		f.quit = make(chan struct{})
		quit := f.quit
		f.done.Go(func() { f.run(quit) })
	}
	c := make(chan []byte, 1)
	f.watchers[c] = struct{}{}
	leave = func() { f.leave(c) }
	return append(event("history", f.history), f.last...), c, leave, true
}

func (f *feed) leave(c chan []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, there := f.watchers[c]; !there {
		return
	}
	delete(f.watchers, c)
	if len(f.watchers) == 0 {
		close(f.quit)
	}
}

// changed sends a snapshot at once: a replica fell ill, or was drained.
func (f *feed) changed() {
	select {
	case f.kick <- struct{}{}:
	default:
	}
}

func (f *feed) run(quit chan struct{}) {
	tick := time.NewTicker(feedInterval)
	defer tick.Stop()
	for {
		select {
		case <-quit:
			return
		case <-f.kick:
		case <-tick.C:
		}
		f.update(quit)
		select { // what changes in a storm is told a few times a second
		case <-quit:
			return
		case <-time.After(feedInterval / 8):
		}
	}
}

// update sends a snapshot to all who watch.
func (f *feed) update(quit chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.quit != quit { // this goroutine's watchers all left, and somebody came anew
		return
	}
	f.collect(false)
	for c := range f.watchers {
		select {
		case c <- f.last:
		default:
		}
	}
}

// collect takes a snapshot. The lock is held.
func (f *feed) collect(first bool) {
	o := f.take(first)
	if n := len(f.history); n > 0 && f.history[n-1].Time == o.Point.Time {
		f.history = f.history[:n-1]
	}
	f.history = append(append(f.history, o.before...), o.Point)
	if extra := len(f.history) - historySeconds; extra > 0 {
		f.history = append(f.history[:0], f.history[extra:]...)
	}
	f.last = event("status", o)
}

// close ends all watching.
func (f *feed) close() {
	f.mu.Lock()
	f.closed = true
	if len(f.watchers) > 0 {
		close(f.quit)
	}
	for c := range f.watchers {
		close(c)
		delete(f.watchers, c)
	}
	f.mu.Unlock()
	f.done.Wait()
}

// event is one server-sent event. v is ours and can be encoded.
func event(name string, v any) []byte {
	var b bytes.Buffer
	b.WriteString("event: " + name + "\ndata: ")
	if err := json.NewEncoder(&b).Encode(v); err != nil { // ends with a line break
		panic(err)
	}
	b.WriteByte('\n')
	return b.Bytes()
}

package engine

import (
	"sync"
	"time"
)

// EventType says what happened to a replica.
type EventType uint8

// The events. A replica is announced by Added once its engine has told what it
// is, and is not mentioned again after Removed.
const (
	// Added: the replica is known; Event.Capacity is its size. It may serve.
	Added EventType = iota
	// Removed: it gets no new requests; those in flight go on to their end.
	Removed
	// Restarted: its engine is another process now; what was cached is lost.
	Restarted
	// CapacityChanged: Event.Capacity is its new size.
	CapacityChanged
	// Unhealthy: it answers no more. Requests there without a byte to the
	// client should be cancelled and sent elsewhere.
	Unhealthy
	// Healthy: it answers again (or for the first time, right after Added).
	Healthy
	// LoadReported: Event.Load is what the engine says of itself.
	LoadReported
	// StateChanged: its state is another (breaker, draining); see Replica.State.
	StateChanged
	// ProbeFailed: one probe failed or timed out; Event.Reason tells why.
	ProbeFailed
	// PollFailed: one load poll failed; the last values stay.
	PollFailed
	// RanksIgnored: the engine's counters show Event.Count requests on other
	// ranks than those sent; the URL is one replica from now on (Removed and
	// Added follow).
	RanksIgnored
	// ModelsChanged: Replica.Served is another list (a LoRA adapter came or went).
	ModelsChanged
)

// String is the event's name in logs.
func (t EventType) String() string {
	names := [...]string{
		"added", "removed", "restarted", "capacity_changed", "unhealthy", "healthy",
		"load_reported", "state_changed", "probe_failed", "poll_failed", "ranks_ignored",
		"models_changed",
	}
	if int(t) < len(names) {
		return names[t]
	}
	return "unknown"
}

// Event is one change of one replica.
type Event struct {
	Type     EventType
	Replica  *Replica
	Capacity Capacity  // Added, CapacityChanged
	Load     Load      // LoadReported
	State    State     // StateChanged: the new one
	Reason   string    // Unhealthy, ProbeFailed, PollFailed, RanksIgnored
	Count    int       // RanksIgnored
	At       time.Time // when it was found
}

// eventQueue delivers events one at a time and in order. They are queued under
// the fleet's lock and delivered without it, so that the subscriber may ask
// the fleet questions.
type eventQueue struct {
	notify func(Event)

	mu    sync.Mutex
	queue []Event

	delivering sync.Mutex
}

func (q *eventQueue) add(ev Event) {
	if q.notify == nil {
		return
	}
	q.mu.Lock()
	q.queue = append(q.queue, ev)
	q.mu.Unlock()
}

// flush returns when all that was added before has been delivered.
func (q *eventQueue) flush() {
	if q.notify == nil {
		return
	}
	q.delivering.Lock()
	defer q.delivering.Unlock()
	for {
		q.mu.Lock()
		batch := q.queue
		q.queue = nil
		q.mu.Unlock()
		if len(batch) == 0 {
			return
		}
		for _, ev := range batch {
			q.notify(ev)
		}
	}
}

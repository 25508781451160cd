package relay

import (
	"io"
	"sync"
	"time"
)

// Timeouts are the deadlines of one exchange, apart from each other. 0: none.
type Timeouts struct {
	// Connect bounds dialling, TLS included.
	Connect time.Duration
	// First bounds the time from the start of an attempt to the first event of
	// a stream; an answer that is not streamed has Request alone.
	First time.Duration
	// Idle bounds the silence between two whole events, or between two pieces
	// of a body that has begun.
	Idle time.Duration
	// Request bounds the whole request, from Call.Start.
	Request time.Duration
}

// Call is the handle of one attempt. Cancel may be called by any goroutine at
// any time, also before the attempt begins and after it has ended. A Call
// serves one Do and is not used again.
type Call struct {
	// ID names the attempt in logs and to the engine.
	ID string
	// Start is when the request came; Timeouts.Request counts from it.
	Start    time.Time
	Timeouts Timeouts
	// OnBytes is called whenever bytes of the answer have come, with the time:
	// once a read, not once an event. It must not block. nil: nobody is told.
	OnBytes func(now time.Time)

	mu     sync.Mutex
	closer io.Closer // what is closed to end it; nil before and after
	cause  error
}

// Cancel ends the attempt: its connection is closed, and Do or the relaying of
// its answer fails with KindCanceled and this cause. The first cause stays.
func (c *Call) Cancel(cause error) {
	c.mu.Lock()
	if c.cause == nil {
		c.cause = cause
	}
	closer := c.closer
	c.closer = nil
	c.mu.Unlock()
	if closer != nil {
		_ = closer.Close()
	}
}

// Cause is what the attempt was cancelled for, or nil.
func (c *Call) Cause() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cause
}

// attach makes Cancel close x. It reports false when that has been asked already.
func (c *Call) attach(x io.Closer) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cause != nil {
		return false
	}
	c.closer = x
	return true
}

// detach ends what attach began. It reports false when the attempt was
// cancelled: what was attached may be closed, or be about to be, and is never
// to be used again.
func (c *Call) detach() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closer = nil
	return c.cause == nil
}

// deadline is the instant d after from, or never.
func deadline(from time.Time, d time.Duration) time.Time {
	if d <= 0 {
		return time.Time{}
	}
	return from.Add(d)
}

// until is the next deadline: what it is and which it is.
type until struct {
	at    time.Time // zero: never
	limit Limit
}

// sooner is u, or the deadline (at, limit) where that comes first.
func (u until) sooner(at time.Time, limit Limit) until {
	if at.IsZero() || (!u.at.IsZero() && !at.Before(u.at)) {
		return u
	}
	return until{at, limit}
}

// total is the deadline of the whole request.
func (c *Call) total() until {
	return until{}.sooner(deadline(c.Start, c.Timeouts.Request), LimitRequest)
}

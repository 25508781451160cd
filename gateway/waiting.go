package gateway

import (
	"context"
	"sync"
	"time"
)

// waiting is the context under which a request waits. It ends when the client
// has left, when the drain is over, or, of a part, when the whole ends or
// another part fails. Most requests never wait: a real context, with its
// channel and its place in the parent's list under the parent's lock, is made
// when somebody first wants it. Before, an end is a note here.
//
// Its methods may be called by any goroutine, after parent is set, and end also
// before that.
type waiting struct {
	parent context.Context // nil: nothing is waited for yet

	mu    sync.Mutex
	cause error                   // why it ended, without a real context; nil: it did not
	real  context.Context         // nil: nobody has wanted it yet
	leave context.CancelCauseFunc // ends real
}

// end ends the waits, and with it what is kept for them in the parent. The first
// cause stays; nil stands for context.Canceled.
func (w *waiting) end(cause error) {
	if w.parent == nil {
		return
	}
	if cause == nil {
		cause = context.Canceled
	}
	w.mu.Lock()
	leave := w.leave
	if leave == nil && w.cause == nil && w.parent.Err() == nil {
		w.cause = cause
	}
	w.mu.Unlock()
	if leave != nil {
		leave(cause)
	}
}

// why is the cause of the end; nil: it has not ended. It makes no real context.
func (w *waiting) why() error {
	if w.parent == nil || w.Err() == nil {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.real != nil:
		return context.Cause(w.real)
	case w.cause != nil:
		return w.cause
	}
	return context.Cause(w.parent)
}

// Err is context.Canceled after the end.
func (w *waiting) Err() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.real != nil:
		return w.real.Err()
	case w.cause != nil:
		return context.Canceled
	}
	return w.parent.Err()
}

// Done makes the real context.
func (w *waiting) Done() <-chan struct{} { return w.context().Done() }

// Value makes the real context: in it context.Cause finds the cause, and those
// that are derived from it their parent.
func (w *waiting) Value(key any) any { return w.context().Value(key) }

// Deadline is the parent's, which has none.
func (w *waiting) Deadline() (time.Time, bool) { return w.parent.Deadline() }

func (w *waiting) context() context.Context {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.real != nil:
	case w.cause != nil: // the parent may have ended since, for another one
		w.real, w.leave = context.WithCancelCause(context.WithoutCancel(w.parent))
		w.leave(w.cause)
	default:
		w.real, w.leave = context.WithCancelCause(w.parent)
	}
	return w.real
}

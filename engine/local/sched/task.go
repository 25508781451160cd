package sched

import (
	"errors"
	"time"
)

// Sequence is what a task generates with. The scheduler calls it from its own
// goroutine while it holds its lock: the methods must be quick and must not
// call back. It makes no call after the task has ended.
type Sequence interface {
	// Prefilled says that the prompt has been read, of which cached tokens were
	// in the cache. It is called once, before the first Next.
	Prefilled(cached int)
	// Next generates one token and tells whether it was the last.
	Next() (token uint32, done bool)
	// Signal is called after each step that called one of the others.
	Signal()
}

// Errors of Submit.
var (
	ErrQueueFull = errors.New("the request queue is full")
	ErrTooLong   = errors.New("the prompt and its answer do not fit into the cache")
	ErrClosed    = errors.New("the engine is shutting down")
)

// Task is one sequence on its way through the scheduler. The fields are set
// before Submit and not changed after it.
type Task struct {
	Prompt []uint32
	// Max is the most tokens that it may generate; 0 only reads the prompt.
	Max int
	// Fresh keeps the task from reading the cache: the log-probabilities of a
	// prompt need every token computed.
	Fresh bool
	// Private keeps it from writing the cache, as embeddings do.
	Private bool
	Seq     Sequence

	phase    phase
	come     time.Time // when it came
	ready    time.Time // when it reaches the scheduler
	tokens   []uint32  // the prompt and what was generated
	computed int       // tokens whose KV is there
	chunk    int       // prompt tokens to compute in the step that runs now
	known    int       // prompt tokens to read before generation goes on; more than the prompt after a preemption
	uncached int       // estimate made when it came
	cached   int       // prompt tokens found in the cache
	at       *node     // what it pins in the cache
	stored   int       // tokens up to at
	held     int       // tokens reserved, the stored ones included
	order    uint64    // of arrival
	read     bool      // Prefilled was called
	first    time.Time // when its first token came
}

type phase uint8

const (
	idle phase = iota // not submitted, or ended
	waiting
	running
)

// generated is how many tokens it has generated.
func (t *Task) generated() int { return len(t.tokens) - len(t.Prompt) }

// reading tells whether prompt tokens are still to be computed.
func (t *Task) reading() bool { return t.computed < t.known }

package relay

import (
	"bufio"
	"cmp"
	"sync"
	"time"
)

// Options are what all exchanges share. Zero values take the defaults.
type Options struct {
	// ReadBuffer is the size of the buffer that one answer is read through; it
	// bounds the engine's headers. Default 16 KiB.
	ReadBuffer int
	// MaxBuffered bounds the whole body that is read before anything is sent to
	// the client, so that an engine that dies in it is a 502 and can be retried.
	// Larger bodies are streamed. Default 1 MiB.
	MaxBuffered int
	// MaxWhole bounds a body that must be held whole (Request.Whole). Default 256 MiB.
	MaxWhole int
	// MaxEvent bounds one server-sent event. Default 16 MiB.
	MaxEvent int
	// MaxConns bounds the connections to one engine URL. Default 65536.
	MaxConns int
	// MaxIdle is how long an idle connection is kept. Engines close theirs after
	// 5 s, and a request must not meet that. Default 4 s.
	MaxIdle time.Duration
	// Settle is how long the end of the upstream body is waited for after a
	// stream's end marker, so that the connection can serve again. Default 100 ms.
	Settle time.Duration
	// OnPanic is told of a panic while an answer is relayed, from where
	// debug.Stack still shows it. nil: nobody is.
	OnPanic func(v any)
}

func (o Options) withDefaults() Options {
	o.ReadBuffer = cmp.Or(o.ReadBuffer, 16<<10)
	o.MaxBuffered = cmp.Or(o.MaxBuffered, 1<<20)
	o.MaxWhole = cmp.Or(o.MaxWhole, 256<<20)
	o.MaxEvent = cmp.Or(o.MaxEvent, 16<<20)
	o.MaxConns = cmp.Or(o.MaxConns, 65536)
	o.MaxIdle = cmp.Or(o.MaxIdle, 4*time.Second)
	o.Settle = cmp.Or(o.Settle, 100*time.Millisecond)
	if o.OnPanic == nil {
		o.OnPanic = func(any) {}
	}
	return o
}

// Relay is what the exchanges of one gateway share: the bounds, the buffers and
// the watch over clients' connections. It may be used by any number of
// goroutines at once.
type Relay struct {
	opts      Options
	readers   sync.Pool // *bufio.Reader of opts.ReadBuffer
	exchanges sync.Pool // *exchange
	watcher   *watcher
}

// New makes a Relay. Close it when no request is left.
func New(o Options) *Relay {
	r := &Relay{opts: o.withDefaults(), watcher: newWatcher(sweepInterval)}
	r.readers.New = func() any { return bufio.NewReaderSize(nil, r.opts.ReadBuffer) }
	r.exchanges.New = func() any { return &exchange{} }
	return r
}

// Close ends the watch over clients' connections.
func (r *Relay) Close() { r.watcher.close() }

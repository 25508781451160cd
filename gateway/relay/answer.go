package relay

import (
	"errors"
	"io"
	"time"

	"penstock/gateway/sse"
)

// Answer is what came back of one attempt. It is a value: what is exported of
// it stays true after Relay or Discard, one of which must be called once.
type Answer struct {
	// Status is the answer's HTTP status, or, InStream, that of the error which
	// a 200 stream began with.
	Status   int
	InStream bool
	// Streamed: server-sent events follow; the first one is here.
	Streamed bool
	// Complete: the whole body is here, in the response, and the connection is
	// already free.
	Complete bool
	// FirstAt is when the first event, or the headers of a whole body, came.
	FirstAt time.Time
	// RetryAfter is what the engine asked for; 0: nothing.
	RetryAfter time.Duration
	// Reused: the connection had served before. Resent: an idle connection was
	// closed, and the request was sent again on a new one.
	Reused, Resent bool
	// Usage is what a Complete answer reported.
	Usage sse.Usage

	x *exchange
}

// Sink is told of what becomes of an answer that is relayed.
type Sink interface {
	// ErrorEvent is the failure as the last event of a stream, in the
	// endpoint's own form, blank line included. It is asked for once at most,
	// and not when the client is gone.
	ErrorEvent(err *Error) []byte
	// Done is called exactly once, when the answer is over and the connection
	// to the engine has been given back: before the server reads from the
	// client again, and, for a Complete answer, before Relay returns. A panic
	// in it, but for a Complete answer, cuts the client's connection.
	Done(r Result)
}

// Result is how relaying an answer ended.
type Result struct {
	// Err is why it was cut short; nil: the client was given all of it.
	// KindClient, and KindCanceled for ErrClientGone, are the client's leaving.
	Err *Error
	// EngineError: the engine itself sent an error event after the first one.
	EngineError bool
	// Usage is what the engine reported, so far as it came.
	Usage sse.Usage
	// Events is how many events with data were passed on, end marker, usage and
	// error event not counted: of a stream that was cut short, about the tokens.
	Events int
	// Bytes of the body that were written to the client.
	Bytes int64
	// LastAt is when the last piece of it came.
	LastAt time.Time
}

// Relay puts the answer's body into the response that Do was given. The server
// writes it when the handler returns; that a client reads is the business of
// the connection's own write deadline. The sink is told of the end.
func (a Answer) Relay(sink Sink) {
	x := a.x
	x.sink = sink
	x.result.LastAt = a.FirstAt
	if a.Complete {
		x.result.Usage = a.Usage
		x.result.Bytes = int64(len(x.resp.Body()))
		x.tell()
		x.recycle()
		return
	}
	x.resp.SetBodyStream(x, x.bodySize())
}

// Discard gives up the answer. What is left of it is not read.
func (a Answer) Discard() {
	a.x.hangUp(time.Time{})
	a.x.recycle()
}

// bodySize is what fasthttp is told: the length where it is known, else -1.
func (x *exchange) bodySize() int {
	if x.whole.length >= 0 {
		return x.whole.length
	}
	return -1
}

// SupportsBodyWriteTo tells fasthttp to call WriteTo instead of Read.
func (x *exchange) SupportsBodyWriteTo() bool { return true }

// WriteTo relays the rest of the answer. Each Write is one chunk and one flush.
func (x *exchange) WriteTo(w io.Writer) (int64, error) {
	x.written = true
	err := x.relayBody(w)
	if err == nil {
		return x.result.Bytes, nil
	}
	x.result.Err = err
	if x.stream.on && !clientGone(err) && !x.stream.errored {
		// The client learns why; then the connection is cut short.
		_ = x.writeError(w, err)
	}
	// fasthttp closes the connection, without the last chunk, and does not log this error.
	return x.result.Bytes, io.ErrUnexpectedEOF
}

func (x *exchange) relayBody(w io.Writer) (err *Error) {
	defer x.contain(&err)
	if x.stream.on {
		return x.relayStream(w)
	}
	return x.relayWhole(w)
}

func (x *exchange) writeError(w io.Writer, cause *Error) (err *Error) {
	defer x.contain(&err)
	return x.write(w, x.sink.ErrorEvent(cause))
}

// contain makes a panic the error of its own exchange: the server writes
// answers and closes them outside of the handler, where a panic would end the
// process, or the exchange without anybody being told.
func (x *exchange) contain(err **Error) {
	if v := recover(); v != nil {
		x.panicked = true
		x.up.relay.opts.OnPanic(v)
		*err = x.newError(KindPanic, nil)
	}
}

// clientGone reports whether nobody is left to read an error.
func clientGone(e *Error) bool {
	return e.Kind == KindClient || (e.Kind == KindCanceled && errors.Is(e.Err, ErrClientGone))
}

// write writes to the client.
func (x *exchange) write(w io.Writer, p []byte) *Error {
	if len(p) == 0 {
		return nil
	}
	n, err := w.Write(p)
	x.result.Bytes += int64(n)
	if err != nil {
		if cause := x.call.Cause(); cause != nil {
			return x.newError(KindCanceled, cause)
		}
		return x.newError(KindClient, err)
	}
	return nil
}

// Read is there because fasthttp's body streams are readers; WriteTo is used.
func (x *exchange) Read([]byte) (int, error) { return 0, errors.ErrUnsupported }

// Close ends the exchange; the server calls it when the response is written, or
// cannot be.
func (x *exchange) Close() error {
	if !x.written && x.result.Err == nil {
		// The header could not be written, or must not have a body (HEAD).
		x.result.Err = x.newError(KindClient, io.ErrClosedPipe)
	}
	if err := x.finish(); err != nil && x.result.Err == nil {
		x.result.Err = err
	}
	if err := x.tellAtEnd(); err != nil {
		x.result.Err = err
	}
	if x.panicked { // what it holds is not to be trusted: it is not used again
		return io.ErrUnexpectedEOF
	}
	x.recycle()
	return nil
}

// finish is hangUp after the body has been written, or has not.
func (x *exchange) finish() (err *Error) {
	defer x.contain(&err)
	var clean time.Time
	if x.result.Err == nil {
		clean = time.Now()
	}
	x.hangUp(clean)
	return nil
}

func (x *exchange) tellAtEnd() (err *Error) {
	defer x.contain(&err)
	x.tell()
	return nil
}

// tell tells the sink, once.
func (x *exchange) tell() {
	if !x.done {
		x.done = true
		x.sink.Done(x.result)
	}
}

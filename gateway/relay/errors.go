package relay

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
)

// Kind is how an exchange failed.
type Kind uint8

// The kinds of failures.
const (
	// KindConnect: there is no connection. Nothing was sent.
	KindConnect Kind = iota + 1
	// KindTimeout: a deadline passed; Error.Limit says which.
	KindTimeout
	// KindDisconnected: the connection broke; Error.AfterBytes says when.
	KindDisconnected
	// KindTruncated: a stream ended cleanly, but without its end marker.
	KindTruncated
	// KindProtocol: what came is not HTTP, or not what its headers say.
	KindProtocol
	// KindTooLarge: one event, or a body that must be held whole, is over its bound.
	KindTooLarge
	// KindCanceled: Call.Cancel was called; the cause is wrapped.
	KindCanceled
	// KindClient: the client's connection failed while it was written to.
	KindClient
	// KindPanic: a bug of this program; see Options.OnPanic.
	KindPanic
)

var kindNames = [...]string{
	KindConnect: "no connection", KindTimeout: "timeout", KindDisconnected: "disconnected", KindTruncated: "ended without its end marker",
	KindProtocol: "protocol error", KindTooLarge: "too large", KindCanceled: "canceled", KindClient: "client write failed",
	KindPanic: "a panic in the gateway",
}

func (k Kind) String() string { return name(kindNames[:], int(k)) }

// Phase is where an exchange was when it failed.
type Phase uint8

// The phases of an exchange.
const (
	PhaseConnect Phase = iota + 1
	PhaseSend
	PhaseHeaders // waiting for, or reading, the headers
	PhaseFirst   // before the first event
	PhaseBody    // between events, or in a body
)

var phaseNames = [...]string{
	PhaseConnect: "connecting", PhaseSend: "sending the request", PhaseHeaders: "waiting for headers",
	PhaseFirst: "waiting for the first event", PhaseBody: "reading the body",
}

func (p Phase) String() string { return name(phaseNames[:], int(p)) }

// Limit is one of the deadlines.
type Limit uint8

// The deadlines, as in Timeouts.
const (
	LimitConnect Limit = iota + 1
	LimitFirst
	LimitIdle
	LimitRequest
)

var limitNames = [...]string{LimitConnect: "connect", LimitFirst: "first_token", LimitIdle: "idle", LimitRequest: "request"}

func (l Limit) String() string { return name(limitNames[:], int(l)) }

func name(names []string, i int) string {
	if i > 0 && i < len(names) {
		return names[i]
	}
	return fmt.Sprintf("unknown(%d)", i)
}

// Error is how an exchange failed. Its text is for the log: it may name the
// engine's address, but never holds bytes of a request or of an answer.
type Error struct {
	Kind  Kind
	Phase Phase
	// Limit is the deadline that passed, of a KindTimeout.
	Limit Limit
	// AfterBytes: a part of the answer had come.
	AfterBytes bool
	// Sent: a part of the request had been sent, so the replica may be working on it.
	Sent bool
	// Reused: the connection had served before.
	Reused bool
	// Err is the cause: a cancellation's, or the system's error.
	Err error
}

func (e *Error) Error() string {
	s := "upstream: " + e.Kind.String()
	if e.Kind == KindTimeout {
		s += " (" + e.Limit.String() + ")"
	}
	if e.Phase != 0 {
		s += " while " + e.Phase.String()
	}
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

func (e *Error) Unwrap() error { return e.Err }

// Died reports whether the replica failed while it had the request, so that
// the request itself may be what it failed on.
func (e *Error) Died() bool {
	switch e.Kind {
	case KindDisconnected, KindTruncated, KindProtocol:
		return e.Sent
	case KindCanceled:
		return e.Sent && errors.Is(e.Err, ErrUnhealthy)
	}
	return false
}

// Local reports whether there is no connection for want of something of this
// machine's own: descriptors, ports, memory. The engine has no part in it.
func (e *Error) Local() bool {
	for _, own := range [...]error{syscall.EMFILE, syscall.ENFILE, syscall.EADDRNOTAVAIL, syscall.ENOBUFS, syscall.ENOMEM} {
		if errors.Is(e.Err, own) {
			return true
		}
	}
	return false
}

// Causes of a cancellation that Decide knows. Others count as the gateway's own.
var (
	ErrClientGone = errors.New("the client went away")
	ErrUnhealthy  = errors.New("the replica was found unhealthy")
	ErrDraining   = errors.New("the gateway is shutting down")
)

// Reasons of a KindProtocol or KindTooLarge.
var (
	errBadHeaders   = errors.New("the headers are not HTTP/1.1")
	errHeadersLarge = errors.New("the headers exceed the read buffer")
	errInterim      = errors.New("more than 8 interim responses")
	errUpgrade      = errors.New("it switched protocols, unasked")
	errHTML         = errors.New("it is an HTML page")
	errNoStream     = errors.New("a stream was asked for, and it is none")
	errCompressed   = errors.New("it is a compressed stream, though none was accepted")
	errChunk        = errors.New("the chunked framing is broken")
	errEngineEnded  = errors.New("after its own error event")
	errEventLarge   = errors.New("one event exceeds max_event")
	errBodyLarge    = errors.New("the body exceeds the bound for a whole answer")
)

// isTimeout reports whether a socket's deadline has passed.
func isTimeout(err error) bool {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return true
	}
	ne, ok := errors.AsType[net.Error](err)
	return ok && ne.Timeout()
}

// isBroken reports whether err says that the peer closed or reset the connection.
func isBroken(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

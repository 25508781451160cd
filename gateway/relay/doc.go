// Package relay carries one request to an engine and its answer back to the
// client, and turns every way in which an engine, a connection or a client can
// fail into an error that somebody sees.
//
// Its parts, in reading order:
//
//   - relay.go: Relay, the buffers, the client watch and the defaults that all
//     exchanges of one gateway share
//   - upstream.go, conn.go: Upstream, the connections to one engine URL
//   - call.go: Call, the handle by which one attempt is cancelled
//   - request.go: Request, what is sent, written in segments
//   - exchange.go: Upstream.Do, from an idle connection to an Answer
//   - frame.go: the framing of an HTTP/1.1 body
//   - answer.go: Answer, what came; whole.go and stream.go: its two kinds, a
//     whole body and a stream of server-sent events
//   - dialect.go: how a stream of each endpoint ends
//   - errors.go: Error, how an exchange fails
//   - decide.go, budget.go: whether another replica is tried
//   - watch.go: Watch, the notice that a client has left; watch_epoll.go for
//     Linux, watch_peek.go for other Unixes, watch_none.go for the rest
//
// An answer is not started before its first event (of a stream) or its whole
// body (up to Options.MaxBuffered) has been read, so that a failure until then
// can still become a status, or be tried elsewhere. After that a failure is
// written as an event in the endpoint's own form, where it has one, and the
// client's connection is cut short: a truncated answer never looks complete.
package relay

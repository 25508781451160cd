// Package gateway is what clients and operators talk to: the fasthttp server
// of the OpenAI-compatible routes, and the operators' listener.
//
// The way of a request is five functions, each in the file of its name:
//
//   - handle (handle.go): finds the route; generate then identifies the key,
//     views the body in one pass and finds the model
//   - admit (admit.go): reserves the request's cost in all its limits
//   - choose (admit.go): waits in the model's queue for room, and binds the
//     request to the replica that the router picks, reserving it at once
//   - relayAttempt (attempt.go): sends it, reads as far as the answer can still
//     be taken back, and then delivers it, tries elsewhere, or fails
//   - settle (settle.go): limits, queue, metrics, log; once, on every path
//
// Around it, in reading order: server.go (what there is, start, reload, drain),
// snapshot.go (what a reload replaces, and keys), pools.go (models and their
// replicas, joined from engine and router), names.go (what clients may call
// them), routes.go, request.go (what a
// request holds), errors.go and mapping.go (the one error type and the one
// place that makes it), intake.go and conn.go (requests that cannot be read,
// connections), models.go, native.go, responses.go and scoring.go (routes of
// their own kind), sharing.go (placements shared with other gateways),
// adminroutes.go, admin.go, recent.go and gauges.go (what operators see),
// paths.go (the paths of both listeners, for docs/openapi.yaml).
//
// Subpackages: body (the request's bytes), sse (events), scoring (prompt
// log-probabilities) and relay (one exchange with an engine).
//
// A request loads the snapshot once. It belongs to the goroutine of its
// connection; only its cancellation comes from others.
package gateway

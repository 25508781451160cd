package router

// outbox collects this gateway's placements for the others.
type outbox struct{}

// remote is what other gateways have in flight on a replica.
type remote struct{}

// share notes a placement for the other gateways. Under pool.mu.
func (p *Pool) share(*Replica, *Request, int) {}

package router

import "time"

// outbox collects this gateway's placements for the others.
type outbox struct{}

// remote is what other gateways have in flight on a replica.
type remote struct{}

func (remote) queued(time.Time) int   { return 0 }
func (remote) waiting(time.Time) int  { return 0 }
func (remote) streams(time.Time) int  { return 0 }
func (remote) inFlight(time.Time) int { return 0 }
func (remote) kv() int                { return 0 }

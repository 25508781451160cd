package local

import (
	"encoding/json"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Fault is something that goes wrong on purpose. Kind is one of the Fault…
// constants; the other fields are read as the kind says.
type Fault struct {
	Kind string `json:"kind"`
	// Count is how many requests it hits; 0: all, until it is cleared or For is over.
	Count int `json:"count,omitempty"`
	// For is how long it lasts from when it is set; 0: until it is used up or cleared.
	For Duration `json:"for,omitempty"`
	// After is the number of events that a stream sends before FaultDie; a
	// request that is not streamed dies without an answer. Default 0: before the first.
	After int `json:"after,omitempty"`
	// RetryAfter is the header of Fault429 and Fault503 in seconds; 0: none.
	RetryAfter int `json:"retry_after,omitempty"`
	// Factor is how much slower FaultSlowPrefill is. Default 10.
	Factor float64 `json:"factor,omitempty"`

	until time.Time
	used  int
}

// The kinds of faults. All but FaultRefuse, FaultFreeze and FaultSlowPrefill
// hit the endpoints that generate only.
const (
	// FaultRefuse closes the listening socket and all connections: connections are refused.
	// Only For, Server.ClearFaults or a restart ends it.
	FaultRefuse = "refuse"
	// Fault503 and Fault429 answer with that status.
	Fault503 = "503"
	Fault429 = "429"
	// Fault503InStream answers a stream with 200, then an error event and [DONE];
	// what is not streamed gets 503.
	Fault503InStream = "503_stream"
	// FaultDie cuts the connection after After events.
	FaultDie = "die"
	// FaultFreeze hangs: with Count only that many requests, without all of the
	// engine, /health too; connections are still accepted.
	FaultFreeze = "freeze"
	// FaultSlowPrefill makes prefill Factor times slower. Count is ignored.
	FaultSlowPrefill = "slow_prefill"
	// FaultNoDone leaves out a stream's [DONE] and ends it cleanly.
	FaultNoDone = "no_done"
)

var faultKinds = []string{FaultRefuse, Fault503, Fault429, Fault503InStream, FaultDie, FaultFreeze, FaultSlowPrefill, FaultNoDone}

// Duration is a time.Duration that JSON writes as Go does: "1.5s".
type Duration time.Duration

// UnmarshalText reads "1.5s".
func (d *Duration) UnmarshalText(b []byte) error {
	v, err := time.ParseDuration(string(b))
	*d = Duration(v)
	return err
}

// MarshalText writes "1.5s".
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

func (f *Fault) check() error {
	switch {
	case !slices.Contains(faultKinds, f.Kind):
		return fmt.Errorf("fault %q: expected %s", f.Kind, strings.Join(faultKinds, ", "))
	case f.Count < 0 || f.For < 0 || f.After < 0 || f.RetryAfter < 0 || f.Factor < 0:
		return fmt.Errorf("fault %s: count, for, after, retry_after and factor must not be negative", f.Kind)
	}
	if f.Factor == 0 {
		f.Factor = 10
	}
	return nil
}

// ParseFault reads the form of the command line: KIND[:NAME=VALUE[,NAME=VALUE…]],
// as in "die:after=3,count=2" or "freeze:for=5s".
func ParseFault(s string) (Fault, error) {
	kind, rest, _ := strings.Cut(s, ":")
	f := Fault{Kind: kind}
	for part := range strings.SplitSeq(rest, ",") {
		if part == "" {
			continue
		}
		name, value, _ := strings.Cut(part, "=")
		var err error
		switch name {
		case "count":
			f.Count, err = strconv.Atoi(value)
		case "after":
			f.After, err = strconv.Atoi(value)
		case "retry_after":
			f.RetryAfter, err = strconv.Atoi(value)
		case "factor":
			f.Factor, err = strconv.ParseFloat(value, 64)
		case "for":
			err = f.For.UnmarshalText([]byte(value))
		default:
			err = fmt.Errorf("expected count, after, retry_after, factor or for")
		}
		if err != nil {
			return f, fmt.Errorf("fault %q: %s=%s: %w", s, name, value, err)
		}
	}
	return f, f.check()
}

// faults are those in force. thaw is closed when a freeze of everything ends.
type faults struct {
	mu     sync.Mutex
	list   []*Fault
	thaw   chan struct{}
	timers []*time.Timer
}

// SetFault puts a fault in force, beside those that are.
func (s *Server) SetFault(f Fault) error { return s.setFault(f, nil) }

// setFault spares the connection that asked for it.
func (s *Server) setFault(f Fault, by net.Conn) error {
	if err := f.check(); err != nil {
		return err
	}
	s.faults.mu.Lock()
	defer s.faults.mu.Unlock()
	if f.For > 0 {
		f.until = time.Now().Add(time.Duration(f.For))
		s.faults.timers = append(s.faults.timers, time.AfterFunc(time.Duration(f.For), s.expireFaults))
	}
	s.faults.list = append(s.faults.list, &f)
	s.applyFaults()
	if f.Kind == FaultRefuse {
		s.conns.closeAll(by)
		for _, x := range s.live.find("", true) {
			x.leave()
		}
	}
	return nil
}

// ClearFaults ends all faults.
func (s *Server) ClearFaults() {
	s.faults.mu.Lock()
	defer s.faults.mu.Unlock()
	for _, t := range s.faults.timers {
		t.Stop()
	}
	s.faults.list, s.faults.timers = nil, nil
	s.applyFaults()
}

func (s *Server) expireFaults() {
	s.faults.mu.Lock()
	defer s.faults.mu.Unlock()
	now := time.Now()
	s.faults.list = slices.DeleteFunc(s.faults.list, func(f *Fault) bool { return !f.until.IsZero() && !now.Before(f.until) })
	s.applyFaults()
}

// applyFaults makes the faults that concern the whole engine true. Called with the lock held.
func (s *Server) applyFaults() {
	slow, refuse, freeze := 1.0, false, false
	for _, f := range s.faults.list {
		switch f.Kind {
		case FaultSlowPrefill:
			slow = f.Factor
		case FaultRefuse:
			refuse = true
		case FaultFreeze:
			freeze = freeze || f.Count == 0
		}
	}
	for _, r := range s.ranks {
		r.SlowPrefill(slow)
		r.Freeze(freeze)
	}
	switch thaw := s.faults.thaw; {
	case freeze && thaw == nil:
		s.faults.thaw = make(chan struct{})
	case !freeze && thaw != nil:
		close(thaw)
		s.faults.thaw = nil
	}
	s.door.refuse(refuse)
}

// frozen returns a channel that is closed when the freeze ends, nil without one.
func (s *Server) frozen() <-chan struct{} {
	s.faults.mu.Lock()
	defer s.faults.mu.Unlock()
	return s.faults.thaw
}

// fault picks the one that hits the next request, if any does, and counts it.
func (s *Server) fault() *Fault {
	s.faults.mu.Lock()
	defer s.faults.mu.Unlock()
	for i, f := range s.faults.list {
		if f.Kind == FaultRefuse || f.Kind == FaultSlowPrefill || f.Kind == FaultFreeze && f.Count == 0 {
			continue
		}
		if f.used++; f.used == f.Count {
			s.faults.list = slices.Delete(s.faults.list, i, i+1)
		}
		return f
	}
	return nil
}

// faultAdmin is the admin call: GET lists, DELETE clears, POST adds one or a list.
func (s *Server) faultAdmin(method string, body []byte, by net.Conn) ([]byte, error) {
	switch method {
	case "DELETE":
		s.ClearFaults()
	case "POST":
		var list []Fault
		if body := strings.TrimSpace(string(body)); !strings.HasPrefix(body, "[") {
			list = make([]Fault, 1)
			if err := json.Unmarshal([]byte(body), &list[0]); err != nil {
				return nil, err
			}
		} else if err := json.Unmarshal([]byte(body), &list); err != nil {
			return nil, err
		}
		for _, f := range list {
			if err := s.setFault(f, by); err != nil {
				return nil, err
			}
		}
	}
	s.faults.mu.Lock()
	defer s.faults.mu.Unlock()
	if s.faults.list == nil {
		return []byte("[]"), nil
	}
	return json.Marshal(s.faults.list)
}

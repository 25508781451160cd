package local

import (
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/valyala/fasthttp"

	"penstock/engine/local/lm"
	"penstock/engine/local/sched"
)

// Server is one embedded engine behind one port. Its methods may be called
// from any goroutine.
type Server struct {
	opts    Options
	profile sched.Profile
	model   *lm.Model
	ranks   []*sched.Rank
	stats   []*rankStats // of each rank
	http    *fasthttp.Server
	routes  map[string]route
	started time.Time
	seed    uint64        // of this process, for what clients do not seed
	ids     atomic.Uint64 // requests so far
	nextUp  atomic.Uint64 // counts up through the ranks
	door    *door
	conns   *conns
	live    *live
	faults  faults
	buffers buffers
	closing chan struct{}
	closed  atomic.Bool
	stop    sync.Once
}

// New makes an engine; Serve opens it. Close it even if it never served.
func New(o Options) (*Server, error) {
	o, profile, err := o.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("local engine: %w", err)
	}
	s := &Server{
		opts: o, profile: profile, model: lm.Shared(), started: time.Now(), seed: uint64(time.Now().UnixNano()),
		door: newDoor(), conns: newConns(), live: newLive(), closing: make(chan struct{}),
		routes: routes(),
	}
	for range o.DP {
		st := newRankStats()
		s.stats = append(s.stats, st)
		s.ranks = append(s.ranks, sched.NewRank(sched.Config{Profile: profile, MaxQueued: o.MaxQueued, Observe: st.observe}))
	}
	s.http = &fasthttp.Server{
		Handler:               s.handle,
		Name:                  "penstock-local",
		MaxRequestBodySize:    1 << 30,
		ReadBufferSize:        16 << 10,
		IdleTimeout:           5 * time.Second, // as both engines do
		SecureErrorLogMessage: true,
		CloseOnShutdown:       true,
		ConnState:             s.conns.note,
		Logger:                discard{},
	}
	for _, f := range o.Faults {
		if err := s.SetFault(f); err != nil {
			s.Close()
			return nil, fmt.Errorf("local engine: %w", err)
		}
	}
	return s, nil
}

// discard is where fasthttp's own log goes: aborted connections are ordinary here.
type discard struct{}

func (discard) Printf(string, ...any) {}

// Serve answers on ln until Close or Shutdown, which make it return nil. It
// may be called once.
func (s *Server) Serve(ln net.Listener) error {
	s.door.open(ln)
	err := s.http.Serve(s.door)
	if s.closed.Load() {
		return nil
	}
	return err
}

// Shutdown stops accepting, lets running requests finish until ctx ends, then
// closes. It returns ctx's error if requests were cut off.
func (s *Server) Shutdown(ctx context.Context) error {
	s.closed.Store(true)
	err := s.http.ShutdownWithContext(ctx)
	s.Close()
	return err
}

// Close cuts everything off and returns when nothing of the engine runs any
// more. It may be called more than once.
func (s *Server) Close() {
	s.closed.Store(true)
	s.door.Close()
	s.ClearFaults()
	s.live.close()
	s.stop.Do(func() { close(s.closing) })
	gone, cancel := context.WithCancel(context.Background())
	cancel()
	_ = s.http.ShutdownWithContext(gone)
	s.conns.close()
	for _, r := range s.ranks {
		r.Close()
	}
	s.conns.wait()
}

// pick is the rank that a request goes to: the one asked for, else the next.
func (s *Server) pick(asked int) *sched.Rank {
	if asked < 0 {
		asked = int((s.nextUp.Add(1) - 1) % uint64(len(s.ranks)))
	}
	return s.ranks[asked]
}

// Flush empties the prefix caches of what no running request uses.
func (s *Server) Flush() {
	for _, r := range s.ranks {
		r.Flush(false)
	}
}

// Loads is what each rank has to do now and has done.
func (s *Server) Loads() []sched.Load {
	loads := make([]sched.Load, len(s.ranks))
	for i, r := range s.ranks {
		loads[i] = r.Load()
	}
	return loads
}

// Model is the language model behind the engine, for tests that check answers
// against it.
func (s *Server) Model() *lm.Model { return s.model }

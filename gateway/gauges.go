package gateway

import (
	"context"
	"time"

	"penstock/engine"
	"penstock/metrics"
)

// gauges reads what is true at the moment of a scrape.
func (s *Server) gauges() metrics.Gauges {
	now := time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	g := metrics.Gauges{Connections: int(s.http.GetOpenConnectionsCount()), Draining: s.draining.Load()}
	for _, pl := range s.pools.all() {
		m := metrics.ModelGauges{Model: pl.name, QueueDepth: pl.queue.Len(), QueueMax: pl.config.Load().Queue.MaxLength}
		for _, mb := range *pl.members.Load() {
			rg := mb.gauges(now)
			m.InFlight += rg.InFlight
			g.Replicas = append(g.Replicas, rg)
		}
		g.IndexBytes += pl.router.IndexBytes()
		g.Models = append(g.Models, m)
	}
	g.Keys, g.Limits = s.limitGauges(ctx, now)
	return g
}

func (m *member) gauges(now time.Time) metrics.ReplicaGauges {
	st, state := m.route.Stats(), m.engine.State()
	g := metrics.ReplicaGauges{
		Model: m.pool.name, Replica: m.engine.ID(), Up: m.engine.Usable(), State: state.String(), Breaker: breakerOf(state),
		InFlight: st.InFlight, QueuedTokens: st.QueuedTokens, IndexBlocks: st.IndexBlocks, KVTokens: st.KVTokens,
		MaxRunning: st.MaxRunning, ScoringTokens: st.ScoringTokens, PrefillRate: st.PrefillRate, LoadAge: -1, KVUsage: -1,
	}
	if l, ok := m.engine.Load(); ok {
		g.LoadAge, g.EngineRunning, g.EngineWaiting = now.Sub(l.At).Seconds(), l.Running, l.Waiting
		if l.UsedTokens >= 0 && st.KVTokens > 0 {
			g.KVUsage = float64(l.UsedTokens) / float64(st.KVTokens)
		}
	}
	return g
}

func breakerOf(s engine.State) string {
	switch s {
	case engine.StateOpen:
		return "open"
	case engine.StateHalfOpen:
		return "half_open"
	default:
		return "closed"
	}
}

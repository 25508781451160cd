package engine

import (
	"context"
	"sync/atomic"
)

// localKind is the embedded engine (penstock engine, or the replicas of a
// local: pool). It answers as SGLang or as vLLM does; which, is found out.
type localKind struct {
	as atomic.Pointer[adapter] // set by discover
}

func (l *localKind) discover(ctx context.Context, c *client) (*Facts, error) {
	var err error
	for _, as := range [...]adapter{&sglang{}, &vllm{}} {
		var f *Facts
		if f, err = as.discover(ctx, c); err == nil {
			l.as.Store(&as)
			f.Kind = KindLocal
			return f, nil
		}
		if !notThere(err) {
			return nil, err
		}
	}
	return nil, err
}

func (l *localKind) load(ctx context.Context, c *client) ([]rankLoad, error) {
	as := l.as.Load()
	if as == nil {
		return nil, errNoLoad
	}
	return (*as).load(ctx, c)
}

func (l *localKind) probe(ctx context.Context, c *client) error {
	as := l.as.Load()
	if as == nil {
		return (&openai{}).probe(ctx, c)
	}
	return (*as).probe(ctx, c)
}

func (l *localKind) rankCounters(ctx context.Context, c *client) (map[int]float64, error) {
	if as := l.as.Load(); as != nil {
		if counter, ok := (*as).(rankCounter); ok {
			return counter.rankCounters(ctx, c)
		}
	}
	return nil, errNoLoad
}

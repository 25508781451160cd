package bench

import (
	"context"
	"sync"
	"time"
)

// result is what became of one run of a phase on one endpoint.
type result struct {
	endpoint *Endpoint
	phase    *Phase
	samples  []*sample
	start    time.Time
	wall     time.Duration // from the first request to the last answer's end
}

// loader runs the scripts of a phase.
type loader struct {
	endpoint *Endpoint
	phase    *Phase
	done     func(*sample) // called for each request, from any goroutine

	mu      sync.Mutex
	samples []*sample
}

// run puts the phase's load on the endpoint.
func (l *loader) run(ctx context.Context, scripts []script) *result {
	start := time.Now()
	if l.phase.Rate > 0 || l.phase.Trace != "" && l.phase.Speed > 0 {
		l.open(ctx, scripts, start)
	} else {
		l.closed(ctx, scripts)
	}
	r := &result{endpoint: l.endpoint, phase: l.phase, samples: l.samples, start: start}
	for _, s := range l.samples {
		r.wall = max(r.wall, s.start.Add(s.latency).Sub(start))
	}
	return r
}

// closed keeps a number of scripts under way: when one ends the next begins.
func (l *loader) closed(ctx context.Context, scripts []script) {
	next := make(chan *script, len(scripts))
	for i := range scripts {
		next <- &scripts[i]
	}
	close(next)
	var all sync.WaitGroup
	for range min(max(1, l.phase.Batch), len(scripts)) {
		all.Go(func() {
			for sc := range next {
				l.script(ctx, sc, time.Time{})
			}
		})
	}
	all.Wait()
}

// open begins each script at its time, whether earlier ones have ended or not;
// a phase's Batch bounds them, and who waits for it is late.
func (l *loader) open(ctx context.Context, scripts []script, start time.Time) {
	var all sync.WaitGroup
	defer all.Wait()
	var slots chan struct{}
	if l.phase.Batch > 0 {
		slots = make(chan struct{}, l.phase.Batch)
	}
	for i := range scripts {
		at := start.Add(scripts[i].at)
		if !wait(ctx, time.Until(at)) {
			return
		}
		if slots != nil {
			select {
			case slots <- struct{}{}:
			case <-ctx.Done():
				return
			}
		}
		all.Go(func() {
			l.script(ctx, &scripts[i], at)
			if slots != nil {
				<-slots
			}
		})
	}
}

// wait sleeps; false when ctx ends first.
func wait(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// script sends the requests of a script, each after the answer to the last. A
// conversation ends with its first error, and what it had still to say is not
// counted.
func (l *loader) script(ctx context.Context, sc *script, at time.Time) {
	var said []message
	for i, a := range sc.turns {
		if ctx.Err() != nil {
			return
		}
		said = append(said, message{"user", a.text()})
		s := l.ask(ctx, said, a.output)
		if i == 0 && !at.IsZero() {
			s.late = max(0, s.start.Sub(at))
		}
		said = append(said, message{"assistant", s.text})
		s.text = nil
		l.mu.Lock()
		l.samples = append(l.samples, s)
		l.mu.Unlock()
		l.done(s)
		if s.kind != "" {
			return
		}
	}
}

func (l *loader) ask(ctx context.Context, said []message, output int) *sample {
	e := l.endpoint
	if l.phase.scoring {
		return e.score(ctx, said[0].text)
	}
	s := e.send(ctx, &wire{endpoint: e, messages: said, output: output, stream: e.stream, ignoreEOS: e.ignoreEOS})
	if s.kind == "" && !s.reported {
		words := 0
		for _, m := range said {
			for _, c := range m.text {
				if c == ' ' {
					words++
				}
			}
		}
		s.in = e.scale.tokensOf(words)
	}
	return s
}

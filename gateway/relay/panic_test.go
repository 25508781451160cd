package relay

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"penstock/e2e/faulty"
)

// panicky is a sink that panics where it is told to.
type panicky struct {
	Sink
	onEvent, onDone bool
}

func (p panicky) ErrorEvent(e *Error) []byte {
	if p.onEvent {
		panic("in ErrorEvent")
	}
	return p.Sink.ErrorEvent(e)
}

func (p panicky) Done(r Result) {
	p.Sink.Done(r)
	if p.onDone {
		panic("in Done")
	}
}

func TestAPanicWhileAnAnswerIsRelayedEndsThatAnswerAlone(t *testing.T) {
	good := func(c *faulty.Conn) {
		begin(c)
		c.Event(faulty.Chunk("more"))
		c.Event(faulty.Done)
		c.End()
	}
	large := func(c *faulty.Conn) {
		// One write: the first read has the beginning of the body too.
		c.Raw("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 200000\r\n\r\n" + strings.Repeat("x", 100_000))
		c.Pause(20 * time.Millisecond)
		c.Raw(strings.Repeat("x", 100_000))
	}
	for _, c := range []struct {
		name   string
		script faulty.Script
		sink   panicky
		bytes  bool // OnBytes panics, once the client has been sent something
		event  bool // the client is sent an error event
		kind   Kind // of the result
	}{
		{"stream, in a read", good, panicky{}, true, true, KindPanic},
		{"stream, in the sink's error event", func(c *faulty.Conn) { begin(c); c.Reset() }, panicky{onEvent: true}, false, false, KindDisconnected},
		{"stream, in the sink's end", good, panicky{onDone: true}, false, false, 0},
		{"whole, in a read", large, panicky{}, true, false, KindPanic},
		{"whole, in the sink's end", large, panicky{onDone: true}, false, false, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			var panics atomic.Int32
			s := faulty.Start(t, faulty.InOrder(c.script, faulty.Good().Stream))
			g := newGate(t, s.URL, Options{MaxBuffered: 50_000, OnPanic: func(any) { panics.Add(1) }})
			var armed, second atomic.Bool
			g.onsink = func(s Sink) Sink {
				if second.Swap(true) {
					return s
				}
				armed.Store(c.bytes)
				p := c.sink
				p.Sink = s
				return p
			}
			g.oncall = func(call *Call) {
				call.OnBytes = func(time.Time) {
					if armed.Swap(false) {
						panic("in OnBytes")
					}
				}
			}
			cl := dial(t, g.addr)
			cl.send(chatBody("none", strings.HasPrefix(c.name, "stream")))
			r := cl.read()
			if r.status != 200 || r.clean && !strings.HasPrefix(c.name, "whole, in the sink") {
				t.Errorf("the client got status %d, clean end %v, want 200 and a cut connection", r.status, r.clean)
			}
			if got := strings.Contains(r.body, "internal_error"); got != c.event {
				t.Errorf("error event in %q: %v, want %v", r.body[max(0, len(r.body)-100):], got, c.event)
			}
			if _, err := cl.br.ReadByte(); err == nil {
				t.Error("the connection goes on")
			}
			o := g.outcome()
			if got := kindOf(o.result.Err); got != c.kind {
				t.Errorf("result %v, want kind %v", o.result.Err, c.kind)
			}
			if n := panics.Load(); n != 1 {
				t.Errorf("OnPanic was told %d times, want once", n)
			}
			if r := dialAndRead(t, g); !r.clean || !strings.HasSuffix(r.body, doneEvent) {
				t.Errorf("the next request got %+v, want a whole stream", r)
			}
			g.outcome()
			atRest(t, g)
		})
	}
}

func begin(c *faulty.Conn) {
	c.Stream()
	c.Event(faulty.Chunk("Hello"))
	c.Pause(20 * time.Millisecond)
}

func dialAndRead(t *testing.T, g *gate) reply {
	t.Helper()
	c := dial(t, g.addr)
	c.send(chatBody("none", true))
	return c.read()
}

func kindOf(e *Error) Kind {
	if e == nil {
		return 0
	}
	return e.Kind
}

func TestOnBytesIsToldOfEachReadAndNotOfEachEvent(t *testing.T) {
	var told atomic.Int32
	s := faulty.Start(t, faulty.Always(func(c *faulty.Conn) {
		c.Stream()
		for range 3 {
			c.Chunk(strings.Repeat("data: {}\n\n", 50))
			c.Pause(30 * time.Millisecond)
		}
		c.Event(faulty.Done)
		c.End()
	}))
	call := newCall()
	call.OnBytes = func(time.Time) { told.Add(1) }
	d, err := do(newUpstream(t, s.URL, Options{}), call, post("{}"))
	if err != nil || d.result.Err != nil || d.result.Events != 150 {
		t.Fatalf("error %v, result %+v", err, d.result)
	}
	if n := told.Load(); n < 4 || n > 12 {
		t.Errorf("told %d times of 150 events that came in 3 bursts and an end, want 4 to 12", n)
	}
}

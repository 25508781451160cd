package relay

import (
	"bytes"
	"cmp"
	"errors"
	"io"
	"time"

	"penstock/gateway/body/scan"
	"penstock/gateway/sse"
)

// stream is an answer of server-sent events.
//
// buf holds whole events that are ready to be written, up to ready, and then
// the beginning of the next one. All that one read brings is written at once.
type stream struct {
	on      bool
	buf     []byte
	ready   int
	find    sse.Finder
	scratch []byte      // for events whose data has several lines
	answers []sse.Usage // so far, of each answer of a batch

	first   bool         // an event with data has been seen
	failed  *failedEvent // it is the engine's error
	ended   bool         // the end marker has been seen
	closed  bool         // [DONE] has been seen: nothing after it is passed on
	errored bool         // the engine's error event has been seen, after the first one
}

// failedEvent is an error that an engine sent as the first event of a 200 stream.
type failedEvent struct {
	status  int
	payload []byte // lies in stream.buf, or in scratch
}

// reset is an empty stream with s's buffers, unless they grew large.
func (s *stream) reset() stream {
	buf, scratch := s.buf[:0], s.scratch[:0]
	if cap(buf) > keepBuffer {
		buf = nil
	}
	if cap(scratch) > keepBuffer {
		scratch = nil
	}
	return stream{buf: buf, scratch: scratch}
}

// startStream reads to the first event with data. One that is an error makes
// the answer a whole one with that error's status.
func (x *exchange) startStream(a Answer) (Answer, error) {
	x.phase = PhaseFirst
	x.stream.on = true
	x.result.Usage = sse.NoUsage()
	x.whole.length = -1
	for !x.stream.first && !x.stream.ended {
		end, err := x.more()
		if err != nil {
			return a, err
		}
		if end && !x.stream.ended {
			return a, x.newError(KindTruncated, nil)
		}
	}
	a.FirstAt = x.heard
	x.idle = a.FirstAt
	a.Streamed = true
	x.phase = PhaseBody
	if x.stream.failed != nil {
		return x.statusFromEvent(a), nil
	}
	return a, nil
}

// statusFromEvent makes the error that a stream began with a whole answer.
func (x *exchange) statusFromEvent(a Answer) Answer {
	f := x.stream.failed
	a.Status, a.InStream, a.Streamed, a.Complete, a.Usage = f.status, true, false, true, sse.NoUsage()
	x.stream.failed, x.stream.on = nil, false
	x.body = append(x.body[:0], f.payload...)
	x.resp.SetStatusCode(a.Status)
	x.resp.Header.SetContentType("application/json")
	x.handOver()
	x.hangUp(time.Time{})
	return a
}

// more waits for bytes and takes the events in them. It reports the end of the body.
func (x *exchange) more() (end bool, err error) {
	if x.br.Buffered() == 0 {
		if err := x.fill(); err != nil {
			if errors.Is(err, io.EOF) && x.frame.kind == frameClose && x.call.Cause() == nil {
				x.frame.ended, x.keep = true, false
				return true, x.takeEvents(true)
			}
			return false, err
		}
	}
	for err == nil && x.br.Buffered() > 0 && !x.frame.ended {
		var data []byte
		data, err = x.take()
		x.stream.buf = append(x.stream.buf, data...)
	}
	return x.frame.ended, cmp.Or(x.takeEvents(x.frame.ended), err)
}

// takeEvents finds the whole events in the buffer.
func (x *exchange) takeEvents(atEnd bool) error {
	s := &x.stream
	for !s.closed {
		n, ok := s.find.Find(s.buf[s.ready:])
		if ok && n <= x.up.relay.opts.MaxEvent {
			x.keepEvent(s.ready + n)
			continue
		}
		if len(s.buf)-s.ready > x.up.relay.opts.MaxEvent {
			return x.newError(KindTooLarge, errEventLarge)
		}
		break
	}
	if atEnd && !s.closed {
		x.lastEvent()
		s.ended = s.ended || x.req.Dialect == DialectNone
	}
	if s.closed {
		s.buf = s.buf[:s.ready]
	}
	return nil
}

// lastEvent takes what stands at the end of the body without the blank line
// that makes it an event. Half an event is dropped; an end marker is completed,
// since clients lose it otherwise.
func (x *exchange) lastEvent() {
	s := &x.stream
	rest := s.buf[s.ready:]
	if sse.Blank(rest) {
		s.ready = len(s.buf)
		return
	}
	k := x.look(rest)
	if !k.done && !(k.end && scan.Valid(k.text) == nil) && (x.req.Dialect != DialectNone || !k.data) {
		s.buf = s.buf[:s.ready]
		return
	}
	s.buf = append(s.buf, "\n\n"...)
	x.keepEvent(len(s.buf))
}

// addUsage takes over what an event says of the tokens used: of all of the
// request, or, in a /generate batch, of the answer that it belongs to.
func (x *exchange) addUsage(p *sse.Payload) {
	n := x.req.Answers
	if n <= 1 || p.Index < 0 || p.Index >= n {
		x.result.Usage.Merge(p.Usage)
		return
	}
	s := &x.stream
	for len(s.answers) <= p.Index {
		s.answers = append(s.answers, sse.NoUsage())
	}
	u := p.Usage.OfChoice(p.Index, x.req.Choices)
	x.result.Usage.Replace(s.answers[p.Index], u)
	s.answers[p.Index] = u
}

// keepEvent looks at the event that ends at end, and makes it ready or takes it out.
func (x *exchange) keepEvent(end int) {
	s := &x.stream
	k := x.look(s.buf[s.ready:end])
	if k.usage {
		x.addUsage(&k.payload)
	}
	switch {
	case !k.data:
	case k.done:
		s.ended = s.ended || x.req.Dialect == DialectDone || x.req.Dialect == DialectNone
		s.closed = true
	case !s.first && k.payload.Error != nil:
		s.failed = &failedEvent{errorStatus(&k.payload), bytes.Clone(k.text)} // scratch serves the next event, too
	case k.usageOnly && x.req.DropUsage:
		s.buf = append(s.buf[:s.ready], s.buf[end:]...)
		s.first = true
		return
	default:
		s.ended = s.ended || k.end
		if k.payload.Error != nil {
			s.errored, x.result.EngineError = true, true
		} else {
			x.result.Events++
		}
	}
	s.first = s.first || k.data
	s.ready = end
}

// relayStream passes on events until the stream's end.
func (x *exchange) relayStream(w io.Writer) *Error {
	s := &x.stream
	var err error
	for {
		// What came before a failure is passed on first.
		if werr := x.writeReady(w); werr != nil {
			return werr
		}
		if err != nil || x.frame.ended || s.closed {
			break
		}
		err = x.awaitEvents()
	}
	switch {
	case s.ended: // complete, whatever came after
		x.settle(err)
		return nil
	case err != nil:
		return x.fail(err)
	case s.errored:
		return x.newError(KindTruncated, errEngineEnded)
	}
	return x.newError(KindTruncated, nil)
}

// writeReady writes the events that are ready, and notes since when the engine
// is waited for: a slow client's time is not the engine's silence, and half an
// event does not end it.
func (x *exchange) writeReady(w io.Writer) *Error {
	s := &x.stream
	if s.ready == 0 {
		return nil
	}
	if x.req.Pace != nil && x.result.Bytes > 0 {
		x.req.Pace.InterToken(x.heard.Sub(x.result.LastAt))
	}
	x.result.LastAt = x.heard
	if err := x.write(w, s.buf[:s.ready]); err != nil {
		return err
	}
	s.buf = s.buf[:copy(s.buf, s.buf[s.ready:])]
	s.ready = 0
	x.idle = time.Now()
	return nil
}

// awaitEvents waits for more, within the idle deadline, or, after the end
// marker, for the end of the body alone.
func (x *exchange) awaitEvents() error {
	d := x.call.Timeouts.Idle
	if x.stream.ended {
		d = x.up.relay.opts.Settle
	}
	x.limit = x.call.total().sooner(deadline(x.idle, d), LimitIdle)
	if err := x.conn.armRead(x.limit.at, x.idle); err != nil {
		return err
	}
	_, err := x.more()
	return err
}

// settle reads what follows the end marker, which is dropped, up to the end of
// the body, so that the connection can serve again. It does not wait for long.
func (x *exchange) settle(err error) {
	if err != nil || x.frame.ended || x.frame.kind == frameClose {
		return
	}
	x.limit = until{time.Now().Add(x.up.relay.opts.Settle), LimitIdle}
	if x.br.Buffered() == 0 && x.conn.rearmRead(x.limit.at) != nil {
		return
	}
	for dropped := 0; !x.frame.ended && dropped < keepBuffer; {
		if x.fill() != nil {
			return
		}
		data, err := x.take()
		if err != nil {
			return
		}
		dropped += len(data)
	}
}

package relay

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"time"

	"penstock/gateway/sse"
)

// whole is an answer that is not a stream of events: JSON, audio, an error page.
type whole struct {
	length int  // Content-Length; -1: not known
	look   bool // usage is looked for: a success, not compressed
	json   bool // and it says that it is JSON
	tail   []byte
}

// tailKept is how much of the end of a body that is streamed is kept to find
// usage in; engines write it last.
const tailKept = 4 << 10

// startWhole reads the body to its end, if it is not too long for that.
func (x *exchange) startWhole(a Answer, length int) (Answer, error) {
	x.phase = PhaseBody
	x.whole.length = max(length, -1)
	x.whole.look = a.Status < 300 && plainEncoding(&x.resp.Header)
	x.whole.json = x.whole.look && hasType(&x.resp.Header, "application/json")
	bound := x.up.relay.opts.MaxBuffered
	if x.req.Whole {
		bound = x.up.relay.opts.MaxWhole
	}
	a.Usage = sse.NoUsage()
	var err error
	if length <= bound {
		a.Complete, err = x.readWhole(length, bound)
	}
	switch {
	case err != nil:
		return a, err
	case a.Complete && x.cutShort(x.body):
		return a, x.newError(KindTruncated, nil)
	case a.Complete:
		if x.whole.look {
			a.Usage, _ = sse.BodyUsage(x.body, x.req.Choices)
		}
		x.handOver()
		x.hangUp(x.heard)
	case x.req.Whole:
		return a, x.newError(KindTooLarge, errBodyLarge)
	}
	return a, nil
}

// handOver makes what was read the response's body, without copying. A large
// one is not left to the connection, which would keep its buffer while idle.
func (x *exchange) handOver() {
	if len(x.body) > keepBuffer {
		x.resp.SetBodyRaw(x.body)
		x.body = nil
		return
	}
	x.body = x.resp.SwapBody(x.body)[:0]
}

// readWhole reads the body into x.body. It reports false when there is more
// than bound.
func (x *exchange) readWhole(length, bound int) (complete bool, err error) {
	x.body = slices.Grow(x.body[:0], max(length, 0))
	for {
		for x.br.Buffered() > 0 && !x.frame.ended {
			data, err := x.take()
			if err != nil {
				return false, err
			}
			x.body = append(x.body, data...)
		}
		switch {
		case x.frame.ended:
			return true, nil
		case len(x.body) > bound:
			return false, nil
		}
		if x.frame.kind == frameLength && x.frame.left >= int64(x.br.Size()) {
			if err := x.readDirect(); err != nil {
				return false, err
			}
			continue
		}
		end, err := x.fillBody(len(x.body) > 0, x.heard)
		if end || err != nil {
			return end, err
		}
	}
}

// readDirect reads once into x.body, which has room for all of the body, past
// the reader's buffer, which is empty.
func (x *exchange) readDirect() error {
	if err := x.armBody(len(x.body) > 0, x.heard); err != nil {
		return err
	}
	n := len(x.body)
	for {
		m, err := x.conn.Read(x.body[n : n+int(x.frame.left)])
		if m > 0 {
			x.hear()
			x.body = x.body[:n+m]
			x.frame.left -= int64(m)
			x.frame.ended = x.frame.left == 0
			return nil
		}
		if err = x.early(err); err != nil {
			return err
		}
	}
}

// take is the next piece of the body in what is buffered. It is valid until the
// buffer is filled again.
func (x *exchange) take() ([]byte, error) {
	data, used, err := x.frame.next(x.buffered())
	if err != nil {
		return nil, x.protocol(err)
	}
	_, _ = x.br.Discard(used)
	return data, nil
}

// fillBody waits for more of a body, which is waited for since then. It reports
// the end of one that ends with its connection.
func (x *exchange) fillBody(begun bool, since time.Time) (end bool, err error) {
	if err := x.armBody(begun, since); err != nil {
		return false, err
	}
	err = x.fill()
	if errors.Is(err, io.EOF) {
		if x.frame.kind == frameClose && x.call.Cause() == nil {
			x.frame.ended, x.keep = true, false
			return true, nil
		}
		err = io.ErrUnexpectedEOF
	}
	return false, err
}

// armBody sets the deadline for the next piece of a body, which is waited for
// since then. The idle deadline applies once the body has begun.
func (x *exchange) armBody(begun bool, since time.Time) error {
	x.limit = x.call.total()
	if begun {
		x.limit = x.limit.sooner(deadline(since, x.call.Timeouts.Idle), LimitIdle)
	}
	return x.conn.armRead(x.limit.at, since)
}

// relayWhole passes on what has been read and then the rest, as it comes.
func (x *exchange) relayWhole(w io.Writer) *Error {
	err := x.passOn(w, x.body)
	for err == nil && !x.frame.ended {
		if x.br.Buffered() == 0 {
			if _, ferr := x.fillBody(true, x.idle); ferr != nil {
				return x.fail(ferr)
			}
			continue
		}
		data, terr := x.take()
		if terr != nil {
			return x.fail(terr)
		}
		err = x.passOn(w, data)
	}
	if err == nil && x.cutShort(x.whole.tail) {
		return x.newError(KindTruncated, nil)
	}
	if err == nil && x.whole.look {
		x.result.Usage, _ = sse.BodyUsage(x.whole.tail, x.req.Choices)
	}
	return err
}

// passOn writes one piece of a body and keeps its end. A slow client's time is
// not the engine's silence.
func (x *exchange) passOn(w io.Writer, p []byte) *Error {
	if len(p) == 0 {
		return nil
	}
	x.result.LastAt = x.heard
	if x.whole.look {
		x.whole.keep(p)
	}
	err := x.write(w, p)
	x.idle = time.Now()
	return err
}

// cutShort reports whether a body of JSON of which the end of the connection is
// the only end, as in HTTP/1.0, is not one whole value.
func (x *exchange) cutShort(end []byte) bool {
	if !x.whole.json || x.frame.kind != frameClose {
		return false
	}
	end = bytes.TrimRight(end, " \t\r\n")
	return len(end) == 0 || end[len(end)-1] != '}' && end[len(end)-1] != ']'
}

func (b *whole) keep(p []byte) {
	if len(p) >= tailKept {
		b.tail = append(b.tail[:0], p[len(p)-tailKept:]...)
		return
	}
	if over := len(b.tail) + len(p) - tailKept; over > 0 {
		b.tail = append(b.tail[:0], b.tail[over:]...)
	}
	b.tail = append(b.tail, p...)
}

package relay

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/valyala/fasthttp/fasthttputil"

	"penstock/e2e/faulty"
)

// memory is an engine on an in-memory listener: it answers every request with
// the same bytes.
func memory(b testing.TB, answer string) *Upstream {
	ln := fasthttputil.NewInmemoryListener()
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { answerAll(c, []byte(answer)) })
		}
	})
	r := New(Options{})
	up, err := r.NewUpstream(UpstreamOptions{
		URL:  "http://engine",
		Dial: func(context.Context, string, string) (net.Conn, error) { return ln.Dial() },
	})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { up.Close(); r.Close(); _ = ln.Close(); wg.Wait() })
	return up
}

// answerAll answers requests of one body length, without allocating.
func answerAll(c net.Conn, answer []byte) {
	defer c.Close()
	br := bufio.NewReader(c)
	for {
		n := 0
		for {
			line, err := br.ReadSlice('\n')
			if err != nil {
				return
			}
			if len(line) == 2 {
				break
			}
			if v, ok := bytes.CutPrefix(line, []byte("Content-Length: ")); ok {
				for _, d := range bytes.TrimSpace(v) {
					n = n*10 + int(d-'0')
				}
			}
		}
		if _, err := br.Discard(n); err != nil {
			return
		}
		if _, err := c.Write(answer); err != nil {
			return
		}
	}
}

type discardSink struct{ failed *Error }

func (s *discardSink) ErrorEvent(*Error) []byte { return nil }
func (s *discardSink) Done(r Result)            { s.failed = r.Err }

func benchExchange(b *testing.B, answer, body string) {
	up := memory(b, answer)
	req := post(body)
	var d direct
	s := &discardSink{}
	b.ReportAllocs()
	for b.Loop() {
		call := &Call{Start: time.Now(), Timeouts: Timeouts{Connect: 2 * time.Second, First: time.Minute, Idle: time.Minute, Request: time.Hour}}
		a, err := up.Do(call, req, &d.resp)
		if err != nil {
			b.Fatal(err)
		}
		a.Relay(s)
		if err := d.resp.BodyWriteTo(io.Discard); err != nil || s.failed != nil {
			b.Fatal(err, s.failed)
		}
		d.resp.Reset()
	}
}

// wholeAnswer is an engine's JSON answer of about n bytes.
func wholeAnswer(n int) string {
	body := bigJSON(n)
	return fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nServer: uvicorn\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
}

// streamAnswer is an engine's stream of that many events.
func streamAnswer(events int) string {
	var s strings.Builder
	s.WriteString("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nServer: uvicorn\r\nTransfer-Encoding: chunked\r\n\r\n")
	for i := range events {
		ev := event(faulty.Chunk(fmt.Sprint(i)))
		fmt.Fprintf(&s, "%x\r\n%s\r\n", len(ev), ev)
	}
	fmt.Fprintf(&s, "%x\r\n%s\r\n0\r\n\r\n", len(doneEvent), doneEvent)
	return s.String()
}

// One exchange, from the request to the end of its answer, without sockets.
func BenchmarkExchange(b *testing.B) {
	b.Run("whole 1KB", func(b *testing.B) { benchExchange(b, wholeAnswer(900), "{}") })
	b.Run("whole 100KB", func(b *testing.B) { benchExchange(b, wholeAnswer(100_000), "{}") })
	b.Run("body 400KB", func(b *testing.B) { benchExchange(b, wholeAnswer(900), strings.Repeat("x", 400_000)) })
	b.Run("stream of 1", func(b *testing.B) { benchExchange(b, streamAnswer(1), `{"stream":true}`) })
	b.Run("stream of 128", func(b *testing.B) { benchExchange(b, streamAnswer(128), `{"stream":true}`) })
}

// One event of a stream, from the engine's bytes to the client's.
func BenchmarkEvent(b *testing.B) {
	x, size := endlessStream()
	b.ReportAllocs()
	b.SetBytes(int64(size))
	for b.Loop() {
		if err := x.passOne(); err != nil {
			b.Fatal(err)
		}
	}
	if x.result.Events == 0 {
		b.Fatal("no event was relayed")
	}
}

// endlessStream is an exchange in mid-stream whose engine sends one event a
// read, for ever.
func endlessStream() (x *exchange, size int) {
	ev := event(faulty.Chunk("token"))
	chunk := fmt.Appendf(nil, "%x\r\n%s\r\n", len(ev), ev)
	src := &repeat{p: chunk}
	var heard atomic.Int64
	x = &exchange{
		up: &Upstream{relay: &Relay{opts: Options{}.withDefaults()}}, req: &Request{},
		call: &Call{Timeouts: Timeouts{Idle: time.Minute}, OnBytes: func(time.Time) { heard.Add(1) }},
		conn: newConn(src), br: bufio.NewReaderSize(src, len(chunk)),
	}
	x.frame.start(-1)
	x.stream.on, x.stream.first = true, true
	return x, len(ev)
}

func (x *exchange) passOne() error {
	if _, err := x.more(); err != nil {
		return err
	}
	if err := x.writeReady(io.Discard); err != nil {
		return err
	}
	return nil
}

// repeat reads as the same bytes again and again.
type repeat struct {
	net.Conn
	p []byte
}

func (r *repeat) Read(b []byte) (int, error)      { return copy(b, r.p), nil }
func (r *repeat) SetReadDeadline(time.Time) error { return nil }

func TestOneEventIsRelayedWithoutAllocating(t *testing.T) {
	x, _ := endlessStream()
	if n := testing.AllocsPerRun(1000, func() {
		if err := x.passOne(); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations per event, want 0", n)
	}
}

func TestOneExchangeAllocatesLittle(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	for name, answer := range map[string]string{"whole": wholeAnswer(900), "stream": streamAnswer(128)} {
		up := memory(t, answer)
		req, sink, d := post("{}"), &discardSink{}, &direct{}
		req.Streamed = name == "stream"
		n := testing.AllocsPerRun(200, func() {
			a, err := up.Do(newCall(), req, &d.resp)
			if err != nil {
				t.Fatal(err)
			}
			a.Relay(sink)
			if err := d.resp.BodyWriteTo(io.Discard); err != nil {
				t.Fatal(err)
			}
			d.resp.Reset()
		})
		t.Logf("%s: %v allocations", name, n)
		if n > 4 {
			t.Errorf("%s: %v allocations an exchange, want at most 4", name, n)
		}
	}
}

package relay

import (
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"penstock/e2e/faulty"
	"penstock/gateway/sse"
)

// streamed is a script that sends those pieces of a stream as chunks, some time
// apart, and ends it.
func streamed(apart time.Duration, pieces ...string) faulty.Script {
	return func(c *faulty.Conn) {
		c.Stream()
		for i, p := range pieces {
			if i > 0 && apart > 0 && c.Pause(apart) {
				return
			}
			c.Chunk(p)
		}
		c.End()
	}
}

// relayed is what becomes of such a stream.
func relayed(t *testing.T, o Options, req Request, script faulty.Script) (*direct, error) {
	t.Helper()
	s := faulty.Start(t, faulty.Always(script))
	up := newUpstream(t, s.URL, o)
	req.Path, req.Streamed, req.Body = "/v1/x", true, [][]byte{[]byte("{}")}
	d, err := do(up, newCall(), &req)
	open, idle := up.Conns()
	if open != idle {
		t.Errorf("%d connections in use after the end", open-idle)
	}
	return d, err
}

func TestEventsPassAsTheyAreWhateverTheirLineEnds(t *testing.T) {
	for name, stream := range map[string]string{
		"LF":                  "data: {\"a\":1}\n\ndata: {\"a\":2}\n\ndata: [DONE]\n\n",
		"CRLF":                "data: {\"a\":1}\r\n\r\ndata: [DONE]\r\n\r\n",
		"CR":                  "data: {\"a\":1}\r\rdata: [DONE]\r\r",
		"comments":            ": hello\n\ndata: {}\n\n: ping\n\ndata: [DONE]\n\n",
		"several data lines":  "event: x\ndata: {\ndata: }\n\ndata: [DONE]\n\n",
		"no space":            "data:{}\n\ndata:[DONE]\n\n",
		"blank lines between": "\n\ndata: {}\n\n\n\ndata: [DONE]\n\n\n",
	} {
		for n := 1; n <= len(stream); n += 3 {
			var pieces []string
			for rest := stream; rest != ""; rest = rest[min(n, len(rest)):] {
				pieces = append(pieces, rest[:min(n, len(rest))])
			}
			d, err := relayed(t, Options{}, Request{}, streamed(0, pieces...))
			if got := d.body.String(); err != nil || strings.TrimRight(got, "\n") != strings.TrimRight(stream, "\n") || d.result.Err != nil {
				t.Fatalf("%s in pieces of %d: error %v, result %+v, got %q, want %q", name, n, err, d.result, got, stream)
			}
		}
	}
}

func TestAnErrorEventIsNoOutput(t *testing.T) {
	d, err := relayed(t, Options{}, Request{Dialect: DialectDone}, streamed(0,
		"data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n", "data: {\"error\":{\"message\":\"no memory\",\"code\":500}}\n\n", doneEvent))
	if err != nil || !d.result.EngineError || d.result.Events != 1 {
		t.Errorf("got %+v, %v; want an engine's error after one event", d.result, err)
	}
}

func TestReadyEventsAreWrittenAtOnce(t *testing.T) {
	var all strings.Builder
	for i := range 100 {
		all.WriteString(event(faulty.Chunk(fmt.Sprint(i))))
	}
	s := faulty.Start(t, faulty.Always(streamed(0, all.String()[:9000], all.String()[9000:]+doneEvent)))
	up := newUpstream(t, s.URL, Options{ReadBuffer: 64 << 10})
	d := &direct{}
	a, err := up.Do(newCall(), post(`{"stream":true}`), &d.resp)
	if err != nil {
		t.Fatal(err)
	}
	a.Relay(d)
	w := &countingWriter{}
	if err := d.resp.BodyWriteTo(w); err != nil {
		t.Fatal(err)
	}
	if d.result.Events != 100 || w.writes > 4 {
		t.Errorf("%d events in %d writes, want 100 in at most 4", d.result.Events, w.writes)
	}
}

type countingWriter struct{ writes int }

func (w *countingWriter) Write(p []byte) (int, error) {
	w.writes++
	return len(p), nil
}

func TestInjectedUsageEventIsTakenOut(t *testing.T) {
	last := strings.Replace(faulty.UsageChunk, `"choices":[]`, `"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]`, 1)
	for _, c := range []struct {
		name   string
		events []string
		drop   bool
		want   []string
	}{
		{"alone", []string{faulty.Chunk("a"), faulty.UsageChunk, "[DONE]"}, true, []string{faulty.Chunk("a"), "[DONE]"}},
		{"asked for by the client", []string{faulty.Chunk("a"), faulty.UsageChunk, "[DONE]"}, false, []string{faulty.Chunk("a"), faulty.UsageChunk, "[DONE]"}},
		{"with choices", []string{faulty.Chunk("a"), last, "[DONE]"}, true, []string{faulty.Chunk("a"), last, "[DONE]"}},
		{"first", []string{faulty.UsageChunk, faulty.Chunk("a"), "[DONE]"}, true, []string{faulty.Chunk("a"), "[DONE]"}},
		{"nothing else", []string{faulty.UsageChunk, "[DONE]"}, true, []string{"[DONE]"}},
	} {
		for _, apart := range []time.Duration{0, 2 * time.Millisecond} {
			var in, want []string
			for _, e := range c.events {
				in = append(in, event(e))
			}
			for _, e := range c.want {
				want = append(want, event(e))
			}
			d, err := relayed(t, Options{}, Request{DropUsage: c.drop}, streamed(apart, in...))
			if got := d.body.String(); err != nil || got != strings.Join(want, "") || d.result.Err != nil {
				t.Errorf("%s: error %v, result %+v, got:\n%s\nwant:\n%s", c.name, err, d.result, got, strings.Join(want, ""))
			}
			if d.result.Usage.Prompt != 9 || d.result.Usage.Completion != 2 || d.result.Usage.Cached != 4 {
				t.Errorf("%s: usage %+v, want 9, 2, 4", c.name, d.result.Usage)
			}
		}
	}
}

func TestEachEndpointsEndMarker(t *testing.T) {
	named := func(name, data string) string { return "event: " + name + "\ndata: " + data + "\n\n" }
	created := named("response.created", `{"type":"response.created","response":{"error":null,"usage":null}}`)
	completed := named("response.completed", `{"type":"response.completed","response":{"usage":{"input_tokens":5,"input_tokens_details":{"cached_tokens":1},"output_tokens":2}}}`)
	unnamed := event(`{"type":"response.incomplete","response":{}}`)
	begin := named("message_start", `{"type":"message_start","message":{"usage":{"input_tokens":3,"cache_read_input_tokens":4,"output_tokens":0}}}`)
	delta := named("message_delta", `{"type":"message_delta","usage":{"output_tokens":7}}`)
	stop := named("message_stop", `{"type":"message_stop"}`)
	failure := named("error", `{"type":"error","error":{"type":"api_error","message":"boom"}}`)
	for _, c := range []struct {
		name    string
		dialect Dialect
		stream  string
		want    string // what is passed on, without an error event of ours
		ok      bool
	}{
		{"done", DialectDone, event("{}") + doneEvent, "", true},
		{"done, not there", DialectDone, event("{}"), "", false},
		{"done without its blank line", DialectDone, event("{}") + "data: [DONE]", event("{}") + doneEvent, true},
		{"done with half of it", DialectDone, event("{}") + "data: [DONE]\n", event("{}") + "data: [DONE]\n\n\n", true},
		{"half an event at the end", DialectDone, event("{}") + "data: {\"a\":", event("{}"), false},
		{"data after done", DialectDone, event("{}") + doneEvent + event("{}"), event("{}") + doneEvent, true},
		{"responses", DialectResponses, created + completed, "", true},
		{"responses, told by type alone", DialectResponses, created + unnamed, "", true},
		{"responses, then done", DialectResponses, created + completed + doneEvent, "", true},
		{"responses, failed", DialectResponses, created + named("response.failed", `{"type":"response.failed","response":{"error":{"code":"server_error"}}}`), "", true},
		{"responses, done alone", DialectResponses, created + doneEvent, "", false},
		{"responses, not there", DialectResponses, created, "", false},
		{"messages", DialectMessages, begin + delta + stop, "", true},
		{"messages, then done", DialectMessages, begin + delta + stop + doneEvent, "", true},
		{"messages, not there", DialectMessages, begin + delta, "", false},
		{"messages, not there but done", DialectMessages, begin + delta + doneEvent, "", false},
		{"none", DialectNone, event("{}"), "", true},
		{"none, but done", DialectNone, event("{}") + doneEvent, "", true},
		{"none, last without its blank line", DialectNone, event("{}") + "data: x", event("{}") + "data: x\n\n", true},
		{"an error of the engine's, then done", DialectDone, event("{}") + event(`{"error":{"message":"x","code":500}}`) + doneEvent, "", true},
		{"an error of the engine's, then nothing", DialectDone, event("{}") + event(`{"error":{"message":"x","code":500}}`), "", false},
		{"an error of the engine's in messages", DialectMessages, begin + failure, "", false},
	} {
		for _, apart := range []time.Duration{0, 2 * time.Millisecond} {
			var pieces []string
			for _, p := range strings.SplitAfter(c.stream, "\n\n") {
				if p != "" {
					pieces = append(pieces, p)
				}
			}
			d, err := relayed(t, Options{}, Request{Dialect: c.dialect}, streamed(apart, pieces...))
			if err != nil { // nothing had been sent: all of it came at once
				if e := wantError(t, err, KindTruncated); c.ok || apart > 0 && len(pieces) > 1 {
					t.Errorf("%s: %v", c.name, e)
				}
				continue
			}
			want := c.want
			if want == "" {
				want = c.stream
			}
			ours := ""
			if strings.Contains(c.stream, `"error":{"m`) || strings.Contains(c.stream, "event: error") {
				if !d.result.EngineError {
					t.Errorf("%s: the engine's error is not in the result", c.name)
				}
			} else if !c.ok {
				ours = "data: error " + KindTruncated.String() + "\n\n"
			}
			if got := d.body.String(); got != want+ours {
				t.Errorf("%s: got %q, want %q", c.name, got, want+ours)
			}
			if (d.result.Err == nil) != c.ok || (d.werr == nil) != c.ok {
				t.Errorf("%s: result %+v, write error %v, want ok %v", c.name, d.result, d.werr, c.ok)
			}
		}
	}
}

func TestUsageOfEachEndpoint(t *testing.T) {
	for name, c := range map[string]struct {
		dialect Dialect
		events  []string
		want    sse.Usage
	}{
		"messages": {
			DialectMessages,
			[]string{`{"type":"message_start","message":{"usage":{"input_tokens":3,"cache_read_input_tokens":4,"output_tokens":0}}}`, `{"type":"message_delta","usage":{"output_tokens":7}}`, `{"type":"message_stop"}`},
			sse.Usage{Prompt: 7, Cached: 4, Completion: 7},
		},
		"responses": {
			DialectResponses,
			[]string{`{"type":"response.created","response":{}}`, `{"type":"response.completed","response":{"usage":{"input_tokens":5,"input_tokens_details":{"cached_tokens":1},"output_tokens":2}}}`},
			sse.Usage{Prompt: 5, Cached: 1, Completion: 2},
		},
		"generate": {
			DialectDone,
			[]string{`{"text":"a","meta_info":{"prompt_tokens":5,"completion_tokens":1,"cached_tokens":2}}`, `{"text":"ab","meta_info":{"prompt_tokens":5,"completion_tokens":2,"cached_tokens":2}}`, `[DONE]`},
			sse.Usage{Prompt: 5, Cached: 2, Completion: 2},
		},
	} {
		var in []string
		for _, e := range c.events {
			in = append(in, event(e))
		}
		d, err := relayed(t, Options{}, Request{Dialect: c.dialect}, streamed(0, in...))
		u := d.result.Usage
		if err != nil || u.Prompt != c.want.Prompt || u.Cached != c.want.Cached || u.Completion != c.want.Completion {
			t.Errorf("%s: error %v, usage %+v, want %+v", name, err, u, c.want)
		}
	}
}

func TestErrorInTheFirstEventBecomesAStatus(t *testing.T) {
	for name, c := range map[string]struct {
		first  string
		status int
	}{
		"code":           {event(`{"error":{"message":"full","code":503}}`), 503},
		"code in string": {event(`{"error":{"message":"full","code":"429"}}`), 429},
		"flat":           {event(`{"object":"error","message":"bad","type":"BadRequestError","code":400}`), 400},
		"no code":        {event(`{"error":{"message":"boom"}}`), 500},
		"text":           {event(`{"error":"boom"}`), 500},
		"anthropic":      {"event: error\n" + event(`{"type":"error","error":{"type":"overloaded_error","message":"x"}}`), 503},
		"after comments": {": hi\n\n: there\n\n" + event(`{"error":{"message":"full","code":503}}`), 503},
	} {
		d, err := relayed(t, Options{}, Request{}, streamed(0, c.first, doneEvent))
		a := d.answer
		if err != nil || a.Status != c.status || !a.InStream || !a.Complete || a.Streamed || d.resp.StatusCode() != c.status {
			t.Errorf("%s: error %v, answer %+v, want status %d in stream, complete", name, err, a, c.status)
		}
		if got := string(d.resp.Header.ContentType()); got != "application/json" || !strings.Contains(c.first, d.body.String()) {
			t.Errorf("%s: content type %q, body %q", name, got, d.body.String())
		}
	}
	// null is no error
	d, err := relayed(t, Options{}, Request{}, streamed(0, event(`{"error":null,"choices":[{}]}`), doneEvent))
	if err != nil || !d.answer.Streamed || d.answer.Status != 200 {
		t.Errorf("error null: %v, %+v", err, d.answer)
	}
}

func TestSilenceIsMeasuredBetweenWholeEvents(t *testing.T) {
	drip := func(c *faulty.Conn) {
		c.Stream()
		c.Event(faulty.Chunk("a"))
		for range 200 {
			if c.Pause(10 * time.Millisecond) {
				return
			}
			c.Chunk("x")
		}
	}
	begun := time.Now()
	call := newCall()
	call.Timeouts.Idle = 300 * time.Millisecond
	d, err := do(newUpstream(t, faulty.Start(t, faulty.Always(drip)).URL, Options{}), call, post(`{"stream":true}`))
	if err != nil || d.result.Err == nil || d.result.Err.Kind != KindTimeout || d.result.Err.Limit != LimitIdle {
		t.Fatalf("error %v, result %+v, want the idle deadline", err, d.result)
	}
	if took := time.Since(begun); took < call.Timeouts.Idle {
		t.Errorf("ended after %v, want at least %v", took, call.Timeouts.Idle)
	}
}

func TestSteadyStreamOutlivesEveryDeadlineButTheWhole(t *testing.T) {
	call := newCall()
	call.Timeouts.First, call.Timeouts.Idle = time.Second, time.Second
	var pieces []string
	for i := range 30 {
		pieces = append(pieces, event(faulty.Chunk(fmt.Sprint(i))))
	}
	s := faulty.Start(t, faulty.Always(streamed(50*time.Millisecond, append(pieces, doneEvent)...)))
	up := newUpstream(t, s.URL, Options{})
	d, err := do(up, call, post(`{"stream":true}`))
	if err != nil || d.result.Err != nil || d.result.Events != 30 {
		t.Fatalf("error %v, result %+v, want 30 events over 1.5s under deadlines of 1s", err, d.result)
	}
	call = newCall()
	call.Timeouts.Request = time.Second
	d, err = do(up, call, post(`{"stream":true}`))
	if err != nil || d.result.Err == nil || d.result.Err.Limit != LimitRequest {
		t.Fatalf("error %v, result %+v, want the deadline of the whole request", err, d.result)
	}
}

func TestEventOverItsBound(t *testing.T) {
	big := strings.Repeat("x", 100_000)
	for name, pieces := range map[string][]string{
		"first":  {event(big), doneEvent},
		"no end": {event("{}"), big, big, doneEvent},
		"later":  {event("{}"), event(big), doneEvent},
	} {
		d, err := relayed(t, Options{MaxEvent: 50_000}, Request{}, streamed(5*time.Millisecond, pieces...))
		if err == nil && d.result.Err != nil {
			err = d.result.Err
		}
		if name == "first" != (d.body.Len() == 0) {
			t.Errorf("%s: %d bytes were passed on", name, d.body.Len())
		}
		wantError(t, err, KindTooLarge)
	}
	d, err := relayed(t, Options{MaxEvent: 200_000}, Request{}, streamed(0, event(big), doneEvent))
	if err != nil || d.result.Err != nil || d.body.Len() != len(event(big))+len(doneEvent) {
		t.Errorf("an event within the bound: error %v, result %+v, %d bytes", err, d.result, d.body.Len())
	}
}

func TestSlowReaderIsNotAnIdleEngine(t *testing.T) {
	s := faulty.Start(t, faulty.Always(func(c *faulty.Conn) {
		c.Stream()
		for range 200 {
			c.Event(faulty.Chunk(strings.Repeat("x", 20_000)))
		}
		c.Event(faulty.Done)
		c.End()
	}))
	g := newGate(t, s.URL, Options{})
	g.timeouts.Idle, g.timeouts.Request = 500*time.Millisecond, 0
	c := dial(t, g.addr)
	_ = c.Conn.(*net.TCPConn).SetReadBuffer(64 << 10)
	c.send(chatBody("none", true))
	<-time.After(1500 * time.Millisecond) // three idle deadlines long, nothing is read
	if r := c.read(); !r.clean || !strings.HasSuffix(r.body, doneEvent) {
		t.Errorf("clean %v, %d bytes ending in %q, want all of it", r.clean, len(r.body), r.body[max(0, len(r.body)-80):])
	}
}

func TestKeepAliveAfterEachKindOfAnswer(t *testing.T) {
	s := faulty.Start(t, faulty.ByName(faulty.Matrix(bigEvent)))
	g := newGate(t, s.URL, Options{})
	c := dial(t, g.addr)
	for _, name := range []string{"none", "500", "503-in-stream", "400-flat", "trailing-data", "wrong-content-type", "gzip", "none"} {
		for _, stream := range []bool{true, false} {
			c.send(chatBody(name, stream))
			if r := c.read(); !r.clean {
				t.Fatalf("%s, stream %v: the connection is not usable", name, stream)
			}
			g.outcome()
		}
	}
}

func TestConnectionServesAgainAfterAStream(t *testing.T) {
	// The end of the body comes after the end marker, as uvicorn writes it.
	s := faulty.Start(t, faulty.Always(func(c *faulty.Conn) {
		c.Stream()
		c.Event("{}")
		c.Event(faulty.Done)
		c.Pause(5 * time.Millisecond)
		c.End()
	}))
	up := newUpstream(t, s.URL, Options{})
	for range 3 {
		d, err := do(up, newCall(), post(`{"stream":true}`))
		if err != nil || d.result.Err != nil {
			t.Fatal(err, d.result.Err)
		}
	}
	if n := s.Accepted(); n != 1 {
		t.Errorf("%d connections for three streams, want 1", n)
	}
}

func TestEndMarkerWithoutTheEndOfTheBodyIsAnEnd(t *testing.T) {
	begun := time.Now()
	d, err := relayed(t, Options{}, Request{}, func(c *faulty.Conn) {
		c.Stream()
		c.Event("{}")
		c.Event(faulty.Done)
		c.Wait()
	})
	if err != nil || d.result.Err != nil || d.werr != nil {
		t.Errorf("error %v, result %+v, write error %v", err, d.result, d.werr)
	}
	if took := time.Since(begun); took > 5*time.Second {
		t.Errorf("took %v, want about 100ms", took)
	}
}

var _ io.Writer = (*countingWriter)(nil)

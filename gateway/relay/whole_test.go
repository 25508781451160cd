package relay

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"penstock/e2e/faulty"
)

// bigJSON is an answer of about n bytes that ends in usage.
func bigJSON(n int) string {
	return `{"choices":[{"text":"` + strings.Repeat("x", n) + `"}],"usage":{"prompt_tokens":9,"completion_tokens":2,"total_tokens":11}}`
}

func TestWholeBodiesOfEveryFramingAndSize(t *testing.T) {
	for _, size := range []int{0, 1000, 20_000, 100_000, 700_000} {
		body := bigJSON(size)
		for name, script := range map[string]faulty.Script{
			"length": func(c *faulty.Conn) { c.Whole(200, "application/json", body) },
			"chunked": func(c *faulty.Conn) {
				c.Head(200, "content-type: application/json", "transfer-encoding: chunked")
				for rest := body; rest != ""; rest = rest[min(30_000, len(rest)):] {
					c.Chunk(rest[:min(30_000, len(rest))])
				}
				c.End()
			},
			"until close": func(c *faulty.Conn) {
				c.Head(200, "content-type: application/json")
				c.Raw(body)
			},
			"after interim responses": func(c *faulty.Conn) {
				c.Raw("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n")
				c.Whole(200, "application/json", body)
			},
		} {
			s := faulty.Start(t, faulty.Always(script))
			g := newGate(t, s.URL, Options{MaxBuffered: 200_000})
			c := dial(t, g.addr)
			c.send(chatBody("none", false))
			r := c.read()
			o := g.outcome()
			if r.status != 200 || r.body != body || !r.clean || o.result.Err != nil {
				t.Fatalf("%s, %d bytes: status %d, %d bytes, clean %v, result %+v", name, len(body), r.status, len(r.body), r.clean, o.result)
			}
			if want := len(body) <= 200_000; o.answer.Complete != want {
				t.Errorf("%s, %d bytes: complete %v, want %v", name, len(body), o.answer.Complete, want)
			}
			if u := o.result.Usage; u.Prompt != 9 || u.Completion != 2 {
				t.Errorf("%s, %d bytes: usage %+v, want 9, 2", name, len(body), u)
			}
			known := name == "length" || name == "after interim responses" || o.answer.Complete
			if got := r.header["content-length"]; known != (got == fmt.Sprint(len(body))) {
				t.Errorf("%s, %d bytes: content-length %q", name, len(body), got)
			}
			atRest(t, g)
		}
	}
}

func TestDeathInALargeBodyCutsTheClientOff(t *testing.T) {
	body := bigJSON(700_000)
	for name, head := range map[string]string{"length": fmt.Sprintf("content-length: %d", len(body)), "chunked": "transfer-encoding: chunked"} {
		s := faulty.Start(t, faulty.Always(func(c *faulty.Conn) {
			c.Head(200, "content-type: application/json", head)
			if name == "chunked" {
				c.Chunk(body[:500_000])
			} else {
				c.Raw(body[:500_000])
			}
		}))
		g := newGate(t, s.URL, Options{MaxBuffered: 200_000})
		c := dial(t, g.addr)
		c.send(chatBody("none", false))
		r := c.read()
		o := g.outcome()
		if r.status != 200 || r.clean || o.result.Err == nil || o.result.Err.Kind != KindDisconnected || !strings.HasPrefix(body, r.body) {
			t.Errorf("%s: status %d, clean %v, %d bytes, result %+v; want a 200 that is cut off", name, r.status, r.clean, len(r.body), o.result)
		}
	}
}

func TestWholeAnswersAreHeldWhateverTheirSize(t *testing.T) {
	body := bigJSON(700_000)
	s := faulty.Start(t, faulty.Always(func(c *faulty.Conn) { c.Whole(200, "application/json", body) }))
	up := newUpstream(t, s.URL, Options{MaxBuffered: 1000, MaxWhole: 800_000})
	req := post("{}")
	req.Whole = true
	d, err := do(up, newCall(), req)
	if err != nil || !d.answer.Complete || string(d.resp.Body()) != body {
		t.Errorf("error %v, complete %v, %d bytes", err, d.answer.Complete, len(d.resp.Body()))
	}
	up = newUpstream(t, s.URL, Options{MaxWhole: 600_000})
	_, err = do(up, newCall(), req)
	wantError(t, err, KindTooLarge)
}

func TestNoBodyWhereThereIsNone(t *testing.T) {
	for _, status := range []int{204, 304} {
		s := faulty.Start(t, faulty.Always(func(c *faulty.Conn) { c.Head(status, "x-a: b"); c.KeepAlive() }))
		up := newUpstream(t, s.URL, Options{})
		for range 2 {
			d, err := do(up, newCall(), post("{}"))
			if err != nil || d.answer.Status != status || !d.answer.Complete || d.body.Len() != 0 {
				t.Errorf("%d: error %v, answer %+v", status, err, d.answer)
			}
		}
	}
}

func TestLeftoversOfAnEarlierAttemptDoNotShow(t *testing.T) {
	s := faulty.Start(t, faulty.InOrder(
		func(c *faulty.Conn) {
			c.Whole(503, "text/html", "a long page of an error", "retry-after: 3", "x-first: 1")
		},
		func(c *faulty.Conn) { c.Whole(200, "application/json", "{}") },
	))
	up := newUpstream(t, s.URL, Options{})
	d := &direct{}
	a, err := up.Do(newCall(), post("{}"), &d.resp)
	if err != nil || a.Status != 503 || a.RetryAfter.Seconds() != 3 {
		t.Fatalf("error %v, answer %+v, want a 503 that asks for 3 s", err, a)
	}
	a.Discard()
	a, err = up.Do(newCall(), post("{}"), &d.resp)
	if err != nil {
		t.Fatal(err)
	}
	a.Relay(d)
	if got := d.resp.Header.Peek("X-First"); a.Status != 200 || string(d.resp.Body()) != "{}" || got != nil {
		t.Errorf("status %d, body %q, x-first %q, want 200, {} and none", a.Status, d.resp.Body(), got)
	}
}

func TestWhatCannotBeAnAnswerIsNone(t *testing.T) {
	const half = `{"choices":[{"text":"Hel`
	big := half + strings.Repeat("x", 100_000)
	for _, c := range []struct {
		name, head, body string
		stream           bool
		kind             Kind
	}{
		{"a page", "content-type: text/html; charset=utf-8", "<html>", false, KindProtocol},
		{"a page for a stream", "content-type: text/html", "<html>", true, KindProtocol},
		{"JSON for a stream", "content-type: application/json", faulty.JSON, true, KindProtocol},
		{"nothing for a stream", "content-type: text/event-stream\r\ncontent-length: 0", "", true, KindProtocol},
		{"a compressed stream", "content-type: text/event-stream\r\ncontent-encoding: gzip", "\x1f\x8b", true, KindProtocol},
		{"half of JSON, no length", "content-type: application/json", half, false, KindTruncated},
		{"much of JSON, no length", "content-type: application/json", big, false, KindTruncated},
		{"JSON, no length", "content-type: application/json", faulty.JSON + "\n", false, 0},
		{"much JSON, no length", "content-type: application/json", `{"x":"` + big[len(half):] + "\"}\r\n", false, 0},
		{"text, no length", "content-type: text/plain", half, false, 0},
	} {
		s := faulty.Start(t, faulty.Always(func(f *faulty.Conn) { f.Head(200, c.head); f.Raw(c.body) }))
		up := newUpstream(t, s.URL, Options{MaxBuffered: 50_000})
		req := post("{}")
		req.Streamed = c.stream
		d, err := do(up, newCall(), req)
		got := kindOf(d.result.Err)
		if e, ok := errors.AsType[*Error](err); ok {
			got = e.Kind
		}
		if got != c.kind {
			t.Errorf("%s: error %v, result %v, want kind %v", c.name, err, d.result.Err, c.kind)
		}
	}
}

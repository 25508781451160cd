package relay

import (
	"strings"
	"testing"

	"penstock/e2e/faulty"
)

const (
	hello     = "data: "
	goodTwo   = "Hello"
	doneEvent = "data: [DONE]\n\n"
)

func event(data string) string { return "data: " + data + "\n\n" }

func TestGoodAnswersPassByteForByte(t *testing.T) {
	s := faulty.Start(t, faulty.ByName(nil))
	g := newGate(t, s.URL, Options{})
	c := dial(t, g.addr)
	stream := event(faulty.Chunk("Hello")) + event(faulty.Chunk(" there")) + event(faulty.UsageChunk) + doneEvent
	for range 3 {
		for _, want := range []struct {
			stream bool
			body   string
		}{{false, faulty.JSON}, {true, stream}} {
			c.send(chatBody("none", want.stream))
			r := c.read()
			if r.status != 200 || r.body != want.body || !r.clean {
				t.Fatalf("stream %v: got %d, clean %v, body:\n%s\nwant 200, clean, body:\n%s", want.stream, r.status, r.clean, r.body, want.body)
			}
			o := g.outcome()
			u := o.result.Usage
			if o.result.Err != nil || u.Prompt != 9 || u.Completion != 2 || u.Cached != 4 {
				t.Errorf("stream %v: result %+v, want no error and usage 9, 2, 4", want.stream, o.result)
			}
		}
	}
	if n := s.Accepted(); n != 1 {
		t.Errorf("the engine saw %d connections for 6 requests, want 1", n)
	}
	if r := s.Requests()[0]; r.Header["host"] != strings.TrimPrefix(s.URL, "http://") || r.Header["accept-encoding"] != "identity" {
		t.Errorf("headers that the engine saw: %v", r.Header)
	}
}

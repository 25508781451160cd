package faulty

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Fault is one row of the matrix: how an engine fails a stream, and how it
// fails a whole answer. A nil script is an engine that refuses connections.
type Fault struct {
	Name   string
	Stream Script
	Whole  Script
}

// Marker is what a request's body holds so that ByName chooses that fault.
func Marker(fault string) string { return "fault:" + fault + ";" }

// ByName chooses the fault whose Marker the request's body holds, for a stream
// or a whole answer as the request asks; without one the answer is good.
func ByName(faults []Fault) func(*Request) Script {
	return func(r *Request) Script {
		f := Good()
		for _, g := range faults {
			if bytes.Contains(r.Body, []byte(Marker(g.Name))) {
				f = g
			}
		}
		if r.Streamed() {
			return f.Stream
		}
		return f.Whole
	}
}

// Serving answers what a gateway asks an engine about itself, that it serves
// that model and no more, and leaves the rest to choose.
func Serving(model string, choose func(*Request) Script) func(*Request) Script {
	return func(r *Request) Script {
		switch {
		case r.Method != "GET":
			return choose(r)
		case strings.HasPrefix(r.Path, "/v1/models"):
			return func(c *Conn) {
				c.Whole(200, jsonType, fmt.Sprintf(`{"object":"list","data":[{"id":%q,"object":"model"}]}`, model))
			}
		}
		return func(c *Conn) { c.Whole(404, jsonType, "{}") }
	}
}

// Pieces of good answers.
const (
	// JSON is a whole chat completion.
	JSON = `{"id":"chatcmpl-1","object":"chat.completion","created":1700000000,"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"Hello there"},"finish_reason":"stop"}],"usage":{"prompt_tokens":9,"completion_tokens":2,"total_tokens":11,"prompt_tokens_details":{"cached_tokens":4}}}`
	// UsageChunk is the data of a chunk that holds nothing but usage.
	UsageChunk = `{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"m","choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2,"total_tokens":11,"prompt_tokens_details":{"cached_tokens":4}}}`
	// Done is the end marker's data.
	Done = "[DONE]"

	jsonType = "application/json"
)

// Chunk is the data of a chat chunk with that text.
func Chunk(text string) string {
	return fmt.Sprintf(`{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"m","choices":[{"index":0,"delta":{"content":%q},"finish_reason":null}]}`, text)
}

// Good is an engine without a fault.
func Good() Fault {
	return Fault{
		Name: "good",
		Stream: func(c *Conn) {
			c.Stream()
			c.Event(Chunk("Hello"))
			c.Event(Chunk(" there"))
			c.Event(UsageChunk)
			c.Event(Done)
			c.End()
		},
		Whole: func(c *Conn) { c.Whole(200, jsonType, JSON) },
	}
}

// both is a fault that does not depend on what was asked for.
func both(name string, s Script) Fault { return Fault{name, s, s} }

// begin writes the beginning of a stream: its headers and two events.
func begin(c *Conn) {
	c.Stream()
	c.Event(Chunk("Hello"))
	c.Event(Chunk(" there"))
	c.Meet()
}

// beginWhole writes the headers of a whole answer and half of its body.
func beginWhole(c *Conn) {
	c.Head(200, "content-type: "+jsonType, fmt.Sprintf("content-length: %d", len(JSON)))
	c.Raw(JSON[:len(JSON)/2])
}

// BigEvent is the size that the fault 16mb-event is named after.
const BigEvent = 16 << 20

// Matrix is every fault. big is the size of the big event, BigEvent or, where
// time is short, less.
func Matrix(big int) []Fault {
	return slices.Concat(connections(), statuses(), bodies(big))
}

// connections are faults of the connection and of time.
func connections() []Fault {
	return []Fault{
		{Name: "refused"},
		both("reset-before-headers", func(c *Conn) { c.Reset() }),
		{
			"reset-after-headers",
			func(c *Conn) { c.Stream(); c.Reset() },
			func(c *Conn) {
				c.Head(200, "content-type: "+jsonType, fmt.Sprintf("content-length: %d", len(JSON)))
				c.Reset()
			},
		},
		{
			"reset-mid-event",
			func(c *Conn) {
				begin(c)
				c.Raw("40\r\ndata: {\"id\":\"chatcmpl")
				c.Pause(20 * time.Millisecond)
				c.Reset()
			},
			func(c *Conn) { beginWhole(c); c.Pause(20 * time.Millisecond); c.Reset() },
		},
		{
			"close-without-marker",
			func(c *Conn) { begin(c); c.End() },
			func(c *Conn) { beginWhole(c) },
		},
		{
			"close-without-length",
			func(c *Conn) {
				c.Head(200, "content-type: text/event-stream", "connection: close")
				c.Raw("data: " + Chunk("Hello") + "\n\n")
				c.Meet()
			},
			func(c *Conn) {
				c.Head(200, "content-type: "+jsonType, "connection: close")
				c.Raw(JSON[:len(JSON)/2])
			},
		},
		{
			"half-event-then-silence",
			func(c *Conn) { begin(c); c.Raw("40\r\ndata: {\"id\":\"chatcmpl"); c.Wait() },
			func(c *Conn) { beginWhole(c); c.Wait() },
		},
		both("headers-never", func(c *Conn) { c.Wait() }),
		{
			"first-token-never",
			func(c *Conn) { c.Stream(); c.Wait() },
			func(c *Conn) { c.Head(200, "content-type: "+jsonType, "transfer-encoding: chunked"); c.Wait() },
		},
		{
			"silence-mid-stream",
			func(c *Conn) { begin(c); c.Wait() },
			func(c *Conn) { beginWhole(c); c.Wait() },
		},
		{
			"byte-per-second",
			func(c *Conn) { begin(c); drip(c, "data: "+Chunk(strings.Repeat("x", 1000))) },
			func(c *Conn) { beginWhole(c); drip(c, JSON[len(JSON)/2:]) },
		},
	}
}

// drip writes one byte a second, as chunks where the stream is chunked.
func drip(c *Conn, s string) {
	for i := range len(s) {
		if c.Streamed() {
			c.Chunk(s[i : i+1])
		} else {
			c.Raw(s[i : i+1])
		}
		if c.Pause(time.Second) {
			return
		}
	}
}

// statuses are errors that the engine reports.
func statuses() []Fault {
	return []Fault{
		both("500", func(c *Conn) { c.Whole(500, "text/plain", "Internal Server Error") }),
		both("502-html", func(c *Conn) { c.Whole(502, "text/html", "<html><body><h1>502 Bad Gateway</h1></body></html>") }),
		both("503-json", func(c *Conn) {
			c.Whole(503, jsonType, `{"error":{"message":"The engine is overloaded","type":"service_unavailable","code":503}}`)
		}),
		{
			"503-in-stream",
			func(c *Conn) {
				c.Stream()
				c.Event(`{"error":{"object":"error","message":"The request queue is full.","type":"SERVICE_UNAVAILABLE","param":null,"code":503}}`)
				c.Event(Done)
				c.End()
			},
			func(c *Conn) {
				c.Whole(503, jsonType, `{"object":"error","message":"The request queue is full.","type":"SERVICE_UNAVAILABLE","param":null,"code":503}`)
			},
		},
		both("429-retry-after", func(c *Conn) {
			c.Whole(429, jsonType, `{"error":{"message":"Too many requests","type":"rate_limit_error","code":429}}`, "retry-after: 7")
		}),
		both("400-flat", func(c *Conn) {
			c.Whole(400, jsonType, `{"object":"error","message":"temperature must be a non-negative finite number, got -1.0.","type":"BadRequestError","param":null,"code":400}`)
		}),
	}
}

// bodies are answers that are not what their headers say, or not what was asked for.
func bodies(big int) []Fault {
	return []Fault{
		{
			"16mb-event",
			func(c *Conn) {
				begin(c)
				c.Event(Chunk(strings.Repeat("x", big)))
				c.Event(Done)
				c.End()
			},
			func(c *Conn) {
				c.Whole(200, jsonType, strings.Replace(JSON, "Hello there", strings.Repeat("x", big), 1))
			},
		},
		{
			"chunked-garbage",
			func(c *Conn) { begin(c); c.Raw("zz\r\nnot a chunk\r\n"); c.Wait() },
			func(c *Conn) {
				c.Head(200, "content-type: "+jsonType, "transfer-encoding: chunked")
				c.Raw("zz\r\nnot a chunk\r\n")
				c.Wait()
			},
		},
		both("not-http", func(c *Conn) { c.Raw("220 smtp.example ESMTP\r\n250 ok\r\n\r\n"); c.Wait() }),
		{
			"wrong-content-type",
			func(c *Conn) { c.Whole(200, jsonType, JSON) },
			func(c *Conn) { c.Whole(200, "text/html", "<html><body>Welcome</body></html>") },
		},
		both("gzip", func(c *Conn) {
			body, kind := JSON, jsonType
			if c.Streamed() {
				body, kind = "data: "+Chunk("Hello")+"\n\ndata: "+Done+"\n\n", "text/event-stream"
			}
			c.Whole(200, kind, zipped(body), "content-encoding: gzip")
		}),
		{
			"trailing-data",
			func(c *Conn) {
				begin(c)
				c.Event(Done)
				c.Event(Chunk("after the end"))
				c.End()
			},
			func(c *Conn) { c.Whole(200, jsonType, JSON+"\n\n  ") },
		},
	}
}

func zipped(s string) string {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write([]byte(s)); err != nil {
		panic(err) // a buffer does not fail
	}
	if err := w.Close(); err != nil {
		panic(err)
	}
	return b.String()
}

package scripted

import (
	"fmt"
	"net/http"
	"strconv"
	"time"
)

// longest bounds every wait, so that a client that never leaves fails its test
// by the answer and not by hanging.
const longest = 20 * time.Second

// trouble plays the scripts that end badly or late and reports whether it
// answered:
//
//	script:slow          nothing for 20 s, then the echo
//	script:drip          an event each 20 ms for 20 s
//	script:silent        one event, then nothing for 20 s
//	script:die           two events (or half a body), then the connection breaks
//	script:end           two events and a clean end without [DONE]
//	script:wrong         an error inside the stream after one event
//	script:status N      that status, as an error
//	script:busy N        503 with Retry-After 1, N times over all, then the echo
//	script:limited N     the same with 429
//	script:inside N      a 503 inside a 200 stream, N times, then the echo
func (u *Upstream) trouble(c *call) bool {
	switch c.script {
	case "slow":
		return !c.pause(longest)
	case "drip":
		c.drip(longest)
	case "silent":
		c.first(1)
		c.pause(longest)
	case "die":
		c.first(2)
		panic(http.ErrAbortHandler)
	case "end":
		c.first(2)
	case "wrong":
		c.first(1)
		c.event("", object{"error": object{"message": "out of memory", "type": "server_error", "code": 500}})
	case "status":
		status, err := strconv.Atoi(c.arg)
		if err != nil {
			status = http.StatusTeapot
		}
		c.fail(status, "engine_says_"+c.arg)
	case "busy":
		return u.refuse(c, http.StatusServiceUnavailable)
	case "limited":
		return u.refuse(c, http.StatusTooManyRequests)
	case "inside":
		return u.refuse(c, 0)
	default:
		return false
	}
	return true
}

// refuse answers the first N calls of a script with a status, or with an error
// in a stream (0), and reports whether this one was refused.
func (u *Upstream) refuse(c *call, status int) bool {
	times, err := strconv.Atoi(c.arg)
	if err != nil {
		times = 1
	}
	u.mu.Lock()
	left, seen := u.busy[c.text]
	if !seen {
		left = times
	}
	u.busy[c.text] = left - 1
	u.mu.Unlock()
	switch {
	case left <= 0:
		return false
	case status == 0:
		c.events(object{"error": object{"message": "The server is overloaded", "type": "ServiceUnavailable", "code": 503}}, "[DONE]")
	default:
		c.w.Header().Set("Retry-After", "1")
		c.fail(status, "busy")
	}
	return true
}

// first begins a stream with n events, or a body of which the rest never comes.
func (c *call) first(n int) {
	if !c.body.Stream {
		c.w.Header().Set("Content-Type", "application/json")
		c.w.Header().Set("Content-Length", "1000")
		fmt.Fprint(c.w, `{"id":"chatcmpl-1","object":"chat.completion",`)
		c.flush()
		return
	}
	c.events(c.chunks(reply{content: "one two three four", finish: "stop"})[:n]...)
}

func (c *call) drip(d time.Duration) {
	c.events(c.chunk(object{"role": "assistant", "content": ""}, nil))
	for end := time.Now().Add(d); time.Now().Before(end); {
		if !c.pause(20 * time.Millisecond) {
			return
		}
		c.event("", c.chunk(object{"content": "drop "}, nil))
	}
	c.event("", "[DONE]")
}

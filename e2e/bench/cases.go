package main

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// load is one of the cases.
type load struct {
	name  string
	what  string
	conns int
	shape
	// fixed is how long it takes: streams that all begin and end together.
	fixed bool
}

// shape is what a request looks like.
type shape struct {
	prompt int           // bytes of it; 0: a short one
	events int           // 0: a whole answer
	pace   time.Duration // between events
}

func (l *load) streamed() bool { return l.events > 0 }

// allCases are in the order in which they are run.
func allCases() []*load {
	return []*load{
		{name: "json", what: "1 KB JSON answer, 32 connections", conns: 32},
		{name: "one", what: "the same, one connection", conns: 1},
		{name: "sse", what: "SSE, 128 events unpaced, 32 connections", conns: 32, shape: shape{events: 128}},
		{name: "paced", what: "SSE, 128 events 10 ms apart, 100 streams", conns: 100, shape: shape{events: 128, pace: 10 * time.Millisecond}, fixed: true},
		{name: "32k", what: "prompts of 32 KB, 16 connections", conns: 16, shape: shape{prompt: 32 << 10}},
		{name: "400k", what: "prompts of 400 KB, 16 connections", conns: 16, shape: shape{prompt: 400 << 10}},
		{name: "1000x20", what: "1,000 streams of 20 events/s", conns: 1000, shape: shape{events: 120, pace: 50 * time.Millisecond}, fixed: true},
		{name: "2000x5", what: "2,000 streams of 5 events/s", conns: 2000, shape: shape{events: 40, pace: 200 * time.Millisecond}, fixed: true},
	}
}

func casesNamed(list string) ([]*load, error) {
	all := allCases()
	if list == "" {
		return all, nil
	}
	var some []*load
	var names []string
	for _, c := range all {
		names = append(names, c.name)
	}
next:
	for name := range strings.SplitSeq(list, ",") {
		for _, c := range all {
			if c.name == name {
				some = append(some, c)
				continue next
			}
		}
		return nil, fmt.Errorf("case %q: want some of %s", name, strings.Join(names, ", "))
	}
	return some, nil
}

// body makes the requests of one connection.
type body struct {
	bytes  []byte
	number int // where a number of 16 digits stands in the prompt's beginning
	tail   int // and one at its end
}

func newBody(s shape) *body {
	b := []byte(`{"model":"bench","messages":[{"role":"system","content":"`)
	y := &body{number: len(b)}
	b = append(b, "0000000000000000 You answer in a few words."...)
	b = append(b, `"},{"role":"user","content":"`...)
	text := []byte("Where does the water go when the gate is shut, and who opens it again? ")
	b = append(b, bytes.Repeat(text, max(1, s.prompt/len(text)))...)
	y.tail = len(b)
	b = append(b, `0000000000000000"}],"temperature":0.7`...)
	b = append(b, `,"max_tokens":`...)
	b = strconv.AppendInt(b, int64(max(s.events, 1)), 10)
	b = append(b, `,"seed":`...)
	b = strconv.AppendInt(b, s.pace.Microseconds(), 10)
	if s.events > 0 {
		b = append(b, `,"stream":true`...)
	}
	y.bytes = append(b, '}')
	return y
}

// documents is how many prompts come again.
const documents = 64

// next is request i: every other prompt is new from its beginning on, the rest
// are one of a few documents with a new end.
func (y *body) next(i uint64) []byte {
	first := i % documents
	if i%2 == 0 {
		first = i
	}
	digits(y.bytes[y.number:], first)
	digits(y.bytes[y.tail:], i)
	return y.bytes
}

func digits(b []byte, n uint64) {
	for k := 15; k >= 0; k-- {
		b[k] = '0' + byte(n%10)
		n /= 10
	}
}

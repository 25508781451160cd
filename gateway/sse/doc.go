// Package sse cuts a byte stream into whole server-sent events and looks into them without decoding them.
//
// Events come out byte for byte as they came in, with whatever line ends the engine uses, so that a relay sends
// on exactly what it got. A [Finder] finds where events end in a buffer of the caller's; a [Splitter] has a
// buffer of its own. [Parse] takes an event's name and data, [Look] tells of a payload what a relay must know:
// whether it is an error, the end marker, a chunk without choices, and the usage in it. [BodyUsage] finds the
// usage of a whole answer of any size. Nothing allocates per event, and nothing is shared: one stream, one
// goroutine.
//
// In reading order: finder.go, splitter.go, event.go, payload.go, usage.go.
package sse

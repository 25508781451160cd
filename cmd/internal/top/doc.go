// Package top is the terminal view of a running gateway: what its status page
// shows, from the same stream of updates.
//
// Its parts, in reading order:
//
//   - state.go: the part of an update that is shown
//   - feed.go: the stream of updates, connected again when it breaks
//   - view.go: an update as lines of text
//   - run.go: the terminal: draw, redraw, keys, and back to how it was
package top

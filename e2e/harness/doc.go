// Package harness runs the penstock binary for tests from outside, and the
// clients that talk to it.
//
// Its parts, in reading order:
//
//   - binary.go: the binary, built once for each test run
//   - process.go: a gateway or an engine as a child process: free ports, ready, logs, stop
//   - tools.go: Python and Node with the client packages, installed into .e2e/
//   - cases.go: client scripts that report one case a line
//   - wait.go: conditions with a deadline
package harness

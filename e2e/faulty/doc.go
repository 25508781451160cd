// Package faulty is an engine that fails in every way that a gateway must
// survive: a scripted HTTP/1.1 server on raw TCP, so that it can also write
// what no HTTP library would.
//
// In reading order: server.go is the server and what a script can do on a
// connection; faults.go is the matrix, each fault once for a stream and once
// for a whole answer. It imports nothing of Penstock's.
package faulty

// Package e2e tests Penstock from outside: the built binary, talked to by the
// clients that people use.
//
// It has tests only. What they stand on is in harness (processes, client
// packages) and scripted (an upstream that does as it is told); structure
// tests the shape of the source.
package e2e

//go:build !race

package harness

// raceDetector builds the binary as the tests themselves were built.
const raceDetector = false

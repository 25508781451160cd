//go:build !race

package limits

// raceEnabled shortens what only counts, not races.
const raceEnabled = false

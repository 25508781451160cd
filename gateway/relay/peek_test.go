//go:build !linux || portablewatch

package relay

// A peek that finds bytes does not find the end behind them.
const seesPastBytes = false

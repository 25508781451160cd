//go:build linux && !portablewatch

package relay

const seesPastBytes = true

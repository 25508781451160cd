// Package structure holds no code: its tests check the shape of the project,
// which direction imports take, that every package says what it is, and that
// no file grows out of sight.
package structure

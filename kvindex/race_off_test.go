//go:build !race

package kvindex

// raceEnabled shortens tests that the race detector makes ten times slower.
const raceEnabled = false

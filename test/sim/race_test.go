//go:build race

package sim_test

// raced shortens what takes a minute without the race detector.
const raced = true

//go:build !race

package e2e_test

// raceFlag builds the binary under test like the test itself.
const raceFlag = "-race=false"

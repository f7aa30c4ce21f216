// Package e2e tests the whole system from outside: the kvlane binary as
// processes, a stock Envoy in front of them, plain HTTP and the official Python
// client as users. It has no code of its own besides its tests.
//
// Invariants of the tests:
//   - Everything is real. Only the engines are simulated, and where bytes on the
//     wire are looked at, a server that records takes an engine's place.
//   - Everything listens on loopback on ports that were free, is stopped at the
//     end, and is then checked to be gone: processes and ports.
//   - A missing tool fails a test, with the command that installs it.
//   - Nothing waits for a fixed time: waitFor asks until a condition holds.
//
// The binary is built with the race detector if the test is (`make e2e` does); a
// race in any process fails the test that started it.
//
// It does not measure: benchmarks are in test/bench.
package e2e

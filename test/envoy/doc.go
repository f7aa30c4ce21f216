// Package envoy tests the picker's ext_proc server behind a stock Envoy that
// runs the configuration `kvlane envoy-config` prints: which messages Envoy
// really sends and what it makes of the answers.
//
// Envoy is the real one; picker and workers run in the test's process, so that a
// test can look at bookings and say what a worker answers. What needs agents and
// engines is in test/e2e. It has no code besides its tests.
package envoy

// Package picker decides where a request goes.
//
// [Pick] is pure: a request and a snapshot of the fleet in, a [Plan] out, the
// same plan for the same input. Every term of its cost is in milliseconds
// (docs/architecture.md has the formula). [Pool] keeps what the snapshot is
// made of: workers, their load reports, and the bookings that no report shows
// yet.
//
// Invariant: a request is counted on its worker from the moment it is picked
// until its booking closes, exactly once: in the booking until the worker
// reports it accepted, in the worker's report from then on.
//
// The package has no goroutine, no logger and no clock: callers pass the time.
package picker

// Package observability makes the logger, the metrics registry and the admin
// page that every kvlane process has.
//
// Invariant: nothing here is global; what a process logs to and counts in is
// passed to it. The package knows no metric of its own beyond the runtime's:
// each package defines the figures it counts.
package observability

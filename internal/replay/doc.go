// Package replay sends a recorded trace through a running gateway and reports
// what a client saw.
//
// The loop is open: a request leaves at its scheduled time whether or not
// earlier ones were answered, and its latency counts from that time, so a slow
// server cannot hide behind a slow client. Equal hash ids of a trace become
// equal text, so the engines' own prefix caches decide what is a hit.
//
// With a time scale s the trace's arrivals, the engines and the picker's
// constants all run s times faster; results are given in the trace's time.
//
// Invariant: every request of the trace is in the result exactly once, as an
// answer or as an error.
package replay

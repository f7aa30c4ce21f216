// Package envoyconf prints a complete bootstrap for a stock Envoy that asks the
// picker where each request goes.
//
// Invariant: what [Render] returns is accepted by `envoy --mode validate`, and
// every value in it that came from outside has been parsed before, so that no
// option can add a line of its own.
//
// The listener removes the routing headers that clients may not set before any
// filter sees them, so they are gone even when the picker is down. Requests go
// to the address that the picker put in the envoy.lb metadata, then, if it does
// not answer, to the addresses after it.
//
// The package does not start Envoy, and it knows nothing of the picker but its
// address: which headers are stripped is for the caller to say.
package envoyconf

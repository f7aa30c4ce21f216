// Package up runs the whole system on one machine: a stock Envoy, the picker,
// and agents with simulated engines, as child processes on loopback. Then it
// sends a few real requests through Envoy and shows where each went and why.
//
// Invariant: when Run returns, or is killed in any way, no process that it
// started is left and no port is taken. The first thing that goes wrong is
// returned as one error that names the process at fault, with the end of its
// log.
//
// It is not a supervisor: a process that dies takes the rest down.
package up

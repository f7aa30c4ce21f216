// Package sim is the pure core of the simulated engine: continuous batching
// with chunked prefill over a paged KV cache with prefix caching, in virtual
// time.
//
// [Core] has no clock, no goroutine and no socket: the caller says what time it
// is. The HTTP server around it (workers/engine/simserver) passes the real
// clock, the fleet simulator a virtual one.
//
// Invariant: between calls every block is exactly one of free, cached and
// evictable, or used by at least one sequence; the KV events returned so far
// describe exactly the cached and used full blocks.
package sim

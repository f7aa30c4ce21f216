// Package sim is the pure core of the simulated engine: continuous batching
// with chunked prefill over a paged KV cache with prefix caching, in virtual
// time. It schedules, shares, evicts and preempts the way vLLM's V1 engine
// does, and takes the duration of a step from internal/timing.
//
// [Core] has no clock, no goroutine and no socket: the caller says what time it
// is. The HTTP server around it (workers/engine/simserver) passes the real
// clock, the fleet simulator a virtual one. The caller drives it so:
//
//	for {
//		t, ok := core.NextAt()
//		// wait until t, or for a call that changes something if !ok
//		out := core.Step(t)
//		// out.Tokens were generated at t, out.Events published at t
//	}
//
// Times given to one Core must not go backwards. A late caller loses nothing:
// Step(now) does everything that was due up to now at the time it was due, so
// that a real clock's lateness does not add up over the steps.
//
// A step starts when the one before ends, or when work arrives at an idle
// engine; what it decided is visible when it ends. Blocks are hashed when they
// are scheduled, as vLLM does it, so two requests with the same prompt that
// start in the same step share its blocks.
//
// Where Dynamo's simulated engine does otherwise than vLLM, and its results are to
// be reproduced, an option of [Config] says so: StepMs, EarlyEvents, EmptyFirst.
//
// Invariant: between calls every block is exactly one of free, cached and
// evictable, or used by at least one sequence. The KV events returned so far,
// and those of the running step that come when it ends, describe exactly the
// blocks that a request can hit; each of these has its parent among them.
//
// With [Config.HostBlocks] there is a second tier: what the device evicts goes
// there, and a prompt that continues there waits for its blocks to be brought back,
// as with vLLM's offloading connector, while the engine computes for others.
//
// The package models no speculative decoding and no priorities, and the tokens it
// generates mean nothing.
package sim

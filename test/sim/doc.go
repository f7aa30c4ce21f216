// Package sim is a fleet of simulated engines under a router, in virtual time:
// the production engine core (workers/engine/sim), index (kvindex) and picker
// (picker) over a recorded trace, and the routing rules of others
// (test/sim/policies) in the picker's place.
//
// [Run] plays one trace under one policy and returns what clients would have
// seen. Everything is decided by its [Config]: equal configurations give equal
// results, whatever the machine.
//
// The bar for trusting it is [Golden]: with Dynamo's step times, round robin and
// Dynamo's cost have to come out as in Dynamo's own replay of the same traces
// (test/data/dynamo-replay). Policies are compared with each other inside this
// simulator only.
//
// A trace has block hashes and no texts. Where the texts matter, [TextPlan] makes a
// workload of them, with bodies that clients write differently and the tokens that
// the engine's template and tokenizer make of them; [Reading] routes it on the path
// of production, by what agents learned.
//
// What it leaves out: the network between router and engines other than as a fixed
// lag, and clients that go away.
package sim

// Package policies holds the routing rules that the fleet simulator compares the
// picker with, one file a family: load only, hashing, Dynamo's cost, llm-d's
// scorers, rules of papers, learned latency, and one that knows everything.
//
// They follow the published descriptions of what each system computes, and are
// given what that system sees at its best: exact gauges without a scrape
// interval. Ties are broken at random by a seeded generator.
//
// Invariant: equal seeds and equal calls give equal picks.
//
// The picker itself is not among them: package sim drives the real one.
package policies

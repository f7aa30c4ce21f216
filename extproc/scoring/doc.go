// Package scoring asks custom scorers before an endpoint is chosen.
//
// A [Scorer] sees facts of the request and of its candidates, and answers with
// milliseconds to add to prices, or with candidates to rule out. One is compiled in
// by handing it to the picker's options (test/examples/scorer-compiled), one out of
// process answers gRPC ([Dial], test/examples/scorer-grpc).
//
// Invariant: a choice waits no longer than the longest deadline of a [Set], whatever
// its scorers do. A scorer that fails, is late, or answers nonsense has no say in
// that choice and is counted; one that keeps failing is not asked for a while, and
// costs nothing then.
//
// What it does not do: it has no registry, it does not choose, and it hands no prompt
// text to anybody.
package scoring

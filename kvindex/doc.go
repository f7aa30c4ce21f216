// Package kvindex knows which worker holds which KV-cache blocks.
//
// It has five parts. Identity ([BlockHash], [Namespace], [ChunkHasher]) names a
// block and a piece of prompt text. Records ([Record]) are what agents write to
// the log: stored and removed blocks, learned prefixes, load, bookings;
// [AppendRecord] is their binary form and [Cursor] the rules of their order. The
// [Index] answers, for a chain of block hashes, how many leading blocks each
// worker holds. The [PrefixMap] turns prompt text into that chain without a
// tokenizer: it remembers what engines reported for texts they have seen. [Approx]
// is a model of the cache of an engine that does not say what it holds.
//
// Invariant: for every owner the index holds exactly the blocks of its stored
// records less its removed ones since the last Cleared of its newest epoch; a
// record that does not follow its predecessor is refused with a [*GapError],
// never guessed around.
//
// The package takes values and returns values: no clock, no goroutine, no
// logger. Moving records between machines is the business of a [Log]:
// kvindex/memlog serves the embedded one. kvindex/enginewire decodes what
// engines publish.
package kvindex

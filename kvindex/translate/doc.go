// Package translate keeps, for one engine, which of our block hashes each of the
// engine's own block hashes stands for, which block comes before it, and in
// which tiers it lies.
//
// A [Map] serves one KV-cache group of one data-parallel rank. It is made for
// memory: a block with an 8-byte name takes 17 bytes in the order of arrival, where
// one bit says that its parent lies just before it, and 3 or 4 bytes in an index
// that is more than 90 % full at any size while it grows, so at most 22 bytes,
// whatever the tiers; what is rare (second copies, parents that came at another
// time) lies aside. Names of blocks that are gone are remembered for a while, because
// an engine may name such a block as a parent; they are at most [SpareShare] of the
// held ones plus [MinSpares].
//
// Invariant: a name stands for one block at a time, whatever the tiers; two names
// are the same only if all their bytes are. Copies are counted per tier.
//
// The package makes no records, knows no events, and is not safe for concurrent
// use. Nothing in the entries of 8-byte and 32-byte names is a pointer, so the
// garbage collector does not read them.
package translate

// Package translate keeps, for one engine, which of our block hashes each of the
// engine's own block hashes stands for, and in which tiers the block lies.
//
// A [Map] serves one KV-cache group of one data-parallel rank. It is made for
// memory: a block that lies in one tier once takes 16 bytes in a table that is
// between 84 and 92 % full at any size, so at most 20 bytes; what is rare
// (second copies, hashes that are not 8 bytes) costs more and lies aside. Names
// of blocks that are gone are remembered for a while, because an engine may name
// such a block as a parent; they are at most [SpareShare] of the held ones plus
// [MinSpares].
//
// [Parents] keeps in the same way which block comes before each held block.
//
// Invariant: a name stands for one block at a time, whatever the tiers; two names
// are the same only if all their bytes are. Copies are counted per tier.
//
// The package makes no records, knows no events, and is not safe for concurrent
// use. Nothing in a table is a pointer, so the garbage collector does not read it.
package translate

// Package listing is the form in which whoever holds a list of blocks shows it
// to people and to checks: the picker its index, an agent what its engine says
// it holds. It is JSON lines, one object each:
//
//	{"source":{"worker":"10.0.0.5:8000","kind":"dump","next":57}}
//	{"owner":{"worker":"10.0.0.5:8000","rank":0,"tier":"device","blocks":2}}
//	{"hashes":["00000000000000a1","00000000000000b2"]}
//	{"end":{"owners":1}}
//
// A source says where what follows comes from; a picker has none to name. The
// hashes after an owner are its blocks, in any number of lines. The last line is
// the end, so that a listing that was cut is told from a whole one.
//
// Invariant: writing takes memory for one line, whatever the number of blocks.
//
// It compares nothing (internal/verify does) and asks nobody.
package listing

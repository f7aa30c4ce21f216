// Package bpe is the tokenizer of the simulated engine: byte-level byte pair
// encoding with a vocabulary of 8,192 tokens trained on English technical
// prose, embedded in the binary.
//
// Text is cut into pre-tokens the way GPT-2 does (an optional space and
// letters, digits or punctuation; white space on its own; see [Split]), and
// each pre-token is merged greedily, the pair learned first merging first. Ids
// 0 to 255 are the bytes, then come the merges in the order they were learned,
// then the special tokens.
//
// Invariant: encoding loses nothing. Decode(Encode(s)) == s for every string,
// valid UTF-8 or not.
//
// The package does not know chat templates and does not normalize text. It is
// not the tokenizer of any published model, and kvlane never uses it to
// predict what such a model's tokenizer does.
package bpe

// Package openai reads the OpenAI-style HTTP surface that inference engines
// share: request bodies (what they ask for, which text they are about), answers
// (token ids, usage, text) and errors.
//
// Invariant: a body is never re-encoded. Requests and answers are read where
// they lie, and what has to change is spliced, so that every byte outside the
// changed members stays as the client or the engine wrote it: number spelling,
// escapes, white space, order and unknown members.
//
// A request's prompt is turned into one canonical byte stream per prompt (see
// [Request.Hashers]). Bodies that differ only in the order of keys, in white
// space or in how characters are escaped have equal streams, and the stream of
// a conversation's next turn begins with the stream of the turn before followed
// by its reply.
//
// The package does not tokenize, knows no chat template, does no I/O and judges
// only the members that routing needs: everything else is left to the engine.
package openai

// Package teach says what an engine's answer teaches about the text of its
// request: which tokens the prompt became, and that prompt and answer together
// are the beginning of the conversation's next turn.
//
// Invariant: a lesson states only what the engine reported. Where the text that
// the client got does not stand for exactly the generated ids, there is none.
//
// The package publishes nothing and keeps nothing: the agent (workers) and the
// fleet simulation (test/sim) do, with the same lessons.
package teach

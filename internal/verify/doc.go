// Package verify compares what pickers know of their workers' caches with what
// the engines say they hold.
//
//	picker ── /index/dump ──┐
//	                        ├─ compare ─> Report
//	agent ── /agent/content ┘  (asks its engine anew)
//
// An engine works on while it is compared. So each look asks the engine, then
// the pickers, then the engine again, and a block is a suspect only if it is
// missing in an index although the engine held it both times, or is there
// although the engine held it neither time. An index may also be a moment
// behind. So a suspect counts as a difference only if every look during the wait
// finds it.
//
// Invariant: a block that is wrong for longer than the wait is reported. Where an
// engine cannot say all that it holds, the report says "unverifiable" and why; it
// is never left out.
//
// Nothing is corrected here, and apart from probes, which are ordinary requests,
// nothing is changed.
package verify

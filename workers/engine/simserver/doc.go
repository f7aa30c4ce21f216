// Package simserver is an inference engine without a GPU: it speaks vLLM's HTTP
// surface, publishes vLLM's KV-cache events, hands KV from prefill to decode
// engines, and takes the time that a real deployment would take.
//
// The scheduling and the cache are workers/engine/sim's, run on the real clock
// times a speed factor; the tokenizer is workers/engine/bpe's; the generated
// text is a walk through common words, the same on every engine for the same
// prompt. Faults (crash, hang, slow steps, lost events, restart) are injected
// over /sim/fault from the same machine.
//
// Invariant: one goroutine owns the core. The KV events published so far, the
// dropped ones included, describe exactly the blocks that /sim/content lists.
//
// It computes nothing with a model and accepts no images or audio. Sampling
// parameters are checked as vLLM does; temperature and its kin do not change
// the text, a seed does.
package simserver

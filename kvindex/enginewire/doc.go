// Package enginewire reads and writes the KV-cache events that engines publish
// over ZMQ: msgpack batches of stored, removed and cleared blocks, and the
// frames of the replay protocol. [TRT] reads the JSON lists that TensorRT-LLM
// answers with when it is asked.
//
// [Decode] takes every shape that vLLM and SGLang have shipped: events as
// arrays of any length and as maps with a "type", hashes as signed or unsigned
// integers, byte strings or hex text, token ids flat or in pairs. [Encode]
// writes what vLLM 0.32 publishes, and the older array form.
//
// Invariant: every event of a batch ends up in exactly one of [Batch.Events],
// [Batch.Skipped] and [Batch.Bad] (one of TensorRT-LLM in several entries of the
// first two); a bad event never takes its neighbours with it. Decoding allocates no
// more than a fixed multiple of the payload's length and never panics.
//
// But for a TRT the package keeps no state: it does not resolve parents, does not
// translate hashes to [kvindex.BlockHash], does not look at sequence numbers and
// opens no socket. That is the agent's business.
package enginewire

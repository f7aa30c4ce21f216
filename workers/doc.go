// Package workers is the agent that runs beside one engine, and the collector that
// watches many without.
//
// It attaches to an engine or starts one, and does four things. It follows the
// engine's KV events, notices what was lost, and writes what the engine holds to
// the log. It proxies requests byte for byte, and on the way learns which token
// ids a text has. It counts what the engine has to do and reports that as load.
// And it does the prefill leg of a request on another worker when the picker
// says so.
//
// Identity. Engine hashes never leave the agent: events are translated into
// [kvindex.BlockHash] from token ids. Epoch is one life of the engine as this
// agent saw it begin, term the agent's own start, both in milliseconds of the wall
// clock. Sequence numbers start at term*1024 with a Cleared. So an agent that
// restarts needs no memory of its past; it empties the worker and rebuilds it from
// the replay socket. A clock set back over a restart makes the log refuse the new
// agent until the clock has passed the old one's start.
//
// Lost events. A gap in the numbers is filled from the engine's replay socket
// before the batch that revealed it is applied. What cannot be had makes the
// content doubtful: the agent publishes Cleared and builds up from what follows.
// A number that falls back with another payload, a replay that shows another
// past, a refused connection and a later process start are a new life: a new
// epoch, empty.
//
// Other engines. TensorRT-LLM is asked for its events, which it tells once: a hole
// in their numbers costs the rank's content. For an engine without events a model
// of its cache, made of the requests that pass and corrected by the cached tokens
// that it reports, is published in their place. Of hybrid models every KV-cache
// group is published under a number of its own, and Hello says what each needs.
//
// Engines without an agent are followed by a [Collector]: the same but for the
// proxy, and the load is what the engine's metrics page says.
//
// Invariants. One goroutine writes to the log. No request waits for the log.
// With no request in flight, every load figure is 0. The engine sees no header
// that steers, and of a body's bytes only return_token_ids and
// kv_transfer_params change.
//
// The package does not choose workers, holds no prompt text longer than its
// request, and keeps nothing on disk. Continuing a stream on another worker after
// an engine's death is not built yet: the client gets an error event.
package workers

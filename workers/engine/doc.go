// Package engine reads what an engine says about itself over HTTP: its models,
// its health, and the figures of its metrics page that the agent reports.
//
// vllm.go reads vLLM and the simulated engine, which speaks the same surface;
// metrics.go knows the names of SGLang and TensorRT-LLM too.
//
// Invariant: a figure that the engine does not give is unknown (-1 or zero as
// documented), never guessed. No page can make the reader use more memory than
// its limit.
//
// The package sends no requests of clients (package workers proxies them) and
// reads no KV events (kvindex/enginewire decodes them).
package engine

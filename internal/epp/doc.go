// Package epp is the endpoint picker as a process: it joins the log, the index,
// the pool, the ext_proc server and the admin page, and runs them.
//
//	agents ── log (9004) ── follower ──> index, prefix map, pool
//	Envoy ─── ext_proc (9002) ── router ──┘
//
// Invariant: a part that fails ends the process with one error that names it,
// and every other part is stopped before Run returns. Each part's code is in
// its own package; nothing is decided here.
package epp

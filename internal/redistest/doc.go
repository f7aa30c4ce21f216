// Package redistest runs real redis-server processes for tests: one node, three
// nodes of a cluster, a master with a replica and a Sentinel, over TLS, with a
// password, and a proxy that delays, stalls, refuses and cuts.
//
// Every server has its own port (internal/porttest), its own directory, listens on
// loopback only, writes nothing to disk unless asked to, and is killed when its
// test ends. A test whose machine has no redis-server fails: it says what to
// install.
package redistest

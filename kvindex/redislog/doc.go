// Package redislog is the log in Redis: agents and pickers that talk to the same
// Redis (or Valkey) server, Sentinel group or Cluster share one pool's records.
//
// [Log] is a kvindex.Log. All keys of a pool begin with "kvlane:1:{pool}:", where
// 1 is the format's version; the braces put them into one slot of a cluster, so
// that a script may use several. Nothing ever scans the keyspace, and no command
// is larger than about half a megabyte.
//
//	log         hash: id of this log, per shard the last entry and the bytes so far
//	e:<shard>   stream: what workers write in order (Hello, Stored, Removed,
//	            Cleared, Learned, Bye), several records to an entry; and the ends of
//	            leases
//	now         stream of the last seconds: Load and Booking
//	reg         sorted set: shard digit and worker, by the end of its lease
//	hello       hash: each worker's last Hello
//	c:<worker>  hash: the worker's place in its sequences, and its snapshot's
//	s:<generation>:<worker>  list: the snapshot's parts
//	wm:<shard>  sorted set: worker, by the time of its snapshot
//	l:<n>       lists: the learned texts, a ring of 16
//
// A writer judges its records with kvindex.Cursor against the state that it knows
// of its worker; a script writes them only if that state is still the one in Redis
// (a token that every write changes), else it returns the present one and the
// writer judges again. So the rules of the log are those of kvindex.Cursor, in one
// place, and two writers of one name cannot both be right.
//
// Every entry of a shard names the entry before it. A reader that finds another
// one than it read last has missed something (Redis was emptied, failed over to an
// older copy, or trimmed what it had not read yet), and reads the present state
// anew. It then goes on; [Log.Tail] ends only with its context or with the error
// of its caller.
//
// Invariant: for every owner, the snapshot and the entries behind the snapshot's
// mark give what the writer held at its last accepted record, and no entry behind
// the oldest mark of a living worker is trimmed, except that a worker which made no
// snapshot for MaxAge loses its place and has to write all anew.
//
// It needs Redis 6.2 or later, or Valkey, with room for what it keeps and without
// eviction (maxmemory-policy noeviction).
//
// It does not retry an Append (the caller knows what has become stale), does not
// know what a worker holds (the writer gives its content when [Log.CheckpointDue]
// says so), and never makes anybody wait who only picks.
package redislog

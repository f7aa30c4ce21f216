package redislog

import (
	"hash/fnv"
	"strconv"

	"github.com/kvlane/kvlane/kvindex"
)

// Parts of the format; another number is another format.
const (
	formatVersion = 1
	shards        = 4
	learnedRing   = 16
)

// keys makes the names of a pool's keys.
type keys struct{ prefix string }

func newKeys(prefix, pool string) keys {
	return keys{prefix + ":" + strconv.Itoa(formatVersion) + ":{" + pool + "}:"}
}

func (k keys) log() string                      { return k.prefix + "log" }
func (k keys) now() string                      { return k.prefix + "now" }
func (k keys) registry() string                 { return k.prefix + "reg" }
func (k keys) hellos() string                   { return k.prefix + "hello" }
func (k keys) events(shard int) string          { return k.prefix + "e:" + strconv.Itoa(shard) }
func (k keys) learned(segment int) string       { return k.prefix + "l:" + strconv.Itoa(segment) }
func (k keys) cursor(w kvindex.WorkerID) string { return k.prefix + "c:" + string(w) }

// snapshot is unambiguous although a worker's name may have colons: a generation
// has none.
func (k keys) snapshot(generation string, w kvindex.WorkerID) string {
	return k.prefix + "s:" + generation + ":" + string(w)
}

// shardOf spreads the workers over the event streams.
func shardOf(w kvindex.WorkerID) int {
	h := fnv.New32a()
	_, _ = h.Write([]byte(w)) // never fails
	return int(h.Sum32() % shards)
}

package sim

import (
	"container/list"
	"slices"
	"time"

	"github.com/kvlane/kvlane/kvindex"
)

// Entry is one request of a trace.
type Entry struct {
	// At is the arrival at speed 1, from the start of the trace.
	At       time.Duration
	ISL, OSL int // tokens, at least 1
	// Blocks are the hashes of the prompt's full blocks.
	Blocks []kvindex.BlockHash
	// Tenant and Priority are the client's: the higher goes first. Only queues look at
	// them.
	Tenant   string
	Priority int
	// Answer are those of the blocks after them that prompt and answer fill, where
	// they are known; else nobody shares them.
	Answer []kvindex.BlockHash
}

// Trace is a recorded workload.
type Trace struct {
	Name string
	// BlockSize is in tokens.
	BlockSize int
	Entries   []Entry // by arrival
}

// spread makes a hash of a trace's small number: indexes expect hashes (the
// finalizer of splitmix64).
func spread(id uint64) kvindex.BlockHash {
	x := id + 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return kvindex.BlockHash(x ^ x>>31)
}

// Bounds are hit rates that no routing can beat, 0 to 1.
type Bounds struct {
	// Ideal is with a cache that never evicts; Pooled with one least-recently-used
	// cache of all workers' blocks together, without duplicates.
	Ideal, Pooled float64
}

// Bounds are the trace's for a pool of so many blocks.
func (t Trace) Bounds(blocks int) Bounds {
	return Bounds{Ideal: t.hitRate(0), Pooled: t.hitRate(blocks)}
}

// hitRate is the share of prompt tokens that one cache of so many blocks (0: no
// limit) would have held, requests one after the other.
func (t Trace) hitRate(blocks int) float64 {
	hits, tokens := 0, 0
	recent := list.New() // most recently used first
	place := map[kvindex.BlockHash]*list.Element{}
	for _, e := range t.Entries {
		tokens += e.ISL
		n := 0
		for most := (e.ISL - 1) / t.BlockSize; n < most && place[e.Blocks[n]] != nil; {
			n++
		}
		hits += n * t.BlockSize
		for _, b := range slices.Backward(slices.Concat(e.Blocks, e.Answer)) { // the first block ends up most recent
			if at := place[b]; at != nil {
				recent.MoveToFront(at)
				continue
			}
			place[b] = recent.PushFront(b)
		}
		for blocks > 0 && recent.Len() > blocks {
			last := recent.Back()
			delete(place, recent.Remove(last).(kvindex.BlockHash)) //nolint:forcetypeassert // nothing else is in it
		}
	}
	if tokens == 0 {
		return 0
	}
	return float64(hits) / float64(tokens)
}

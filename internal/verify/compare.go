package verify

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/kvlane/kvlane/kvindex"
	"github.com/kvlane/kvlane/kvindex/listing"
)

// content is what each owner holds, sorted, each block once.
type content map[kvindex.Owner][]kvindex.BlockHash

// contentOf sorts what a listing says of one worker.
func contentOf(l *listing.Listing, worker kvindex.WorkerID) content {
	c := content{}
	for i := range l.Owners {
		if o := &l.Owners[i]; o.Worker == worker {
			slices.Sort(o.Hashes)
			c[o.Owner.Owner] = slices.Compact(o.Hashes)
		}
	}
	return c
}

// look is one comparison of an owner.
type look struct {
	owner kvindex.Owner
	// index and engine count blocks, engine at the second question; moving are
	// those that the engine held only once, which prove nothing.
	index, engine, moving int
	// missing: the engine held them and the index did not; extra: the other way
	// round. Sorted.
	missing, extra []kvindex.BlockHash
}

// compare looks at every owner that anybody names, sorted.
func compare(before, index, after content) []look {
	owners := map[kvindex.Owner]bool{}
	for _, c := range []content{before, index, after} {
		for o := range c {
			owners[o] = true
		}
	}
	var out []look
	for _, o := range slices.SortedFunc(maps.Keys(owners), compareOwners) {
		both := intersect(before[o], after[o])
		either := union(before[o], after[o])
		out = append(out, look{
			owner: o, index: len(index[o]), engine: len(after[o]), moving: len(either) - len(both),
			missing: subtract(both, index[o]), extra: subtract(index[o], either),
		})
	}
	return out
}

func compareOwners(a, b kvindex.Owner) int {
	return cmp.Or(cmp.Compare(a.Worker, b.Worker), cmp.Compare(a.Rank, b.Rank), cmp.Compare(a.Tier, b.Tier))
}

// wrong is when each wrong block of an owner was first seen so, without a look
// since that found it right.
type wrong map[kvindex.Owner]map[kvindex.BlockHash]time.Time

// suspects are the blocks that the last look found wrong.
type suspects struct{ missing, extra wrong }

// keep takes in a look and returns since when the oldest suspect is one; false if
// there are none.
func (s *suspects) keep(looks []look, now time.Time) (oldest time.Time, found bool) {
	missing, extra := wrong{}, wrong{}
	oldest = now
	for _, l := range looks {
		for _, of := range []struct {
			blocks   []kvindex.BlockHash
			old, new wrong
		}{{l.missing, s.missing, missing}, {l.extra, s.extra, extra}} {
			if len(of.blocks) == 0 {
				continue
			}
			found = true
			since := make(map[kvindex.BlockHash]time.Time, len(of.blocks))
			for _, h := range of.blocks {
				at, seen := of.old[l.owner][h]
				if !seen {
					at = now
				}
				since[h] = at
				if at.Before(oldest) {
					oldest = at
				}
			}
			of.new[l.owner] = since
		}
	}
	s.missing, s.extra = missing, extra
	return oldest, found
}

// before lists an owner's blocks that are wrong since a moment or longer, sorted.
func (w wrong) before(o kvindex.Owner, moment time.Time) []kvindex.BlockHash {
	var out []kvindex.BlockHash
	for h, since := range w[o] {
		if !since.After(moment) {
			out = append(out, h)
		}
	}
	slices.Sort(out)
	return out
}

// The sets below are sorted and without repeats.

// merge walks two sets and calls keep with each element and where it is.
func merge(a, b []kvindex.BlockHash, keep func(h kvindex.BlockHash, inA, inB bool)) {
	for len(a) > 0 || len(b) > 0 {
		switch {
		case len(b) == 0 || len(a) > 0 && a[0] < b[0]:
			keep(a[0], true, false)
			a = a[1:]
		case len(a) == 0 || b[0] < a[0]:
			keep(b[0], false, true)
			b = b[1:]
		default:
			keep(a[0], true, true)
			a, b = a[1:], b[1:]
		}
	}
}

func intersect(a, b []kvindex.BlockHash) []kvindex.BlockHash {
	var out []kvindex.BlockHash
	merge(a, b, func(h kvindex.BlockHash, inA, inB bool) {
		if inA && inB {
			out = append(out, h)
		}
	})
	return out
}

func union(a, b []kvindex.BlockHash) []kvindex.BlockHash {
	out := make([]kvindex.BlockHash, 0, max(len(a), len(b)))
	merge(a, b, func(h kvindex.BlockHash, _, _ bool) { out = append(out, h) })
	return out
}

func subtract(a, b []kvindex.BlockHash) []kvindex.BlockHash {
	var out []kvindex.BlockHash
	merge(a, b, func(h kvindex.BlockHash, inA, inB bool) {
		if inA && !inB {
			out = append(out, h)
		}
	})
	return out
}

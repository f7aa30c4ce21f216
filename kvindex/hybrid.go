package kvindex

import (
	"maps"
	"sync/atomic"
)

// Hybrid models keep several groups of blocks: some layers attend to the whole
// prompt, others to a window of it or to a state. A prefix is of use only where
// every group has what it needs (see [GroupKind]); the longest such prefix is what
// the engine reports as cached. The index keeps group 0 in runs; of the other
// groups each owner has a set of blocks. A query first finds how far group 0
// reaches and then, only for workers whose Hello says that there is more to it,
// looks for the longest prefix within that. This is the rule of vLLM's
// coordinator of hybrid caches.

// groupIndex is what an index knows of workers with more than one group. Readers
// load workers; only the index's writer changes anything.
type groupIndex struct {
	workers atomic.Pointer[map[WorkerID]*workerGroups]
}

// workerGroups is one such worker.
type workerGroups struct {
	term  uint64
	specs atomic.Pointer[groupRules]
	ranks atomic.Pointer[map[uint16]*rankGroups]
}

// rankGroups are the sets of a rank by group number and tier; nil for group 0.
type rankGroups struct {
	sets atomic.Pointer[[]*[NumTiers]blockSet]
}

// of is the worker's entry, made if need be.
func (g *groupIndex) of(w WorkerID) *workerGroups {
	old := g.workers.Load()
	if old != nil {
		if wg := (*old)[w]; wg != nil {
			return wg
		}
	}
	next := make(map[WorkerID]*workerGroups)
	if old != nil {
		maps.Copy(next, *old)
	}
	wg := &workerGroups{}
	next[w] = wg
	g.workers.Store(&next)
	return wg
}

// find is the worker's entry or nil.
func (g *groupIndex) find(w WorkerID) *workerGroups {
	if all := g.workers.Load(); all != nil {
		return (*all)[w]
	}
	return nil
}

// hello takes a worker's groups.
func (g *groupIndex) hello(r *Record) {
	specs := rules(r.Hello)
	wg := g.find(r.Owner.Worker)
	if wg == nil && specs == nil {
		return
	}
	if wg == nil {
		wg = g.of(r.Owner.Worker)
	}
	if r.Term < wg.term {
		return
	}
	wg.term = r.Term
	wg.specs.Store(specs)
}

// drop forgets a worker.
func (g *groupIndex) drop(w WorkerID) {
	if g.find(w) == nil {
		return
	}
	next := make(map[WorkerID]*workerGroups)
	for k, v := range *g.workers.Load() {
		if k != w {
			next[k] = v
		}
	}
	if len(next) == 0 {
		g.workers.Store(nil)
		return
	}
	g.workers.Store(&next)
}

// set is the set of an owner's group; where there is none it is made, if create is
// set, or nil.
func (g *groupIndex) set(o Owner, group uint16, create bool) *blockSet {
	wg := g.find(o.Worker)
	if wg == nil {
		if !create {
			return nil
		}
		wg = g.of(o.Worker)
	}
	ranks := wg.ranks.Load()
	var rank *rankGroups
	if ranks != nil {
		rank = (*ranks)[o.Rank]
	}
	if rank == nil {
		if !create {
			return nil
		}
		rank = &rankGroups{}
		next := map[uint16]*rankGroups{o.Rank: rank}
		if ranks != nil {
			maps.Copy(next, *ranks)
		}
		wg.ranks.Store(&next)
	}
	sets := rank.sets.Load()
	if sets == nil || int(group) >= len(*sets) || (*sets)[group] == nil {
		if !create {
			return nil
		}
		next := make([]*[NumTiers]blockSet, group+1)
		if sets != nil {
			next = make([]*[NumTiers]blockSet, max(len(*sets), int(group)+1))
			copy(next, *sets)
		}
		next[group] = new([NumTiers]blockSet)
		rank.sets.Store(&next)
		sets = &next
	}
	return &(*sets)[group][o.Tier]
}

// empty takes all groups' blocks from an owner.
func (g *groupIndex) empty(o Owner) {
	for s := range g.sets(o) {
		s.clear()
	}
}

// sets yields an owner's sets.
func (g *groupIndex) sets(o Owner) func(yield func(*blockSet) bool) {
	return func(yield func(*blockSet) bool) {
		wg := g.find(o.Worker)
		if wg == nil || wg.ranks.Load() == nil {
			return
		}
		rank := (*wg.ranks.Load())[o.Rank]
		if rank == nil || rank.sets.Load() == nil {
			return
		}
		for _, s := range *rank.sets.Load() {
			if s != nil && !yield(&s[o.Tier]) {
				return
			}
		}
	}
}

// bytes is what the sets take.
func (g *groupIndex) bytes() int {
	n := 0
	all := g.workers.Load()
	if all == nil {
		return 0
	}
	for _, wg := range *all {
		ranks := wg.ranks.Load()
		if ranks == nil {
			continue
		}
		for _, rank := range *ranks {
			sets := rank.sets.Load()
			if sets == nil {
				continue
			}
			for _, tiers := range *sets {
				for t := range NumTiers {
					if tiers == nil || tiers[t].table.Load() == nil {
						continue
					}
					n += 8*len(*tiers[t].table.Load()) + 32*len(tiers[t].more)
				}
			}
		}
	}
	return n
}

// groupRecord takes a record about another group than 0.
func (x *Index) groupRecord(r *Record) bool {
	switch {
	case r.Kind == KindStored && r.Stored.Group > 0:
		s := x.groups.set(r.Owner, r.Stored.Group, true)
		for _, h := range r.Stored.Hashes {
			s.add(h)
		}
	case r.Kind == KindRemoved && r.Removed.Group > 0:
		s := x.groups.set(r.Owner, r.Removed.Group, false)
		for _, h := range r.Removed.Hashes {
			if s == nil || !s.remove(h) {
				x.stats.UnknownRemoved++
			}
		}
	default:
		return false
	}
	return true
}

// trim shortens the matches of workers with groups to what all groups agree on,
// and takes away those of which nothing is left.
func (g *groupIndex) trim(chain []BlockHash, dst []Match, base int) []Match {
	all := g.workers.Load()
	if all == nil {
		return dst
	}
	for i := len(dst) - 1; i >= base; i-- {
		m := &dst[i]
		wg := (*all)[m.Worker]
		if wg == nil {
			continue
		}
		rules := wg.specs.Load()
		if rules == nil {
			continue
		}
		c := coverage{chain: chain}
		if ranks := wg.ranks.Load(); ranks != nil {
			if rank := (*ranks)[m.Rank]; rank != nil {
				if sets := rank.sets.Load(); sets != nil {
					c.sets = *sets
				}
			}
		}
		for t := range Tier(NumTiers) {
			c.tier, c.full = t, int(m.Depth[t])
			if t > 0 && m.Depth[t] == m.Depth[t-1] && m.Depth[t] == 0 {
				continue
			}
			m.Depth[t] = uint32(rules.hit(&c))
		}
		for t := 1; t < NumTiers; t++ { // more tiers never have less
			m.Depth[t] = max(m.Depth[t], m.Depth[t-1])
		}
		if m.Depth[NumTiers-1] == 0 {
			dst[i] = dst[len(dst)-1]
			dst = dst[:len(dst)-1]
		}
	}
	return dst
}

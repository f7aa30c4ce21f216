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
//
// Under a memory budget the sets have a quarter of it. When half of that is in use, the
// largest sets begin anew and keep what they had as old; when all is in use, what is
// old for longest is forgotten. So of each large set the older part goes first,
// whatever it is: which of its blocks queries need is not known.

// groupIndex is what an index knows of workers with more than one group. Readers
// load workers; only the index's writer changes anything.
type groupIndex struct {
	workers atomic.Pointer[map[WorkerID]*workerGroups]
	limit   int // bytes of all sets, 0 for none
	turns   uint64
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
		if wg := g.find(o.Worker); wg != nil {
			for rank, tiers := range wg.all() {
				if rank == o.Rank && !yield(&tiers[o.Tier]) {
					return
				}
			}
		}
	}
}

// all yields the sets of each of the worker's ranks and groups.
func (wg *workerGroups) all() func(yield func(uint16, *[NumTiers]blockSet) bool) {
	return func(yield func(uint16, *[NumTiers]blockSet) bool) {
		ranks := wg.ranks.Load()
		if ranks == nil {
			return
		}
		for n, rank := range *ranks {
			sets := rank.sets.Load()
			if sets == nil {
				continue
			}
			for _, tiers := range *sets {
				if tiers != nil && !yield(n, tiers) {
					return
				}
			}
		}
	}
}

// everySet yields all sets.
func (g *groupIndex) everySet() func(yield func(*blockSet) bool) {
	return func(yield func(*blockSet) bool) {
		workers := g.workers.Load()
		if workers == nil {
			return
		}
		for _, wg := range *workers {
			for _, tiers := range wg.all() {
				for t := range tiers {
					if !yield(&tiers[t]) {
						return
					}
				}
			}
		}
	}
}

// bytes is what the sets take.
func (g *groupIndex) bytes() int {
	n := 0
	for s := range g.everySet() {
		n += s.bytes()
	}
	return n
}

// oldest is the set whose old part is old for longest; nil if there are no old parts.
func (g *groupIndex) oldest() (first *blockSet) {
	for s := range g.everySet() {
		if s.old.bytes() > 0 && (first == nil || s.turned < first.turned) {
			first = s
		}
	}
	return first
}

// largest is the set with the largest young part among those without an old one, or
// among all; nil if there is none.
func (g *groupIndex) largest(all bool) (most *blockSet) {
	size := 0
	for s := range g.everySet() {
		if n := s.young.bytes(); n > size && (all || s.old.bytes() == 0) {
			most, size = s, n
		}
	}
	return most
}

// room forgets until the sets may take so many bytes more, and returns how many
// blocks that cost.
func (g *groupIndex) room(more, limit int) (forgotten uint64) {
	used := g.bytes() + more
	if s := g.largest(false); s != nil && used > limit/2 {
		g.turns++
		s.turned = g.turns
		s.turn()
	}
	for used > limit {
		s, young := g.oldest(), false
		if s == nil {
			s, young = g.largest(true), true
		}
		if s == nil {
			break
		}
		part := &s.old
		if young {
			part = &s.young
		}
		before := s.bytes()
		forgotten += uint64(s.forget(part))
		used -= before - s.bytes()
	}
	return forgotten
}

// minGroupBytes is what groups may take in any case: those of a worker that comes
// when all memory is in use.
const minGroupBytes = 64 << 10

// groupRoom sees that a set may take its next block within the budget.
func (x *Index) groupRoom(s *blockSet) {
	if x.limit == 0 {
		return
	}
	if x.groups.limit == 0 { // the first one
		x.groups.limit = x.limit / 4
		x.arena.limit = x.limit - x.groups.limit
	}
	if size := s.grows(); size > 0 {
		limit := max(minGroupBytes, min(x.groups.limit, x.limit-x.arena.reserved))
		x.stats.Forgotten += x.groups.room(8*size-s.young.bytes(), limit)
	}
}

// groupRecord takes a record about another group than 0.
func (x *Index) groupRecord(r *Record) bool {
	switch {
	case r.Kind == KindStored && r.Stored.Group > 0:
		s := x.groups.set(r.Owner, r.Stored.Group, true)
		for _, h := range r.Stored.Hashes {
			x.groupRoom(s)
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

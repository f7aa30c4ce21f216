package kvindex

import (
	"fmt"
	"strconv"
	"strings"
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

// maxSpecGroups bounds the different kinds of groups of a worker; engines have two
// to four.
const maxSpecGroups = 16

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

// groupRules are a Hello's groups as queries use them: those that need the same
// are one, full attention first. Lengths are in the worker's blocks.
type groupRules struct {
	list   []groupRule
	align  int // a prefix is a multiple of it: of every group's blocks
	eagle  bool
	simple bool // one of full attention and one other
}

type groupRule struct {
	kind   GroupKind
	ratio  int // the group's block in the worker's blocks
	window int // in the group's blocks: of a window what must be there before the end, of a chunk its length
	groups []uint16
}

// rules makes the rules of a Hello; nil if a prefix is simply what group 0 holds.
func rules(h *Hello) *groupRules {
	r := &groupRules{align: 1, eagle: h.Eagle}
	add := func(g GroupSpec, number uint16) {
		ratio := 1
		if g.BlockSize > 0 && h.BlockSize > 0 {
			ratio = int(g.BlockSize / h.BlockSize)
		}
		if g.Kind >= GroupUnused || ratio < 1 || h.BlockSize > 0 && g.BlockSize%h.BlockSize != 0 {
			return
		}
		rule := groupRule{kind: g.Kind, ratio: ratio, groups: []uint16{number}}
		tokens := max(1, int(h.BlockSize)*ratio)
		switch g.Kind {
		case GroupWindow:
			rule.window = (max(int(g.Window), 1) - 1 + tokens - 1) / tokens
		case GroupChunk:
			rule.window = max(1, int(g.Window)/tokens)
		default:
		}
		for i := range r.list {
			if o := &r.list[i]; o.kind == rule.kind && o.ratio == ratio && o.window == rule.window {
				o.groups = append(o.groups, number)
				return
			}
		}
		if len(r.list) == maxSpecGroups {
			return
		}
		r.align = r.align / gcd(r.align, ratio) * ratio
		r.list = append(r.list, rule)
	}
	add(GroupSpec{}, 0)
	for n, g := range h.Groups {
		if n > 0 && g.Kind == GroupFull {
			add(g, uint16(n))
		}
	}
	for n, g := range h.Groups {
		if n > 0 && g.Kind != GroupFull {
			add(g, uint16(n))
		}
	}
	r.simple = len(r.list) == 2 && r.list[1].kind != GroupFull
	if !r.eagle && len(r.list) == 1 && len(r.list[0].groups) == 1 {
		return nil
	}
	return r
}

func gcd(a, b int) int {
	for b > 0 {
		a, b = b, a%b
	}
	return a
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
		for k, v := range *old {
			next[k] = v
		}
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
			for k, v := range *ranks {
				next[k] = v
			}
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

// coverage is what a rank holds of a chain in a tier or a faster one.
type coverage struct {
	chain []BlockHash
	sets  []*[NumTiers]blockSet
	tier  Tier
	full  int // what group 0 holds of the beginning
}

// has reports whether all of the rule's groups hold their i-th block; of group 0
// that is known by full.
func (c *coverage) has(r *groupRule, i int) bool {
	end := (i + 1) * r.ratio
	h := c.chain[end-1]
	for _, g := range r.groups {
		if g == 0 {
			if end > c.full {
				return false
			}
			continue
		}
		if int(g) >= len(c.sets) || c.sets[g] == nil {
			return false
		}
		held := false
		for t := Tier(0); t <= c.tier && !held; t++ {
			held = c.sets[g][t].has(h)
		}
		if !held {
			return false
		}
	}
	return true
}

// hit is the longest prefix, in blocks, that every group has what it needs of.
// Each rule takes the candidate or lowers it, until all take it. With EAGLE a
// group must hold one block more, which is computed anew.
func (r *groupRules) hit(c *coverage) int {
	limit := len(c.chain)
	var found [maxSpecGroups]int
	for i := range found {
		found[i] = -1
	}
	verified, hit := uint32(0), limit
	for {
		now := hit
		for i := range r.list {
			g := &r.list[i]
			if g.kind == GroupFull && found[i] >= 0 { // every part of a prefix is one
				now = min(now, found[i])
				continue
			}
			drop := r.eagle && verified&(1<<i) == 0
			most := now
			if drop && g.kind != GroupState {
				most = min(now+g.ratio, limit)
			}
			n := c.find(g, most, drop, r.align)
			if drop {
				verified |= 1 << i
			} else if n < now {
				verified = 0
			}
			now, found[i] = n, n
		}
		if now >= hit {
			return hit
		}
		hit = now
		if r.simple || hit == 0 {
			return hit
		}
	}
}

// find is the longest prefix of at most so many blocks that suits one rule.
func (c *coverage) find(g *groupRule, most int, drop bool, align int) int {
	n := most / g.ratio
	switch g.kind {
	case GroupState:
		for ; n > 0; n-- {
			if n*g.ratio%align == 0 && c.has(g, n-1) {
				break
			}
		}
		return n * g.ratio
	case GroupWindow:
		return c.findWindow(g, n, drop, align)
	case GroupChunk:
		at := n / g.window * g.window
		for at < n && c.has(g, at) {
			at++
		}
		return at * g.ratio
	default:
	}
	at := 0
	for at < n && c.has(g, at) {
		at++
	}
	if drop && at > 0 {
		at--
	}
	return at * g.ratio / align * align
}

// findWindow looks from the end for as many blocks in a row as the window needs,
// ending at a multiple of align; fewer do at the beginning of the prompt.
func (c *coverage) findWindow(g *groupRule, n int, drop bool, align int) int {
	need, dropped := g.window, 0
	if drop {
		need, dropped = need+1, 1
	}
	row, end := 0, 0 // blocks in a row, and the number after the last of them
	for i := n - 1; i >= 0; i-- {
		if !c.has(g, i) {
			row = 0
			continue
		}
		if row == 0 {
			if (i+1-dropped)*g.ratio%align != 0 {
				continue
			}
			end = i + 1
		}
		row++
		if row >= need {
			return c.settle(g, end, dropped, align)
		}
	}
	return c.settle(g, row, dropped, align)
}

// settle takes off the block that is dropped, and what is over a multiple of align.
func (c *coverage) settle(g *groupRule, n, dropped, align int) int {
	n = max(0, n-dropped)
	for n*g.ratio%align != 0 {
		n--
	}
	return n * g.ratio
}

// blockSet is a set of hashes for one writer and readers without a lock. A reader
// that runs beside a change sees it or not. The hashes 0 and 1 are never in it.
type blockSet struct {
	table atomic.Pointer[[]atomic.Uint64]
	n     int                  // of the hashes in it
	dirty int                  // slots that are not 0
	more  map[BlockHash]uint32 // copies beyond the first
}

// gone marks a slot whose hash was removed.
const gone = 1

func (s *blockSet) has(h BlockHash) bool {
	t := s.table.Load()
	if t == nil || h <= gone {
		return false
	}
	_, ok := probe(*t, h)
	return ok
}

// probe finds a hash, or the slot for it: the first that is free on its way.
func probe(t []atomic.Uint64, h BlockHash) (slot int, ok bool) {
	mask, free := len(t)-1, -1
	for i := int(uint64(h)*0x9e3779b97f4a7c15>>32) & mask; ; i = (i + 1) & mask {
		switch v := t[i].Load(); {
		case v == uint64(h):
			return i, true
		case v == 0:
			if free < 0 {
				free = i
			}
			return free, false
		case v == gone && free < 0:
			free = i
		}
	}
}

func (s *blockSet) add(h BlockHash) {
	if h <= gone {
		return
	}
	t := s.table.Load()
	if t == nil || 4*(s.dirty+1) > 3*len(*t) {
		t = s.rebuild()
	}
	i, ok := probe(*t, h)
	if ok {
		if s.more == nil {
			s.more = make(map[BlockHash]uint32)
		}
		s.more[h]++
		return
	}
	if (*t)[i].Load() == 0 {
		s.dirty++
	}
	(*t)[i].Store(uint64(h))
	s.n++
}

// remove reports whether there was a copy.
func (s *blockSet) remove(h BlockHash) bool {
	t := s.table.Load()
	if t == nil || h <= gone {
		return false
	}
	i, ok := probe(*t, h)
	switch {
	case !ok:
		return false
	case s.more[h] > 1:
		s.more[h]--
	case s.more[h] == 1:
		delete(s.more, h)
	default:
		(*t)[i].Store(gone)
		s.n--
	}
	return true
}

// rebuild makes a table with room, in which nothing is gone.
func (s *blockSet) rebuild() *[]atomic.Uint64 {
	size := 16
	for 2*(s.n+1) > size {
		size *= 2
	}
	next := make([]atomic.Uint64, size)
	for h := range s.all() {
		i, _ := probe(next, h)
		next[i].Store(uint64(h))
	}
	s.dirty = s.n
	s.table.Store(&next)
	return &next
}

func (s *blockSet) clear() {
	s.table.Store(nil)
	s.n, s.dirty, s.more = 0, 0, nil
}

func (s *blockSet) all() func(yield func(BlockHash) bool) {
	return func(yield func(BlockHash) bool) {
		t := s.table.Load()
		if t == nil {
			return
		}
		for i := range *t {
			if v := (*t)[i].Load(); v > gone && !yield(BlockHash(v)) {
				return
			}
		}
	}
}

// ParseGroups reads groups as operators write them, in the engine's order and
// separated by commas: the kind, after a colon the window or chunk in tokens, after
// another one the block size: "full,window:128,state::528".
func ParseGroups(s string) ([]GroupSpec, error) {
	if s == "" {
		return nil, nil
	}
	var list []GroupSpec
	for _, word := range strings.Split(s, ",") {
		fields := strings.Split(word, ":")
		g := GroupSpec{Kind: GroupUnused + 1}
		for k := GroupFull; k <= GroupUnused; k++ {
			if k.String() == fields[0] {
				g.Kind = k
			}
		}
		if g.Kind > GroupUnused || len(fields) > 3 {
			return nil, fmt.Errorf("group %q: want full, window:TOKENS, chunk:TOKENS, state or unused, each with :BLOCKSIZE if it has its own", word)
		}
		for i, text := range fields[1:] {
			if text == "" {
				continue
			}
			n, err := strconv.ParseUint(text, 10, 31)
			if err != nil {
				return nil, fmt.Errorf("group %q: %q is no number of tokens", word, text)
			}
			if i == 0 {
				g.Window = uint32(n)
			} else {
				g.BlockSize = uint32(n)
			}
		}
		if (g.Kind == GroupWindow || g.Kind == GroupChunk) && g.Window == 0 {
			return nil, fmt.Errorf("group %q: how many tokens is it long?", word)
		}
		list = append(list, g)
	}
	return list, nil
}

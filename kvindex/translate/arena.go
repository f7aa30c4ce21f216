package translate

import (
	"iter"
	"unsafe"

	"github.com/kvlane/kvlane/kvindex"
)

// An arena's entries lie in chunks, so that it grows without being copied. It is
// copied in order when less than minUsed of its places are in use.
const (
	chunkEntries = 512
	minUsed      = 0.75
	// asideShare is how many entries there are for one whose parent lies aside before
	// they are put in order, and minAside how many such are left in any case.
	asideShare = 16
	minAside   = 256
)

// The bits of an entry's flags: the lowest are the tiers with a copy, those of root the
// number of a common parent, 0 for none of them.
const (
	// known: the place is in use.
	known = 1 << 7
	// before: the entry at the place before holds the parent.
	before = 1 << 6
	inTier = 1<<kvindex.NumTiers - 1
	root   = before - 1 - inTier
)

// numRoots parents have numbers: as a rule the roots of the prompts of the base model
// and of its busiest adapters.
const (
	rootBit  = kvindex.NumTiers
	numRoots = root >> rootBit
)

// none is no place.
const none = ^uint32(0)

// name is a key: comparable, with an order that spreads evenly over 64 bits. Keys
// in use have different orders almost always.
type name interface {
	comparable
	order() uint64
}

// chunk holds chunkEntries entries, by column: each is then of a size that the
// allocator does not round up.
type chunk[K name] struct {
	keys   []K
	blocks []uint64
	flags  []uint8
}

// copyOf is a name in a tier.
type copyOf struct {
	place uint32
	tier  kvindex.Tier
}

// names are the names of one form, in the order in which they came as far as freed
// places allow, and an index of them.
//
// Invariant: an entry with the flag before has the block at the place before it as
// its parent, one with a root's number that root; parents has those of the others,
// but for 0, which is none.
type names[K name] struct {
	chunks []chunk[K]
	used   uint32 // places ever in use
	live   int    // those in use
	// free is the first free place, or none if live is used. They are a ring: blocks
	// has the place before in the upper half and the one after in the lower.
	free uint32
	last uint32 // the last place looked up or stored

	form     slots
	depth    uint8
	segments []segment
	stray    []uint32 // places that found no room in the index

	roots   [numRoots]kvindex.BlockHash
	parents map[uint32]kvindex.BlockHash
	settled int // parents after the last compact
	held    [kvindex.NumTiers]int
	// more counts the copies beyond the first.
	more map[copyOf]uint32
	// ring are names in the order in which they lost their last copy, from ring[head]
	// on; some are held again or listed twice.
	ring []K
	head int
}

func (n *names[K]) key(p uint32) K { return n.chunks[p/chunkEntries].keys[p%chunkEntries] }

func (n *names[K]) block(p uint32) *uint64 { return &n.chunks[p/chunkEntries].blocks[p%chunkEntries] }

func (n *names[K]) flag(p uint32) *uint8 { return &n.chunks[p/chunkEntries].flags[p%chunkEntries] }

// parent is the block before the one at a place, 0 if there is none.
func (n *names[K]) parent(p uint32) kvindex.BlockHash {
	f := *n.flag(p)
	if f&before != 0 {
		return kvindex.BlockHash(*n.block(p - 1))
	}
	if f&root != 0 {
		return n.roots[f&root>>rootBit-1]
	}
	return n.parents[p]
}

func (n *names[K]) setParent(p uint32, parent kvindex.BlockHash) {
	if parent == 0 || n.parent(p) == parent {
		return
	}
	*n.flag(p) &^= before | root
	delete(n.parents, p)
	if p > 0 && *n.flag(p - 1) != 0 && *n.block(p - 1) == uint64(parent) {
		*n.flag(p) |= before
		return
	}
	n.setAside(p, parent)
}

// setAside notes a parent that is not at the place before: one of the roots, of which
// the first ones are the first such parents, or one in the map.
func (n *names[K]) setAside(p uint32, parent kvindex.BlockHash) {
	for i := range n.roots {
		if n.roots[i] == 0 {
			n.roots[i] = parent
		}
		if n.roots[i] == parent {
			*n.flag(p) |= uint8(i+1) << rootBit
			return
		}
	}
	if n.parents == nil {
		n.parents = make(map[uint32]kvindex.BlockHash)
	}
	n.parents[p] = parent
}

// add stores a new key, behind its parent if that was the last one touched and
// the place is free.
func (n *names[K]) add(k K, block uint64) uint32 {
	p := n.take()
	*n.flag(p) = known
	*n.block(p) = block
	n.chunks[p/chunkEntries].keys[p%chunkEntries] = k
	n.live++
	n.index(p)
	return p
}

// take is a place for an entry.
func (n *names[K]) take() uint32 {
	if n.live < int(n.used) {
		p := n.free
		if next := n.last + 1; n.last != none && next < n.used && *n.flag(next) == 0 {
			p = next
		}
		n.unlink(p)
		return p
	}
	if n.used%chunkEntries == 0 {
		n.chunks = append(n.chunks, chunk[K]{
			make([]K, chunkEntries), make([]uint64, chunkEntries), make([]uint8, chunkEntries),
		})
	}
	n.used++
	return n.used - 1
}

// unlink takes a place out of the ring of the free ones.
func (n *names[K]) unlink(p uint32) {
	prev, next := uint32(*n.block(p)>>32), uint32(*n.block(p))
	*n.block(prev) = *n.block(prev)&^0xffffffff | uint64(next)
	*n.block(next) = *n.block(next)&0xffffffff | uint64(prev)<<32
	n.free = next
}

// link makes a place the first of the free ones.
func (n *names[K]) link(p uint32) {
	if n.live == int(n.used) { // no other is free
		*n.block(p) = uint64(p)<<32 | uint64(p)
		n.free = p
		return
	}
	next := n.free
	prev := uint32(*n.block(next) >> 32)
	*n.block(p) = uint64(prev)<<32 | uint64(next)
	*n.block(prev) = *n.block(prev)&^0xffffffff | uint64(p)
	*n.block(next) = *n.block(next)&0xffffffff | uint64(p)<<32
	n.free = p
}

// drop frees a place without copies.
func (n *names[K]) drop(p uint32) {
	if next := p + 1; next < n.used && *n.flag(next)&before != 0 {
		*n.flag(next) &^= before
		if parent := kvindex.BlockHash(*n.block(p)); parent != 0 {
			n.setAside(next, parent)
		}
	}
	delete(n.parents, p)
	n.unindex(p)
	var zero K
	n.chunks[p/chunkEntries].keys[p%chunkEntries] = zero
	*n.flag(p) = 0
	n.link(p)
	n.live--
	if n.used > chunkEntries && float64(n.live) < minUsed*float64(n.used) {
		n.compact()
	}
}

// settle compacts if too many parents lie aside, and reports whether it did: places
// that are used again come in pieces, and the pieces only get smaller.
func (n *names[K]) settle() bool {
	if len(n.parents) <= max(minAside, n.live/asideShare, 2*n.settled) {
		return false
	}
	n.compact()
	return true
}

// compact moves all entries together, each behind its parent where that has no
// other child.
func (n *names[K]) compact() {
	old := *n
	n.chunks, n.used, n.live = make([]chunk[K], 0, (old.live+chunkEntries-1)/chunkEntries), 0, 0
	n.parents, n.segments, n.stray, n.last = nil, nil, nil, none
	n.roots = old.commonest()
	n.more = make(map[copyOf]uint32, len(old.more))
	for from := range old.chained() {
		p := n.take()
		n.live++
		*n.flag(p), *n.block(p) = *old.flag(from)&^(before|root), *old.block(from)
		n.chunks[p/chunkEntries].keys[p%chunkEntries] = old.key(from)
		n.setParent(p, old.parent(from))
		if len(old.more) == 0 {
			continue
		}
		for t := range kvindex.Tier(kvindex.NumTiers) {
			if c, ok := old.more[copyOf{from, t}]; ok {
				n.more[copyOf{p, t}] = c
			}
		}
	}
	n.settled = len(n.parents)
	n.reindex()
}

// commonest are the parents that are not at the place before which the most blocks
// have.
func (n *names[K]) commonest() (most [numRoots]kvindex.BlockHash) {
	counts := make(map[kvindex.BlockHash]int, len(n.parents)+numRoots)
	for _, parent := range n.parents {
		counts[parent]++
	}
	for p := range n.used {
		if f := *n.flag(p); f&root != 0 {
			counts[n.roots[f&root>>rootBit-1]]++
		}
	}
	for i := range most {
		for parent, count := range counts {
			if best := counts[most[i]]; count > best || count == best && parent > most[i] {
				most[i] = parent
			}
		}
		delete(counts, most[i])
	}
	return most
}

// chained yields every place in use once, prompt by prompt where it can.
func (n *names[K]) chained() iter.Seq[uint32] {
	wanted := make(map[kvindex.BlockHash]uint32, len(n.parents)) // a child by its parent
	for p, parent := range n.parents {
		wanted[parent] = p
	}
	child := make(map[uint32]uint32, len(wanted)) // of those without one behind them
	joined := make(map[uint32]bool, len(wanted))
	for p := range n.used {
		c, ok := wanted[kvindex.BlockHash(*n.block(p))]
		if ok && *n.flag(p) != 0 && !n.followed(p) && !joined[c] {
			child[p], joined[c] = c, true
		}
	}
	return func(yield func(uint32) bool) {
		done := make([]bool, n.used)
		for _, all := range []bool{false, true} { // in the end what has no beginning
			for p := range n.used {
				ok := *n.flag(p) != 0 && (all || *n.flag(p)&before == 0 && !joined[p])
				for ; ok && !done[p]; p, ok = n.next(p, child) {
					done[p] = true
					if !yield(p) {
						return
					}
				}
			}
		}
	}
}

// followed reports whether the place after this one holds a child of it.
func (n *names[K]) followed(p uint32) bool { return p+1 < n.used && *n.flag(p + 1)&before != 0 }

func (n *names[K]) next(p uint32, child map[uint32]uint32) (uint32, bool) {
	if n.followed(p) {
		return p + 1, true
	}
	c, ok := child[p]
	return c, ok
}

// all yields the blocks with a copy in a tier and those before them.
func (n *names[K]) all(t kvindex.Tier) iter.Seq2[kvindex.BlockHash, kvindex.BlockHash] {
	return func(yield func(block, parent kvindex.BlockHash) bool) {
		for p := range n.used {
			if *n.flag(p)&(1<<t) != 0 && !yield(kvindex.BlockHash(*n.block(p)), n.parent(p)) {
				return
			}
		}
	}
}

// bytes is the memory taken; of what is in Go maps, an estimate.
func (n *names[K]) bytes() int {
	var k K
	size := cap(n.chunks)*int(unsafe.Sizeof(chunk[K]{})) + len(n.chunks)*chunkEntries*int(unsafe.Sizeof(k)+9)
	for i := range n.segments {
		size += int(unsafe.Sizeof(segment{})) + cap(n.segments[i].buckets)
	}
	size += cap(n.stray)*4 + cap(n.ring)*int(unsafe.Sizeof(k))
	return size + len(n.parents)*mapParentBytes + len(n.more)*mapCopyBytes
}

// Bytes that a Go map takes for each entry, on the average between two growths.
const (
	mapParentBytes = 26
	mapCopyBytes   = 20
)

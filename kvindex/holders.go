package kvindex

import (
	"cmp"
	"math/bits"
	"slices"
	"sync/atomic"
)

// A holding says that a slot holds the blocks from..to-1 of a run, in one word,
// so that a reader always sees a whole one. 0 is none. There are 2^24 slots: owners,
// and what died within two passes of the sweep.
//
// Invariant: a run's holdings are in order of from (holes of value 0 between
// them); those of one slot do not touch each other, so that one of them tells
// how far a slot reaches from a place; none goes beyond the run's length.
type holding uint64

func newHolding(slot, from, to uint32) holding {
	return holding(slot)<<(2*fieldBits) | holding(from)<<fieldBits | holding(to)
}

func (h holding) slot() uint32 { return uint32(h >> (2 * fieldBits)) }
func (h holding) from() uint32 { return uint32(h>>fieldBits) & field }
func (h holding) to() uint32   { return uint32(h) & field }

// list is the content of wordList.
type list struct {
	addr, count uint32
	version     uint64
	size        uint32
}

func holderList(w uint64) list {
	l := list{addr: uint32(w), count: uint32(w>>32) & field, version: w >> 52 & 0x7f}
	if l.addr != 0 {
		l.size = 1 << (w >> 59)
	}
	return l
}

func (l list) word() uint64 {
	w := uint64(l.addr) | uint64(l.count)<<32 | l.version&0x7f<<52
	if l.addr != 0 {
		w |= uint64(bits.TrailingZeros32(l.size)) << 59
	}
	return w
}

// holders are a run's holdings, for reading by anybody.
func (v *view) holders(r *[8]uint64) (words []uint64, version uint64) {
	w := atomic.LoadUint64(&r[wordList])
	if uint32(w) == 0 {
		return r[wordHolder : wordHolder+1], w
	}
	addr := uint32(w)
	_ = v.word(addr)
	return v.mem.span(addr, uint32(w>>32)&field), w
}

func (x *Index) holders(r *[8]uint64) []uint64 {
	v := x.view()
	w, _ := v.holders(r)
	return w
}

// pieces counts the holdings of a slot, and says where the last of them is.
func pieces(words []uint64, slot uint32) (n, at int) {
	for i, w := range words {
		if w != 0 && holding(w).slot() == slot {
			n++
			at = i
		}
	}
	return n, at
}

// cover adds the blocks a..b-1 of a run to what o holds; those it has are one
// copy more. It reports false if there was no memory.
func (x *Index) cover(o *owner, run, a, b uint32) bool {
	r := x.run(run)
	words := x.holders(r)
	own, at := pieces(words, o.slot)
	if own == 0 {
		if !x.addHolding(r, newHolding(o.slot, a, b)) {
			return false
		}
		x.count(o, r, int(b-a))
		return true
	}
	switch h := holding(words[at]); {
	case own == 1 && h.to() == a:
		atomic.StoreUint64(&words[at], uint64(newHolding(o.slot, h.from(), b)))
		x.count(o, r, int(b-a))
		return true
	case own == 1 && h.from() <= a && b <= h.to():
		x.addCopies(o, run, a, b)
		return true
	default:
		return x.coverPieces(o, run, a, b)
	}
}

// count notes that o holds more (or less) of a run.
func (x *Index) count(o *owner, r *[8]uint64, more int) {
	o.held += more
	x.memberships += more
	x.setState(r, x.reach(r))
}

// reach is a run's state from its holdings.
func (x *Index) reach(r *[8]uint64) runState {
	var end, held uint32
	for _, w := range x.holders(r) {
		if h := holding(w); h.to() > end {
			held += h.to() - max(end, h.from())
			end = h.to()
		}
	}
	s := runState(r[wordState])
	return s.with(s.length(), end, held)
}

// addCopies counts blocks that o holds already.
func (x *Index) addCopies(o *owner, run, a, b uint32) {
	if o.copies == nil {
		o.copies = map[BlockHash]uint32{}
	}
	v, r := x.view(), x.run(run)
	x.copies -= len(o.copies)
	for ; a < b; a++ {
		o.copies[v.hash(run, r, a)]++
	}
	x.copies += len(o.copies)
}

// addHolding enters a holding of a slot that has none that touches it.
func (x *Index) addHolding(r *[8]uint64, h holding) bool {
	l := holderList(r[wordList])
	words := x.holders(r)
	gap, i := -1, 0
	for ; i < len(words); i++ {
		if words[i] == 0 {
			if gap < 0 {
				gap = i
			}
			continue
		}
		if f := holding(words[i]).from(); f > h.from() {
			break
		} else if f < h.from() {
			gap = -1
		}
	}
	switch {
	case gap >= 0:
		// A reader may have seen the slot in another place: it counts versions.
		l.version++
		atomic.StoreUint64(&r[wordList], l.word())
		atomic.StoreUint64(&words[gap], uint64(h))
		return true
	case l.addr != 0 && i == len(words) && l.count < l.size:
		atomic.StoreUint64(x.arena.mem.word(l.addr+l.count), uint64(h))
		l.count++
		atomic.StoreUint64(&r[wordList], l.word())
		return true
	}
	x.scratch = append(x.scratch[:0], h)
	return x.replace(r, nil)
}

// replace builds a run's list anew: without the owner's holdings (nil: with
// all), with those in scratch.
func (x *Index) replace(r *[8]uint64, without *owner) bool {
	for _, w := range x.holders(r) {
		if h := holding(w); w != 0 && (without == nil || h.slot() != without.slot) {
			x.scratch = append(x.scratch, h)
		}
	}
	slices.SortFunc(x.scratch, func(a, b holding) int { return cmp.Compare(a.from(), b.from()) })
	old := holderList(r[wordList])
	n := len(x.scratch)
	l := list{count: uint32(n), version: old.version, size: blockWords(n + 1)}
	if n > field || l.size > 1<<maxBlockBits {
		return false
	}
	if l.addr = x.arena.alloc(l.size); l.addr == 0 {
		return false
	}
	words := x.arena.mem.span(l.addr, l.size)
	for i, h := range x.scratch {
		words[i] = uint64(h)
	}
	atomic.StoreUint64(&r[wordList], l.word())
	if old.addr != 0 {
		x.retire(old.addr, old.size)
	}
	return true
}

// coverPieces is cover for an owner that holds several pieces of the run, or one
// elsewhere.
func (x *Index) coverPieces(o *owner, run, a, b uint32) bool {
	r := x.run(run)
	from, to, held := a, b, int(b-a)
	x.scratch = x.scratch[:0]
	for _, w := range x.holders(r) {
		h := holding(w)
		if w == 0 || h.slot() != o.slot {
			continue
		}
		if h.to() < a || h.from() > b {
			x.scratch = append(x.scratch, h)
			continue
		}
		if lo, hi := max(a, h.from()), min(b, h.to()); lo < hi {
			x.addCopies(o, run, lo, hi)
			held -= int(hi - lo)
		}
		from, to = min(from, h.from()), max(to, h.to())
	}
	x.scratch = append(x.scratch, newHolding(o.slot, from, to))
	if !x.replace(r, o) {
		return false
	}
	x.count(o, r, held)
	return true
}

// uncover takes the blocks a..b-1 of a run, or a copy of each, from o.
func (x *Index) uncover(o *owner, run, a, b uint32) {
	r := x.run(run)
	if len(o.copies) == 0 {
		x.uncoverRange(o, run, a, b)
		return
	}
	v := x.view()
	for end := b; a < end; a = b {
		for b = a; b < end; b++ { // up to the next one with copies
			h := v.hash(run, r, b)
			if n := o.copies[h]; n > 1 {
				o.copies[h] = n - 1
				break
			} else if n == 1 {
				delete(o.copies, h)
				x.copies--
				break
			}
		}
		if a < b {
			x.uncoverRange(o, run, a, b)
		}
		b++
	}
	if len(o.copies) == 0 {
		o.copies = nil // a map keeps its size
	}
}

func (x *Index) uncoverRange(o *owner, run, a, b uint32) {
	r := x.run(run)
	words := x.holders(r)
	own, at := pieces(words, o.slot)
	if own == 0 {
		x.stats.UnknownRemoved += uint64(b - a)
		return
	}
	if h := holding(words[at]); own == 1 && h.to() <= b {
		x.stats.UnknownRemoved += uint64(b - a - (h.to() - min(h.to(), max(a, h.from()))))
		switch {
		case h.to() <= a:
			return
		case h.from() >= a:
			atomic.StoreUint64(&words[at], 0)
			x.count(o, r, -int(h.to()-h.from()))
		default:
			atomic.StoreUint64(&words[at], uint64(newHolding(o.slot, h.from(), a)))
			x.count(o, r, -int(h.to()-a))
		}
		return
	}
	x.uncoverPieces(o, run, a, b)
}

// uncoverPieces is uncoverRange for what leaves pieces.
func (x *Index) uncoverPieces(o *owner, run, a, b uint32) {
	r := x.run(run)
	held := 0
	x.scratch = x.scratch[:0]
	for _, w := range x.holders(r) {
		h := holding(w)
		if w == 0 || h.slot() != o.slot {
			continue
		}
		if lo, hi := max(a, h.from()), min(b, h.to()); lo < hi {
			held += int(hi - lo)
		}
		if h.from() < a {
			x.scratch = append(x.scratch, newHolding(o.slot, h.from(), min(a, h.to())))
		}
		if h.to() > b {
			x.scratch = append(x.scratch, newHolding(o.slot, max(b, h.from()), h.to()))
		}
	}
	x.stats.UnknownRemoved += uint64(int(b-a) - held)
	if held == 0 {
		return
	}
	if !x.replace(r, o) {
		x.forgetHere(o, run)
		return
	}
	x.count(o, r, -held)
}

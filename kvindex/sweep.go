package kvindex

import (
	"iter"
	"sync/atomic"
	"unsafe"
)

// sweep visits all runs in turn, a few with every write that asks for it. It
// takes away the holdings of dead slots; it cuts off what nobody holds when
// there is too much of it; it forgets when the budget is used up.
type sweep struct {
	slab, at int // the next run
	passes   uint64
}

// Blocks that nobody holds stay for a while: what was evicted is often stored
// again. They are cut off when they are more than 1/idleShare of the held ones.
const (
	idleShare = 8
	idleFloor = 4096
	// sweepRuns is how many runs one write visits at most.
	sweepRuns = 16
)

// tidy is called after a write of so many blocks. What it does is in proportion.
func (x *Index) tidy(blocks int) {
	for work := 0; work < sweepRuns && len(x.slabs) > 0 && x.untidy(); work++ {
		if blocks -= x.sweepNext(); blocks < -8 && len(x.seats.dying) == 0 {
			break
		}
	}
	if len(x.arena.limbo)-x.arena.first >= 64 {
		x.collect()
	}
}

func (x *Index) untidy() bool {
	return len(x.seats.dying) > 0 || x.idleTooMany() || x.short()
}

func (x *Index) idleTooMany() bool { return x.idle > x.blocks/idleShare+x.idleFloor }

// sweepNext visits the next run and returns how many blocks it has cut off.
func (x *Index) sweepNext() int {
	addr := x.slabs[x.sweep.slab] + uint32(x.sweep.at)*runWords
	n := x.sweepRun(addr)
	x.sweep.at++
	if x.sweep.at < slabRuns {
		return n
	}
	x.sweep.at = 0
	x.sweep.slab++
	if x.sweep.slab == len(x.slabs) {
		x.sweep.slab = 0
		x.endPass()
	}
	return n
}

func (x *Index) endPass() {
	x.sweep.passes++
	if x.short() {
		x.round.Add(1)
	}
	for len(x.seats.dying) > 0 && x.seats.dying[0].passes <= x.sweep.passes {
		x.retire(x.seats.dying[0].slot, retiredSlot)
		x.seats.dying = x.seats.dying[1:]
	}
}

// sweepRun tidies one run.
func (x *Index) sweepRun(addr uint32) int {
	r := x.run(addr)
	s := runState(r[wordState])
	if s&runUsed == 0 {
		return 0
	}
	if len(x.seats.dying) > 0 {
		x.removeDead(r)
	}
	if x.short() && x.round.Load()-atomic.LoadUint64(&r[wordRound]) > 1 {
		x.forget(addr)
	}
	s = runState(r[wordState])
	if s.idle() == 0 && s.length() > 0 || !x.idleTooMany() && !x.short() && s.length() > 0 {
		return 0
	}
	if s.end() == 0 {
		x.dropRun(addr)
	} else {
		x.truncate(addr, s.end())
	}
	return int(s.idle())
}

// removeDead takes away the holdings of dead slots, and closes up a list that has
// become mostly empty.
func (x *Index) removeDead(r *[8]uint64) {
	words := x.holders(r)
	dead, used := 0, 0
	for i, w := range words {
		if w == 0 {
			continue
		}
		used++
		if x.seats.slot(holding(w).slot()).isDead() {
			atomic.StoreUint64(&words[i], 0)
			dead++
			used--
		}
	}
	if dead == 0 {
		return
	}
	x.setState(r, x.reach(r))
	if len(words) > 16 && used < len(words)/4 {
		x.scratch = x.scratch[:0]
		x.replace(r, nil)
	}
}

// finishSweep takes away all holdings of dead slots.
func (x *Index) finishSweep() {
	if len(x.seats.dying) == 0 {
		return
	}
	for _, slab := range x.slabs {
		for i := range uint32(slabRuns) {
			if r := x.run(slab + i*runWords); runState(r[wordState])&runUsed != 0 {
				x.removeDead(r)
			}
		}
	}
	for _, d := range x.seats.dying {
		x.retire(d.slot, retiredSlot)
	}
	x.seats.dying = nil
	x.collect()
}

// allRuns are the addresses of all runs in use.
func (x *Index) allRuns() iter.Seq[uint32] {
	return func(yield func(uint32) bool) {
		for _, slab := range x.slabs {
			for i := range uint32(slabRuns) {
				addr := slab + i*runWords
				if runState(x.run(addr)[wordState])&runUsed != 0 && !yield(addr) {
					return
				}
			}
		}
	}
}

// Memory in Go's maps: of an owner, and of a block with copies.
const (
	ownerBytes = 256
	copyBytes  = 32
)

// bytes is what the index has reserved.
func (x *Index) bytes() int {
	n := int(unsafe.Sizeof(*x)) + x.arena.reserved + 16*cap(x.arena.limbo) + 4*cap(x.slabs) + 8*cap(x.scratch)
	n += cap(x.seats.all()) * int(unsafe.Sizeof(slotInfo{}))
	if l := x.heads.list.Load(); l != nil {
		n += 8 * len(*l)
	}
	n += 16 * cap(x.entryBuf)
	for i := range x.table.parts {
		if d := x.table.parts[i].dir.Load(); d != nil {
			n += 40 + 8*len(d.segs)
		}
	}
	for _, o := range x.owners {
		n += ownerBytes + copyBytes*len(o.copies)
	}
	return n
}

// What else than words can be retired, as retired.words.
const (
	retiredRun  = 0
	retiredSlot = 1
)

// retire frees words, a run or a slot when no reader can be looking at it.
func (x *Index) retire(addr, words uint32) {
	x.arena.limbo = append(x.arena.limbo, retired{epoch: x.readers.now.Load(), addr: addr, words: words})
}

// collect frees what no reader can be looking at any more.
func (x *Index) collect() {
	oldest := x.readers.advance()
	a := &x.arena
	for ; a.first < len(a.limbo) && a.limbo[a.first].epoch < oldest; a.first++ {
		switch d := a.limbo[a.first]; d.words {
		case retiredRun:
			x.putRun(d.addr)
		case retiredSlot:
			x.seats.give(d.addr)
		default:
			a.freeNow(d.addr, d.words)
		}
	}
	if a.first*2 > len(a.limbo) {
		a.limbo = a.limbo[:copy(a.limbo, a.limbo[a.first:])]
		a.first = 0
	}
}

// short reports that the budget is nearly used up.
func (x *Index) short() bool {
	return x.arena.limit > 0 && x.arena.used*8+x.copies*copyBytes > x.arena.limit/16*14
}

// forget takes a run from all who hold it.
func (x *Index) forget(run uint32) {
	r := x.run(run)
	for i, w := range x.holders(r) {
		if w != 0 {
			x.forgetHolding(run, r, i)
		}
	}
	x.setState(r, x.reach(r))
}

// forgetHere takes a run from one owner.
func (x *Index) forgetHere(o *owner, run uint32) {
	r := x.run(run)
	for i, w := range x.holders(r) {
		if w != 0 && holding(w).slot() == o.slot {
			x.forgetHolding(run, r, i)
		}
	}
	x.setState(r, x.reach(r))
}

func (x *Index) forgetHolding(run uint32, r *[8]uint64, i int) {
	words := x.holders(r)
	h := holding(words[i])
	atomic.StoreUint64(&words[i], 0)
	info := x.seats.slot(h.slot())
	if info.isDead() {
		return
	}
	o := x.owners[Owner{info.worker, info.rank, info.tier}]
	n := int(h.to() - h.from())
	o.held -= n
	x.memberships -= n
	x.stats.Forgotten += uint64(n)
	if len(o.copies) > 0 {
		x.copies -= len(o.copies)
		v := x.view()
		for at := h.from(); at < h.to(); at++ {
			delete(o.copies, v.hash(run, r, at))
		}
		x.copies += len(o.copies)
	}
}

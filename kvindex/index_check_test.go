package kvindex

import (
	"fmt"
	"testing"
)

// checkIndex holds the index to its invariants.
func checkIndex(t *testing.T, x *Index) {
	t.Helper()
	x.mu.Lock()
	defer x.mu.Unlock()
	c := indexCheck{x: x, slots: map[uint32]int{}}
	words := len(x.slabs) * slabRuns * runWords
	for addr := range x.allRuns() {
		words += c.run(addr)
	}
	words += c.table()
	words += c.limbo()
	c.totals(words)
	for _, f := range c.faults {
		t.Error(f)
	}
	if len(c.faults) > 0 {
		t.FailNow()
	}
}

type indexCheck struct {
	x                        *Index
	slots                    map[uint32]int // what each holds
	runs, blocks, held, idle int
	faults                   []string
}

func (c *indexCheck) faultf(format string, args ...any) {
	if len(c.faults) < 10 {
		c.faults = append(c.faults, fmt.Sprintf(format, args...))
	}
}

// run checks a run and returns the words it has besides its line.
func (c *indexCheck) run(addr uint32) int {
	x := c.x
	v, r := x.view(), x.run(addr)
	s := runState(r[wordState])
	c.runs++
	c.blocks += int(s.length())
	c.held += int(s.held())
	c.idle += int(s.idle())
	if x.reach(r) != s {
		c.faultf("run %d: state %x, want %x", addr, s, x.reach(r))
	}
	for at := range s.length() {
		a := v.address(addr, r, at)
		if at == 0 {
			a |= startFlag
		}
		if p := v.place(a); p != (place{addr, at}) {
			c.faultf("run %d, place %d: origin says %+v", addr, at, p)
		}
		if f := v.find(v.hash(addr, r, at)); f != a {
			c.faultf("run %d, place %d: the table has %d, want %d", addr, at, f, a)
		}
	}
	last, ends := uint32(0), map[uint32]uint32{}
	for _, w := range x.holders(r) {
		h := holding(w)
		if w == 0 {
			continue
		}
		if h.from() < last || h.from() >= h.to() || h.to() > s.length() {
			c.faultf("run %d of %d blocks: holding %d-%d after %d", addr, s.length(), h.from(), h.to(), last)
		}
		if end, ok := ends[h.slot()]; ok && h.from() <= end {
			c.faultf("run %d: slot %d has %d-%d up to %d", addr, h.slot(), h.from(), h.to(), end)
		}
		last, ends[h.slot()] = h.from(), h.to()
		c.slots[h.slot()] += int(h.to() - h.from())
	}
	if head := v.head(v.hash(addr, r, 0)); (head == addr) != (s&runHead != 0) {
		c.faultf("run %d, state %x: heads have %d", addr, s, head)
	}
	_, chunks := chunkList(r[wordChunks])
	return int(chunks) + int(holderList(r[wordList]).size) + int(chunksOf(s.length()))*chunkWords
}

// table checks the table and returns its words.
func (c *indexCheck) table() int {
	words, entries := 0, 0
	for i := range c.x.table.parts {
		d := c.x.table.parts[i].dir.Load()
		if d == nil {
			continue
		}
		for j := uint64(0); j < uint64(len(d.segs)); {
			addr, n, depth := segmentOf(d.segs[j])
			each := uint64(1) << (d.bits - depth)
			for k := j; k < j+each; k++ {
				if d.segs[k] != d.segs[j] {
					c.faultf("part %d: segment %d differs from %d", i, k, j)
				}
			}
			words += int(n) * lineWords
			entries += c.segment(addr, n)
			j += each
		}
	}
	if entries != c.blocks {
		c.faultf("table has %d entries, runs have %d blocks", entries, c.blocks)
	}
	return words
}

func (c *indexCheck) segment(addr, n uint32) int {
	entries, gone := 0, make([]uint64, n)
	for at := range n {
		b := c.x.arena.mem.line(addr + at*lineWords)
		for i := range slots {
			t := tagAt(b, i)
			if t == 0 {
				continue
			}
			entries++
			m := spread(BlockHash(*c.x.arena.mem.word(address(b, i) &^ startFlag)))
			home := at
			if t&tagOther != 0 {
				home = otherBucket(t, at, n)
				gone[home]++
				if !isAway(c.x.arena.mem.line(addr+home*lineWords), t) {
					c.faultf("segment %d: the filter of bucket %d lacks one", addr, home)
				}
			}
			if home != bucketOf(m, n) {
				c.faultf("segment %d: entry of bucket %d is in %d", addr, bucketOf(m, n), home)
			}
		}
	}
	for at, want := range gone {
		if got := away(c.x.arena.mem.line(addr + uint32(at)*lineWords)[2]); got != want {
			c.faultf("segment %d: %d entries of bucket %d are elsewhere, it says %d", addr, want, at, got)
		}
	}
	return entries
}

func (c *indexCheck) limbo() int {
	words := 0
	for _, d := range c.x.arena.limbo[c.x.arena.first:] {
		if d.words > retiredSlot {
			words += int(d.words)
		}
	}
	return words
}

func (c *indexCheck) totals(words int) {
	x := c.x
	if words != x.arena.used {
		c.faultf("%d words in use, arena says %d", words, x.arena.used)
	}
	free, all := 0, 0
	for class, b := range x.arena.free {
		size := 1 << class
		switch class {
		case smallClass:
			size = smallSegment
		case largeClass:
			size = largeSegment
		}
		for ; b != 0; b = uint32(*x.arena.mem.word(b)) {
			free += size
		}
	}
	for _, p := range x.arena.mem {
		all += len(p.words)
	}
	if all > 0 && words+free+int(x.arena.end-x.arena.next)+chunkWords != all {
		c.faultf("%d words used, %d free, %d never used, of %d", words, free, x.arena.end-x.arena.next, all)
	}
	if c.runs != x.runs || c.held != x.blocks || c.idle != x.idle {
		c.faultf("runs %d, held %d, idle %d; index says %d, %d, %d", c.runs, c.held, c.idle, x.runs, x.blocks, x.idle)
	}
	members, copies := 0, 0
	for _, o := range x.owners {
		copies += len(o.copies)
		members += o.held
		if c.slots[o.slot] != o.held {
			c.faultf("%s: runs have %d blocks, owner says %d", o.Owner, c.slots[o.slot], o.held)
		}
		delete(c.slots, o.slot)
	}
	if members != x.memberships || copies != x.copies {
		c.faultf("owners hold %d and %d copies, index says %d and %d", members, copies, x.memberships, x.copies)
	}
	for _, d := range x.seats.dying {
		delete(c.slots, d.slot)
	}
	if len(c.slots) > 0 {
		c.faultf("slots of nobody: %v", c.slots)
	}
}

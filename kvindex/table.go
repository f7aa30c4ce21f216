package kvindex

import (
	"math/bits"
	"sync/atomic"
)

// table finds the address of a hash. It has 64 parts by the hash's upper bits;
// each is a directory of segments (extendible hashing), and a segment is a number
// of buckets of one cache line:
//
//	words 0-1, lower half of 2: ten tags of 16 bits
//	word 2, bits 32-39: how many entries found this bucket full, their home, and
//	            lie in their other one; bits 40-63: a filter of their tags
//	words 3-7:  ten addresses of 32 bits
//
// A tag has a bit for "used", one for "in its other bucket", and 14 bits of the
// hash, the ones by which segments are chosen next. So a segment is split without
// looking at a hash: each entry stays in its bucket, in one of two new segments.
// Which bucket is the other one follows from the tag and the one it is in.
//
// The hash itself is only where the address points. What readers may look at is
// never moved: a grown or split segment is built beside the old one. Within a
// bucket an entry is copied to its other bucket before its place is used again.
//
// Invariant: every hash of every run, up to the run's length, is in the table
// exactly once, with its address.
type table struct {
	parts [1 << partBits]part
}

type part struct {
	dir atomic.Pointer[directory]
}

// directory lists segments by the hash bits below the part's. A word has the
// segment's address, its number of buckets (bits 32-47) and how many of the bits
// it is chosen by (48-55).
type directory struct {
	bits uint
	segs []uint64
}

const (
	partBits     = 6
	maxDepth     = 23
	lineWords    = 8
	slots        = 10 // in a bucket
	firstBuckets = 2
	smallBuckets = 72
	largeBuckets = 104
	smallSegment = smallBuckets * lineWords // words
	largeSegment = largeBuckets * lineWords

	tagUsed  = 1 << 15
	tagOther = 1 << 14
	tagHash  = tagOther - 1
	tagBits  = 14
	// tagStep is after how many splits the tags take up new bits of the hash.
	tagStep = 8

	lowBits  = 0x0001000100010001
	highBits = 0x8000800080008000
)

// fullSize is the number of buckets at which a part's segments are split. Two
// sizes, so that not all are split at the same time and half empty after it.
func fullSize(part uint64) uint32 {
	if part&1 == 0 {
		return smallBuckets
	}
	return largeBuckets
}

// spread mixes a hash. Block hashes are mixed well, but nothing must depend on it.
// Bits 58-63 choose the part, 34-57 the segment, 10-33 the bucket.
func spread(h BlockHash) uint64 {
	x := uint64(h) * 0x9E3779B97F4A7C15
	return x ^ x>>32
}

func partOf(x uint64) uint64 { return x >> (64 - partBits) }

func (d *directory) index(x uint64) uint64 { return x << partBits >> (64 - d.bits) }

func bucketOf(x uint64, buckets uint32) uint32 {
	return uint32(x >> 10 & 0xffffff * uint64(buckets) >> 24)
}

// tagOf is the tag of a mixed hash in its home bucket.
func tagOf(x uint64, depth uint) uint64 {
	return x<<(partBits+depth&^(tagStep-1))>>(64-tagBits) | tagUsed
}

// otherBucket is where an entry may lie besides bucket at; it leads back, too.
func otherBucket(tag uint64, at, buckets uint32) uint32 {
	c := uint32(tag&tagHash*0x9E37&0xffff*uint64(buckets)>>16) + buckets - at
	if c >= buckets {
		c -= buckets
	}
	return c
}

func segmentOf(s uint64) (addr, buckets uint32, depth uint) {
	return uint32(s), uint32(s>>32) & 0xffff, uint(s>>48) & 0xff
}

func segmentWord(addr, buckets uint32, depth uint) uint64 {
	return uint64(addr) | uint64(buckets)<<32 | uint64(depth)<<48
}

// zeros marks the high bits of 16-bit fields that are 0. A field of 1 above a zero
// one may be marked too: the lowest mark is right, and whoever looks at the
// others compares hashes.
func zeros(w uint64) uint64 { return (w - lowBits) &^ w & highBits }

func tagAt(b *[8]uint64, i int) uint64 { return b[i/4] >> (16 * (i & 3)) & 0xffff }

// away is how many entries of a home bucket are elsewhere.
func away(w2 uint64) uint64 { return w2 >> 32 & 0xff }

// awayBit is a tag's bit in the filter of those elsewhere.
func awayBit(tag uint64) uint64 { return 1 << (40 + tag&tagHash*0x9E37&0xffff*24>>16) }

// isAway reports whether an entry may be elsewhere than in its home bucket.
func isAway(home *[8]uint64, tag uint64) bool { return atomic.LoadUint64(&home[2])&awayBit(tag) != 0 }

func address(b *[8]uint64, i int) uint32 {
	return uint32(atomic.LoadUint64(&b[3+i/2]) >> (32 * (i & 1)))
}

// find is the address of a hash, or 0.
func (v *view) find(h BlockHash) uint32 {
	x := spread(h)
	d := v.x.table.parts[partOf(x)].dir.Load()
	if d == nil {
		return 0
	}
	addr, n, depth := segmentOf(atomic.LoadUint64(&d.segs[d.index(x)]))
	at, tag := bucketOf(x, n), tagOf(x, depth)
	b := v.line(addr + at*lineWords)
	if a := v.findIn(b, tag, h); a != 0 || !isAway(b, tag) {
		return a
	}
	b = v.line(addr + otherBucket(tag, at, n)*lineWords)
	return v.findIn(b, tag|tagOther, h)
}

func (v *view) findIn(b *[8]uint64, tag uint64, h BlockHash) uint32 {
	tags := tag * lowBits
	for i := range 3 {
		m := zeros(atomic.LoadUint64(&b[i]) ^ tags)
		if i == 2 {
			m &= 0xffffffff
		}
		for ; m != 0; m &= m - 1 {
			a := address(b, 4*i+bits.TrailingZeros64(m)/16)
			if a != 0 && *v.word(a &^ startFlag) == uint64(h) {
				return a
			}
		}
	}
	return 0
}

// aim is where a hash belongs, for the writer.
type aim struct {
	hash    BlockHash
	mixed   uint64
	segment uint64
	home    *[8]uint64 // nil if the part has no segment yet
	growth  int        // x.growth when it was made
}

// aims is how many hashes a writer aims at before it looks.
const aims = 64

// aim makes x.aims for hashes and one more, aims of them at most, and asks for
// their buckets, all at a time: each is somewhere else in memory.
func (x *Index) aim(hashes []BlockHash, more BlockHash) {
	for i, h := range hashes {
		x.aims[i].at(x, h)
	}
	x.aims[len(hashes)].at(x, more)
	sum := uint64(0)
	for i := range len(hashes) + 1 {
		if b := x.aims[i].home; b != nil {
			sum += b[0]
		}
	}
	x.touched += sum // somebody has to want it
}

func (a *aim) at(x *Index, h BlockHash) {
	m := spread(h)
	a.hash, a.mixed, a.growth, a.home = h, m, x.growth, nil
	if d := x.table.parts[partOf(m)].dir.Load(); d != nil {
		a.segment = d.segs[d.index(m)]
		addr, n, _ := segmentOf(a.segment)
		a.home = x.arena.mem.line(addr + bucketOf(m, n)*lineWords)
	}
}

// known is the address of the hash aimed at, or 0.
func (x *Index) known(a *aim) uint32 {
	if a.growth != x.growth {
		a.at(x, a.hash)
	}
	if a.home == nil {
		return 0
	}
	addr, n, depth := segmentOf(a.segment)
	tag := tagOf(a.mixed, depth)
	v := x.view()
	if f := v.findIn(a.home, tag, a.hash); f != 0 || !isAway(a.home, tag) {
		return f
	}
	o := otherBucket(tag, bucketOf(a.mixed, n), n)
	return v.findIn(x.arena.mem.line(addr+o*lineWords), tag|tagOther, a.hash)
}

// insert enters a hash that is not there. It reports false if there is no
// memory for it.
func (x *Index) insert(a *aim, addr uint32) bool {
	p := &x.table.parts[partOf(a.mixed)]
	if p.dir.Load() == nil {
		seg := x.newSegment(firstBuckets)
		if seg == 0 {
			return false
		}
		p.dir.Store(&directory{segs: []uint64{segmentWord(seg, firstBuckets, 0)}})
		x.growth++
	}
	for {
		if a.growth != x.growth {
			a.at(x, a.hash)
		}
		if i := freeSlot(a.home); i < slots {
			_, _, depth := segmentOf(a.segment)
			setEntry(a.home, i, tagOf(a.mixed, depth), addr)
			return true
		}
		if x.put(a.segment, a.mixed, addr) {
			return true
		}
		if !x.growSegment(p, a.mixed) {
			return false
		}
	}
}

// put puts an entry into a segment if one of its two buckets has room, or gets it.
func (x *Index) put(seg, m uint64, addr uint32) bool {
	base, n, depth := segmentOf(seg)
	at, tag := bucketOf(m, n), tagOf(m, depth)
	home := x.arena.mem.line(base + at*lineWords)
	if i := freeSlot(home); i < slots {
		setEntry(home, i, tag, addr)
		return true
	}
	if x.putOther(base, n, at, home, tag, addr) {
		return true
	}
	for i := range slots { // one of the others may go
		t := tagAt(home, i)
		if t&tagOther == 0 && x.putOther(base, n, at, home, t, address(home, i)) {
			setTag(home, i, 0)
			setEntry(home, i, tag, addr)
			return true
		}
	}
	return false
}

// putOther puts an entry of bucket home into its other bucket if there is room.
func (x *Index) putOther(base, n, at uint32, home *[8]uint64, tag uint64, addr uint32) bool {
	o := otherBucket(tag, at, n)
	b := x.arena.mem.line(base + o*lineWords)
	i := freeSlot(b)
	if o == at || i == slots {
		return false
	}
	atomic.StoreUint64(&home[2], goAway(home[2], tag))
	setEntry(b, i, tag|tagOther, addr)
	return true
}

// goAway is word 2 of a home bucket with one more entry elsewhere.
func goAway(w2, tag uint64) uint64 {
	if away(w2) < 255 {
		w2 += 1 << 32
	}
	return w2 | awayBit(tag)
}

// comeBack notes that an entry that was elsewhere is gone. A bucket has few of
// them; a count that came to 255 would stay there.
func comeBack(home *[8]uint64) {
	w := home[2]
	switch away(w) {
	case 255:
		return
	case 1:
		w &= 0xffffffff
	default:
		w -= 1 << 32
	}
	atomic.StoreUint64(&home[2], w)
}

// freeSlot is the first place without a tag, slots if there is none.
func freeSlot(b *[8]uint64) int {
	for i := range 3 {
		m := zeros(b[i])
		if i == 2 {
			m &= 0xffffffff
		}
		if m != 0 {
			return 4*i + bits.TrailingZeros64(m)/16
		}
	}
	return slots
}

func setEntry(b *[8]uint64, i int, tag uint64, addr uint32) {
	setHalf(&b[3+i/2], uint32(i), addr)
	setTag(b, i, tag)
}

func setTag(b *[8]uint64, i int, tag uint64) {
	shift := 16 * (i & 3)
	atomic.StoreUint64(&b[i/4], b[i/4]&^(0xffff<<shift)|tag<<shift)
}

// erase takes out the entry of a hash at an address.
func (x *Index) erase(a *aim, addr uint32) {
	base, n, depth := segmentOf(a.segment)
	tag := tagOf(a.mixed, depth)
	if eraseIn(a.home, tag, addr) {
		return
	}
	o := otherBucket(tag, bucketOf(a.mixed, n), n)
	if eraseIn(x.arena.mem.line(base+o*lineWords), tag|tagOther, addr) {
		comeBack(a.home)
	}
}

func eraseIn(b *[8]uint64, tag uint64, addr uint32) bool {
	for i := range slots {
		if tagAt(b, i) == tag && address(b, i) == addr {
			setTag(b, i, 0)
			return true
		}
	}
	return false
}

// newSegment is the address of an empty segment, 0 without memory.
func (x *Index) newSegment(buckets uint32) uint32 {
	addr := x.arena.alloc(buckets * lineWords)
	if addr != 0 {
		clear(x.arena.mem.span(addr, buckets*lineWords))
	}
	return addr
}

// growSegment makes room where a mixed hash belongs.
func (x *Index) growSegment(p *part, m uint64) bool {
	x.growth++
	d := p.dir.Load()
	i := d.index(m)
	addr, n, depth := segmentOf(d.segs[i])
	if full := fullSize(partOf(m)); n < full {
		for n < full {
			n *= 2
			if n > smallBuckets/2 {
				n = full
			}
			seg := x.newSegment(n)
			if seg == 0 {
				return false
			}
			if to := segmentWord(seg, n, depth); x.refill(d.segs[i], to, to) {
				x.retireSegment(d.segs[i])
				d.set(i, depth, to, to)
				return true
			}
			x.arena.freeNow(seg, n*lineWords)
		}
		return false
	}
	low, high := x.newSegment(n), x.newSegment(n)
	to := [2]uint64{segmentWord(low, n, depth+1), segmentWord(high, n, depth+1)}
	done := low != 0 && high != 0 && depth < maxDepth
	if done && (depth+1)%tagStep == 0 {
		done = x.refill(d.segs[i], to[0], to[1])
	} else if done {
		x.split(addr, n, depth, low, high)
	}
	if !done {
		for _, s := range []uint32{low, high} {
			if s != 0 {
				x.arena.freeNow(s, n*lineWords)
			}
		}
		return false
	}
	x.retireSegment(d.segs[i])
	if depth == d.bits {
		d = d.double()
		p.dir.Store(d)
	}
	d.set(d.index(m), depth, to[0], to[1])
	return true
}

func (x *Index) retireSegment(s uint64) {
	addr, n, _ := segmentOf(s)
	x.retire(addr, n*lineWords)
}

func (d *directory) double() *directory {
	n := &directory{bits: d.bits + 1, segs: make([]uint64, 2*len(d.segs))}
	for i, s := range d.segs {
		n.segs[2*i], n.segs[2*i+1] = s, s
	}
	return n
}

// set replaces the segment of the i-th place in all places that have it, one
// half each.
func (d *directory) set(i uint64, depth uint, low, high uint64) {
	each := uint64(1) << (d.bits - depth)
	i &^= each - 1
	for j := range each {
		seg := low
		if j*2 >= each {
			seg = high
		}
		atomic.StoreUint64(&d.segs[i+j], seg)
	}
}

// split copies a segment's entries into two of the same size that no reader knows
// yet, by the next bit of the hash, which is in the tag.
func (x *Index) split(addr, n uint32, depth uint, low, high uint32) {
	bit := tagBits - 1 - depth%tagStep
	to := [2]uint32{low, high}
	for at := range n {
		from := x.arena.mem.line(addr + at*lineWords)
		half := [2]*[8]uint64{x.arena.mem.line(low + at*lineWords), x.arena.mem.line(high + at*lineWords)}
		for i := range slots {
			t := tagAt(from, i)
			if t == 0 {
				continue
			}
			side := t >> bit & 1
			b := half[side]
			b[i/4] |= t << (16 * (i & 3))
			b[3+i/2] |= from[3+i/2] & (0xffffffff << (32 * (i & 1)))
			if t&tagOther != 0 {
				h := &x.arena.mem.line(to[side] + otherBucket(t, at, n)*lineWords)[2]
				*h = goAway(*h, t)
			}
		}
	}
}

// entry is one of a segment, with its mixed hash.
type entry struct {
	mixed uint64
	addr  uint32
}

// entries lists a segment's entries. Their hashes lie anywhere: reading them in
// one go lets the memory answer many at a time.
func (x *Index) entries(addr, n uint32) []entry {
	list := x.entryBuf[:0]
	for at := range n {
		b := x.arena.mem.line(addr + at*lineWords)
		for i := range slots {
			if tagAt(b, i) != 0 {
				list = append(list, entry{addr: address(b, i)})
			}
		}
	}
	for i := range list {
		list[i].mixed = *x.arena.mem.word(list[i].addr &^ startFlag)
	}
	for i := range list {
		list[i].mixed = spread(BlockHash(list[i].mixed))
	}
	x.entryBuf = list
	return list
}

// refill puts a segment's entries into one or two that no reader knows yet, by
// their hashes. It reports false if one finds no place.
func (x *Index) refill(from, low, high uint64) bool {
	addr, n, depth := segmentOf(from)
	to := [2]uint64{low, high}
	for _, e := range x.entries(addr, n) {
		if !x.put(to[e.mixed<<(partBits+depth)>>63], e.mixed, e.addr) {
			return false
		}
	}
	return true
}

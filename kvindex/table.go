package kvindex

import (
	"math/bits"
	"sync/atomic"
)

// table finds the address of a hash. It has 64 parts by the hash's upper bits;
// each is a directory of segments (extendible hashing), and a segment is a few
// buckets of one cache line:
//
//	words 0, 1: twelve tags of 8 bits (0: free), then in bits 32-39 of word 1 the
//	            number of entries that found this bucket full and lie behind it
//	words 2-7:  twelve addresses of 32 bits
//
// The hash itself is only where the address points. A segment that cannot take
// an entry is built anew, larger or as two, beside the old one, so that readers
// of either see all of it.
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
	lineWords    = 8
	slots        = 12 // in a bucket
	probes       = 3  // buckets an entry may lie in, from its own on
	segmentWords = 96 * lineWords
)

// segmentSizes are the numbers of buckets of a segment as it grows; then it is
// split into two of splitBuckets.
const (
	firstBuckets = 2
	splitBuckets = 64
	maxBuckets   = 96
)

// spread mixes a hash. Block hashes are mixed well, but nothing must depend on it.
func spread(h BlockHash) uint64 {
	x := uint64(h) * 0x9E3779B97F4A7C15
	return x ^ x>>32
}

func segmentOf(s uint64) (addr, buckets uint32, depth uint) {
	return uint32(s), uint32(s>>32) & 0xffff, uint(s>>48) & 0xff
}

func segmentWord(addr, buckets uint32, depth uint) uint64 {
	return uint64(addr) | uint64(buckets)<<32 | uint64(depth)<<48
}

func (d *directory) index(x uint64) uint64 { return x << partBits >> (64 - d.bits) }

func bucketOf(x uint64, buckets uint32) uint32 {
	return uint32(x >> 10 & 0xffffff * uint64(buckets) >> 24)
}

// tagOf is the tag of a mixed hash, 1 to 255.
func tagOf(x uint64) uint64 { return max(x&0xff, 1) }

const (
	lowBits  = 0x0101010101010101
	highBits = 0x8080808080808080
)

// zeros marks the high bits of bytes that are 0. A byte of 1 above a zero one may
// be marked too; whoever asks compares what it finds.
func zeros(w uint64) uint64 { return (w - lowBits) &^ w & highBits }

// tags are the places of a bucket whose tag may be t, one bit per place, in bits 7, 15, ...
func overflow(w1 uint64) uint64 { return w1 >> 32 & 0xff }

func address(b *[8]uint64, i int) uint32 {
	return uint32(atomic.LoadUint64(&b[2+i/2]) >> (32 * (i & 1)))
}

// find is the address of a hash, or 0.
func (v *view) find(h BlockHash) uint32 {
	x := spread(h)
	d := v.x.table.parts[x>>(64-partBits)].dir.Load()
	if d == nil {
		return 0
	}
	addr, n, _ := segmentOf(atomic.LoadUint64(&d.segs[d.index(x)]))
	at, tag := bucketOf(x, n), tagOf(x)*lowBits
	for range probes {
		b := v.line(addr + at*lineWords)
		w0, w1 := atomic.LoadUint64(&b[0]), atomic.LoadUint64(&b[1])
		for m := zeros(w0 ^ tag); m != 0; m &= m - 1 {
			a := address(b, bits.TrailingZeros64(m)/8)
			if a != 0 && *v.word(a) == uint64(h) {
				return a
			}
		}
		for m := zeros(w1^tag) & 0x80808080; m != 0; m &= m - 1 {
			a := address(b, 8+bits.TrailingZeros64(m)/8)
			if a != 0 && *v.word(a) == uint64(h) {
				return a
			}
		}
		if overflow(w1) == 0 {
			return 0
		}
		if at++; at == n {
			at = 0
		}
	}
	return 0
}

// touch asks for the buckets of hashes, all at a time, before they are looked up
// one after the other.
func (v *view) touch(hashes []BlockHash) (sum uint64) {
	for _, h := range hashes {
		x := spread(h)
		d := v.x.table.parts[x>>(64-partBits)].dir.Load()
		if d == nil {
			continue
		}
		addr, n, _ := segmentOf(atomic.LoadUint64(&d.segs[d.index(x)]))
		sum += atomic.LoadUint64(&v.line(addr + bucketOf(x, n)*lineWords)[0])
	}
	return sum
}

// insert enters a hash that is not there. It reports false if there is no
// memory for it.
func (x *Index) insert(h BlockHash, addr uint32) bool {
	m := spread(h)
	p := &x.table.parts[m>>(64-partBits)]
	d := p.dir.Load()
	if d == nil {
		seg := x.newSegment(firstBuckets)
		if seg == 0 {
			return false
		}
		d = &directory{segs: []uint64{segmentWord(seg, firstBuckets, 0)}}
		p.dir.Store(d)
	}
	for !x.place(d.segs[d.index(m)], m, addr) {
		if !x.growSegment(p, d.index(m)) {
			return false
		}
		d = p.dir.Load()
	}
	return true
}

// place puts an entry into a segment if one of its buckets has room.
func (x *Index) place(seg, m uint64, addr uint32) bool {
	base, n, _ := segmentOf(seg)
	home := bucketOf(m, n)
	at := home
	for range min(probes, n) {
		b := x.arena.mem.line(base + at*lineWords)
		if i := freeSlot(b); i < slots {
			w, half := &b[2+i/2], 32*(i&1)
			atomic.StoreUint64(w, *w&^(0xffffffff<<half)|uint64(addr)<<half)
			t := &b[i/8]
			atomic.StoreUint64(t, *t|tagOf(m)<<(8*(i&7)))
			for j := home; j != at; j = (j + 1) % n {
				x.passBy(base+j*lineWords, 1)
			}
			return true
		}
		if at++; at == n {
			at = 0
		}
	}
	return false
}

// freeSlot is the first place without a tag, slots if there is none.
func freeSlot(b *[8]uint64) int {
	if m := zeros(b[0]); m != 0 {
		return bits.TrailingZeros64(m) / 8
	}
	if m := zeros(b[1]) & 0x80808080; m != 0 {
		return 8 + bits.TrailingZeros64(m)/8
	}
	return slots
}

// passBy counts an entry that found a bucket full. A count that reaches 255
// stays: it only makes readers look further.
func (x *Index) passBy(bucket uint32, by int) {
	w := &x.arena.mem.line(bucket)[1]
	if n := int(overflow(*w)); n < 255 {
		atomic.StoreUint64(w, *w&^(0xff<<32)|uint64(n+by)<<32)
	}
}

// erase takes out the entry of a hash at an address.
func (x *Index) erase(h BlockHash, addr uint32) {
	m := spread(h)
	d := x.table.parts[m>>(64-partBits)].dir.Load()
	base, n, _ := segmentOf(d.segs[d.index(m)])
	home := bucketOf(m, n)
	at := home
	for range probes {
		b := x.arena.mem.line(base + at*lineWords)
		for i := range slots {
			t := &b[i/8]
			if *t>>(8*(i&7))&0xff != tagOf(m) || address(b, i) != addr {
				continue
			}
			atomic.StoreUint64(t, *t&^(0xff<<(8*(i&7))))
			for j := home; j != at; j = (j + 1) % n {
				x.passBy(base+j*lineWords, -1)
			}
			return
		}
		if at++; at == n {
			at = 0
		}
	}
}

// newSegment is the address of an empty segment, 0 without memory.
func (x *Index) newSegment(buckets uint32) uint32 {
	addr := x.arena.alloc(buckets * lineWords)
	if addr != 0 {
		clear(x.arena.mem.span(addr, buckets*lineWords))
	}
	return addr
}

// growSegment makes room around the i-th segment of a part.
func (x *Index) growSegment(p *part, i uint64) bool {
	d := p.dir.Load()
	old := d.segs[i]
	addr, n, depth := segmentOf(old)
	list := x.entries(addr, n)
	if n < maxBuckets {
		for size := n; size < maxBuckets; {
			size = min(size*2, maxBuckets)
			seg := x.newSegment(size)
			if seg == 0 {
				return false
			}
			if x.refill(list, func(uint64) uint64 { return segmentWord(seg, size, depth) }) {
				d.set(i, depth, segmentWord(seg, size, depth), segmentWord(seg, size, depth))
				x.retire(addr, n*lineWords)
				return true
			}
			x.arena.freeNow(seg, size*lineWords)
		}
	}
	for _, size := range []uint32{splitBuckets, maxBuckets} {
		if done, ok := x.splitSegment(p, i, size, list); done || !ok {
			return done
		}
	}
	return false
}

// splitSegment replaces the i-th segment by two of the next hash bit. ok is
// false without memory; done is false if the new ones are too small.
func (x *Index) splitSegment(p *part, i uint64, size uint32, list []entry) (done, ok bool) {
	d := p.dir.Load()
	addr, n, depth := segmentOf(d.segs[i])
	low, high := x.newSegment(size), x.newSegment(size)
	give := func() {
		for _, s := range []uint32{low, high} {
			if s != 0 {
				x.arena.freeNow(s, size*lineWords)
			}
		}
	}
	if low == 0 || high == 0 || partBits+depth >= 34 {
		give()
		return false, false
	}
	to := [2]uint64{segmentWord(low, size, depth+1), segmentWord(high, size, depth+1)}
	if !x.refill(list, func(m uint64) uint64 { return to[m<<partBits>>(63-depth)&1] }) {
		give()
		return false, true
	}
	if depth == d.bits {
		i *= 2
		d = d.double()
		p.dir.Store(d)
	}
	d.set(i, depth, to[0], to[1])
	x.retire(addr, n*lineWords)
	return true, true
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
			if b[i/8]>>(8*(i&7))&0xff != 0 {
				list = append(list, entry{addr: address(b, i)})
			}
		}
	}
	for i := range list {
		list[i].mixed = uint64(*x.arena.mem.word(list[i].addr))
	}
	for i := range list {
		list[i].mixed = spread(BlockHash(list[i].mixed))
	}
	x.entryBuf = list
	return list
}

// refill puts entries where to says, into segments that no reader knows yet. It
// reports false if one finds no place.
func (x *Index) refill(list []entry, to func(m uint64) uint64) bool {
	for _, e := range list {
		base, n, _ := segmentOf(to(e.mixed))
		home := bucketOf(e.mixed, n)
		at := home
		for tries := uint32(0); ; tries++ {
			if tries == min(probes, n) {
				return false
			}
			b := x.arena.mem.line(base + at*lineWords)
			if i := freeSlot(b); i < slots {
				b[2+i/2] |= uint64(e.addr) << (32 * (i & 1))
				b[i/8] |= tagOf(e.mixed) << (8 * (i & 7))
				break
			}
			b[1] += 1 << 32 // never 256 of them: a new segment is not that full
			if at++; at == n {
				at = 0
			}
		}
	}
	return true
}

package translate

import (
	"encoding/binary"
	"math/bits"
)

// Sizes of the index. A bucket is a cache line. A segment has its own number of
// buckets and grows by a sixteenth, so that no step is large; there are twice as
// many segments when they would have more than maxSegment entries each.
const (
	bucketBytes = 64
	maxSegment  = 65536
	// freshLoad is what a rebuilt segment begins with. An entry that finds its two
	// buckets full may move another one, so a segment grows at about 97 %.
	freshLoad = 0.93
)

// slots is how an index writes an entry's place: width bytes, of which the lower
// bits are the place plus 1 and the rest a tag of the key; 0 is an empty slot.
type slots struct {
	width, count int // bytes each, number in a bucket
	bits         uint
}

// slotsFor is the narrowest form for so many places with 6 bits of tag, or with
// none beyond 2^26 places.
func slotsFor(places uint32) slots {
	switch {
	case places < 1<<18:
		return slots{3, bucketBytes / 3, 18}
	case places < 1<<26:
		return slots{4, bucketBytes / 4, 26}
	default:
		return slots{4, bucketBytes / 4, 32}
	}
}

func (f slots) value(order uint64, place uint32) uint32 {
	return (uint32(order)<<f.bits | (place + 1)) & f.all()
}

// place is what a slot's value says, if its tag is that of an order.
func (f slots) place(value uint32, order uint64) (uint32, bool) {
	mask := uint32(1)<<f.bits - 1
	return value&mask - 1, value&mask != 0 && (value^uint32(order)<<f.bits)&^mask&f.all() == 0
}

// all are the bits of a slot.
func (f slots) all() uint32 { return 1<<(8*f.width) - 1 }

// any is the place in a slot, whatever the tag.
func (f slots) any(value uint32) uint32 { return value&(uint32(1)<<f.bits-1) - 1 }

func (f slots) get(bucket []byte, i int) uint32 {
	return binary.LittleEndian.Uint32(bucket[i*f.width:]) & f.all()
}

func (f slots) set(bucket []byte, i int, value uint32) {
	for b := range f.width {
		bucket[i*f.width+b] = byte(value >> (8 * b))
	}
}

// empty is the first empty slot of a bucket and how many there are.
func (f slots) empty(bucket []byte) (first, n int) {
	for i := f.count - 1; i >= 0; i-- {
		if f.get(bucket, i) == 0 {
			first, n = i, n+1
		}
	}
	return first, n
}

// segment is the part of the index for the orders that begin with certain bits.
type segment struct {
	buckets []byte
	n       int
}

// newSegment has room for n entries at freshLoad.
func newSegment(f slots, n int) segment {
	size := (int(float64(n)/freshLoad)/f.count + 1) * bucketBytes
	// append rounds up to what the allocator would take anyway.
	b := append([]byte(nil), make([]byte, size)...)
	return segment{buckets: b[:cap(b)/bucketBytes*bucketBytes]}
}

// two are the buckets where an order may lie, perhaps the same.
func (s *segment) two(order uint64, depth uint8) (a, b []byte) {
	n := uint64(len(s.buckets) / bucketBytes)
	i, _ := bits.Mul64(order<<depth, n)
	j, _ := bits.Mul64(uint64(mix(order, factor2)), n)
	return s.bucket(i), s.bucket(j)
}

func (s *segment) bucket(i uint64) []byte {
	return s.buckets[i*bucketBytes : (i+1)*bucketBytes : (i+1)*bucketBytes]
}

// find returns the place of a key.
func (n *names[K]) find(k K) (uint32, bool) {
	if n.live == 0 {
		return 0, false
	}
	order := k.order()
	s := &n.segments[order>>(64-n.depth)]
	a, b := s.two(order, n.depth)
	for _, bucket := range [2][]byte{a, b} {
		for i := range n.form.count {
			if p, ok := n.form.place(n.form.get(bucket, i), order); ok && n.key(p) == k {
				return p, true
			}
		}
	}
	for _, p := range n.stray {
		if n.key(p) == k {
			return p, true
		}
	}
	return 0, false
}

// index makes a place findable.
func (n *names[K]) index(p uint32) {
	form := slotsFor(n.used)
	if form != n.form || n.live > maxSegment<<n.depth {
		n.reindex() // with this one
		return
	}
	n.put(p)
}

// put is index where the segments are enough.
func (n *names[K]) put(p uint32) {
	order := n.key(p).order()
	s := &n.segments[order>>(64-n.depth)]
	for !n.into(s, order, p) {
		if s.n*2 < len(s.buckets)/bucketBytes*n.form.count {
			n.stray = append(n.stray, p) // keys with one order
			return
		}
		n.grow(s)
	}
}

// into puts a place into a segment; false if it finds no room.
func (n *names[K]) into(s *segment, order uint64, p uint32) bool {
	f := n.form
	a, b := s.two(order, n.depth)
	i, roomA := f.empty(a)
	j, roomB := f.empty(b)
	switch {
	case roomA == 0 && roomB == 0:
		return n.push(s, a, order, p) || n.push(s, b, order, p)
	case roomA >= roomB:
		f.set(a, i, f.value(order, p))
	default:
		f.set(b, j, f.value(order, p))
	}
	s.n++
	return true
}

// push puts a place into a full bucket if one of those there has room elsewhere.
func (n *names[K]) push(s *segment, bucket []byte, order uint64, p uint32) bool {
	f := n.form
	for i := range f.count {
		old := f.get(bucket, i)
		a, b := s.two(n.key(f.any(old)).order(), n.depth)
		for _, other := range [2][]byte{a, b} {
			if to, room := f.empty(other); room > 0 {
				f.set(other, to, old)
				f.set(bucket, i, f.value(order, p))
				s.n++
				return true
			}
		}
	}
	return false
}

// grow gives a segment a sixteenth more.
func (n *names[K]) grow(s *segment) {
	f := n.form
	for room := s.n + s.n/16 + 1; ; room += room/16 + 1 {
		next := newSegment(f, int(float64(room)*freshLoad))
		if len(next.buckets) <= len(s.buckets) {
			continue
		}
		fits := true
		for at := 0; fits && at < len(s.buckets); at += bucketBytes {
			bucket := s.buckets[at : at+bucketBytes]
			for i := 0; fits && i < f.count; i++ {
				if v := f.get(bucket, i); v != 0 {
					p := f.any(v)
					fits = n.into(&next, n.key(p).order(), p)
				}
			}
		}
		if fits {
			*s = next
			return
		}
	}
}

// unindex makes a place unfindable.
func (n *names[K]) unindex(p uint32) {
	order := n.key(p).order()
	s := &n.segments[order>>(64-n.depth)]
	a, b := s.two(order, n.depth)
	for _, bucket := range [2][]byte{a, b} {
		for i := range n.form.count {
			if n.form.get(bucket, i) == n.form.value(order, p) {
				n.form.set(bucket, i, 0)
				s.n--
				return
			}
		}
	}
	for i, other := range n.stray {
		if other == p {
			n.stray = append(n.stray[:i], n.stray[i+1:]...)
			return
		}
	}
}

// reindex builds the index anew for what is known.
func (n *names[K]) reindex() {
	n.form, n.stray, n.depth = slotsFor(n.used), nil, 0
	for n.live > maxSegment<<n.depth {
		n.depth++
	}
	n.segments = make([]segment, 1<<n.depth)
	for i := range n.segments {
		n.segments[i] = newSegment(n.form, n.live>>n.depth)
	}
	for p := range n.used {
		if *n.flag(p) != 0 {
			n.put(p)
		}
	}
}

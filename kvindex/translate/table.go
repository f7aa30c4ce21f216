package translate

import (
	"iter"
	"math/bits"
	"unsafe"
)

// Sizes of a segment. It is split when it has maxSegment entries, and two are made
// one when they have no more than mergedSegment together, so a big table's
// segments are big ones and a step of their size is 3 to 8 %. Sizes that are not the allocator's own would be rounded up by it,
// so up to smallSegment bytes its classes are used, and pages above.
const (
	maxSegment    = 16384
	mergedSegment = 12288
	smallSegment  = 32 << 10
	pageBytes     = 8 << 10
	// maxMargin is how many slots at a segment's end are nobody's home, so that the
	// last ones find room to their right.
	maxMargin = 64
)

// A segment is at most 92 % full, and shrinks below 84 % (70 where the
// allocator's classes are 1/8 apart).
const (
	maxLoad, minLoad, minLoadSmall = 0.92, 0.84, 0.70
	// newLoad is what a shrunk or split segment begins with.
	newLoad = 0.89
)

// name is a key: comparable, with a place in an order that spreads evenly over 64
// bits. Keys in use have different orders almost always.
type name interface {
	comparable
	order() uint64
}

// entry is a slot. Value 0 marks an empty one.
type entry[K name] struct {
	key   K
	value uint64
}

// segment holds the entries whose order begins with certain depth bits, sorted
// by order, each at its home or to the right of it without an empty slot between.
// The home is the rest of the order scaled to the number of homes, so a greater
// order never has a smaller home, and a new size needs one pass from left to right.
type segment[K name] struct {
	slots []entry[K]
	n     int
	depth uint8
}

// table is a hash table that grows in small steps: extendible hashing over
// segments which are each as large as they need to be. The zero value is empty.
type table[K name] struct {
	dir   []*segment[K] // by the first depth bits of the order
	depth uint8
	n     int
	// zeroes are the keys with value 0.
	zeroes map[K]struct{}
}

func (t *table[K]) segment(order uint64) *segment[K] { return t.dir[order>>(64-t.depth)] }

// get returns the value of a key.
func (t *table[K]) get(k K) (uint64, bool) {
	if t.n == 0 {
		return 0, false
	}
	o := k.order()
	s := t.segment(o)
	if i, ok := s.find(o, k); ok {
		return s.slots[i].value, true
	}
	if t.zeroes != nil {
		_, ok := t.zeroes[k]
		return 0, ok
	}
	return 0, false
}

// put sets the value of a key and reports whether it is a new one.
func (t *table[K]) put(k K, value uint64) bool {
	if t.dir == nil {
		t.dir = []*segment[K]{{}}
	}
	o := k.order()
	s := t.segment(o)
	i, ok := s.find(o, k)
	zero := false
	if t.zeroes != nil {
		_, zero = t.zeroes[k]
	}
	switch {
	case ok && value != 0:
		s.slots[i].value = value
		return false
	case zero || value == 0:
		return t.putZero(k, value, ok || zero)
	}
	t.n++
	for !s.insert(i, k, value) {
		if s.n >= maxSegment {
			t.split(o)
			s = t.segment(o)
		} else {
			s.resize(s.larger())
		}
		i, _ = s.find(o, k)
	}
	return true
}

// putZero is put where the old or the new value is 0.
func (t *table[K]) putZero(k K, value uint64, known bool) bool {
	if known {
		t.remove(k)
	}
	if value != 0 {
		t.put(k, value)
		return !known
	}
	if t.zeroes == nil {
		t.zeroes = make(map[K]struct{})
	}
	t.zeroes[k] = struct{}{}
	t.n++
	return !known
}

// remove forgets a key and returns what its value was.
func (t *table[K]) remove(k K) (uint64, bool) {
	if t.n == 0 {
		return 0, false
	}
	o := k.order()
	s := t.segment(o)
	i, ok := s.find(o, k)
	if !ok {
		if _, ok = t.zeroes[k]; ok {
			delete(t.zeroes, k)
			t.n--
			if len(t.zeroes) == 0 {
				t.zeroes = nil
			}
		}
		return 0, ok
	}
	value := s.slots[i].value
	s.remove(i)
	t.n--
	if size := s.smaller(); size < len(s.slots) && !t.merge(o) {
		s.resize(size)
	}
	return value, true
}

// all yields every entry, in no useful order. The table must not change meanwhile.
func (t *table[K]) all() iter.Seq2[K, uint64] {
	return func(yield func(K, uint64) bool) {
		var last *segment[K]
		for _, s := range t.dir {
			if s == last {
				continue // several places of a directory lead to a shallow segment
			}
			last = s
			for i := range s.slots {
				if e := &s.slots[i]; e.value != 0 && !yield(e.key, e.value) {
					return
				}
			}
		}
		for k := range t.zeroes {
			if !yield(k, 0) {
				return
			}
		}
	}
}

// bytes is what the table's memory takes.
func (t *table[K]) bytes() int {
	size := len(t.dir)*8 + len(t.zeroes)*2*int(unsafe.Sizeof(entry[K]{}))
	var last *segment[K]
	for _, s := range t.dir {
		if s != last {
			size += int(unsafe.Sizeof(*s)) + len(s.slots)*int(unsafe.Sizeof(entry[K]{}))
		}
		last = s
	}
	return size
}

// split divides the segment of an order in two, each as large as it needs to be.
func (t *table[K]) split(order uint64) {
	old := t.segment(order)
	if old.depth == t.depth {
		dir := make([]*segment[K], 2*len(t.dir))
		for i, s := range t.dir {
			dir[2*i], dir[2*i+1] = s, s
		}
		t.dir, t.depth = dir, t.depth+1
	}
	bit := uint64(1) << (63 - old.depth)
	middle := 0
	for i := range old.slots {
		if e := &old.slots[i]; e.value != 0 && e.key.order()&bit == 0 {
			middle = i + 1
		}
	}
	left := &segment[K]{depth: old.depth + 1}
	right := &segment[K]{depth: old.depth + 1}
	left.fill(old.n/2, old.slots[:middle])
	right.fill(old.n/2, old.slots[middle:])
	for i, s := range t.dir {
		if s == old {
			if uint64(i)<<(64-t.depth)&bit == 0 {
				t.dir[i] = left
			} else {
				t.dir[i] = right
			}
		}
	}
}

// merge is the reverse of split, for two that are small enough. The directory
// keeps its size.
func (t *table[K]) merge(order uint64) bool {
	s := t.segment(order)
	if s.depth == 0 {
		return false
	}
	bit := uint64(1) << (64 - s.depth)
	left, right := t.segment(order&^bit), t.segment(order|bit)
	if left.depth != right.depth || left.n+right.n > mergedSegment {
		return false
	}
	both := &segment[K]{depth: s.depth - 1}
	both.fill(left.n+right.n, left.slots, right.slots)
	for i, x := range t.dir {
		if x == left || x == right {
			t.dir[i] = both
		}
	}
	return true
}

// homes is how many of the slots are homes.
func (s *segment[K]) homes() uint64 {
	return uint64(len(s.slots) - min(maxMargin, len(s.slots)/8))
}

func (s *segment[K]) home(order uint64) int {
	hi, _ := bits.Mul64(order<<s.depth, s.homes())
	return int(hi)
}

// find returns the slot of a key, or the one where it belongs.
func (s *segment[K]) find(order uint64, k K) (int, bool) {
	i := s.home(order)
	for ; i < len(s.slots); i++ {
		e := &s.slots[i]
		if e.value == 0 {
			return i, false
		}
		if at := e.key.order(); at >= order {
			if e.key == k {
				return i, true
			}
			if at > order {
				return i, false
			}
		}
	}
	return i, false
}

// insert puts an entry into slot i and moves those there to the right. It returns
// false if the segment is full.
func (s *segment[K]) insert(i int, k K, value uint64) bool {
	if float64(s.n+1) > maxLoad*float64(len(s.slots)) {
		return false
	}
	end := i
	for end < len(s.slots) && s.slots[end].value != 0 {
		end++
	}
	if end == len(s.slots) {
		return false
	}
	copy(s.slots[i+1:end+1], s.slots[i:end])
	s.slots[i] = entry[K]{k, value}
	s.n++
	return true
}

// remove empties slot i and moves what follows to the left as far as homes allow.
func (s *segment[K]) remove(i int) {
	end := i + 1
	for end < len(s.slots) && s.slots[end].value != 0 && s.home(s.slots[end].key.order()) < end {
		end++
	}
	copy(s.slots[i:end-1], s.slots[i+1:end])
	s.slots[end-1] = entry[K]{}
	s.n--
}

// larger is the next size up, smaller the size to shrink to, or the present one.
func (s *segment[K]) larger() int {
	if len(s.slots)*int(unsafe.Sizeof(entry[K]{})) >= smallSegment {
		return len(s.slots) + 1
	}
	return len(s.slots) + len(s.slots)/16 + 1
}

func (s *segment[K]) smaller() int {
	size := int(unsafe.Sizeof(entry[K]{}))
	limit := minLoad
	if len(s.slots)*size <= smallSegment {
		limit = minLoadSmall
	}
	switch {
	case s.n == 0:
		return 0
	case float64(s.n) >= limit*float64(len(s.slots)):
		return len(s.slots)
	}
	want := int(float64(s.n)/newLoad) + 1
	if want*size > smallSegment {
		want = (want*size + pageBytes - 1) / pageBytes * pageBytes / size
	}
	return want
}

// resize moves the entries to at least so many slots.
func (s *segment[K]) resize(size int) {
	old := s.slots
	for !s.lay(size, old) {
		size += size/16 + 1
	}
}

// fill gives an empty segment these entries, sorted and about n.
func (s *segment[K]) fill(n int, entries ...[]entry[K]) {
	size := int(float64(n)/newLoad) + 1
	for !s.lay(size, entries...) {
		size += size/16 + 1
	}
}

// lay puts sorted entries into fresh slots; false if the last ones find no room.
func (s *segment[K]) lay(size int, entries ...[]entry[K]) bool {
	s.n = 0
	if size == 0 {
		s.slots = nil
		return true
	}
	// append rounds up to what the allocator would take anyway.
	slots := append([]entry[K](nil), make([]entry[K], size)...)
	s.slots = slots[:cap(slots)]
	next := 0
	for _, list := range entries {
		for i := range list {
			if list[i].value == 0 {
				continue
			}
			at := max(next, s.home(list[i].key.order()))
			if at >= len(s.slots) {
				return false
			}
			s.slots[at] = list[i]
			next = at + 1
			s.n++
		}
	}
	return true
}

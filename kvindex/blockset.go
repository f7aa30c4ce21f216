package kvindex

import "sync/atomic"

// blockSet is a set of hashes for one writer and readers without a lock. A reader
// that runs beside a change sees it or not. The hashes 0 and 1 are never in it.
//
// Invariant: a hash is in young or in old, not in both. old is what was stored before
// the last turn, if the memory budget asked for one.
type blockSet struct {
	young, old blockTable
	more       map[BlockHash]uint32 // copies beyond the first
	turned     uint64               // when old became old, in turns of all sets
}

// blockTable is an open table of hashes.
type blockTable struct {
	slots atomic.Pointer[[]atomic.Uint64]
	n     int // of the hashes in it
	dirty int // slots that are not 0
}

// gone marks a slot whose hash was removed.
const gone = 1

func (s *blockSet) has(h BlockHash) bool {
	if h <= gone {
		return false
	}
	_, ok := s.young.find(h)
	if !ok {
		_, ok = s.old.find(h)
	}
	return ok
}

func (t *blockTable) find(h BlockHash) (*atomic.Uint64, bool) {
	slots := t.slots.Load()
	if slots == nil {
		return nil, false
	}
	i, ok := probe(*slots, h)
	return &(*slots)[i], ok
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

// grows is the length that the table takes before the next new hash, 0 for the same.
func (s *blockSet) grows() int {
	t := &s.young
	if slots := t.slots.Load(); slots != nil && 4*(t.dirty+1) <= 3*len(*slots) {
		return 0
	}
	size := 16
	for 2*(t.n+1) > size {
		size *= 2
	}
	return size
}

func (s *blockSet) add(h BlockHash) {
	if h <= gone {
		return
	}
	if s.has(h) {
		if s.more == nil {
			s.more = make(map[BlockHash]uint32)
		}
		s.more[h]++
		return
	}
	if size := s.grows(); size > 0 {
		s.young.rebuild(size)
	}
	slot, _ := s.young.find(h)
	if slot.Load() == 0 {
		s.young.dirty++
	}
	slot.Store(uint64(h))
	s.young.n++
}

// remove reports whether there was a copy.
func (s *blockSet) remove(h BlockHash) bool {
	if h <= gone {
		return false
	}
	t := &s.young
	slot, ok := t.find(h)
	if !ok {
		t = &s.old
		slot, ok = t.find(h)
	}
	switch {
	case !ok:
		return false
	case s.more[h] > 1:
		s.more[h]--
	case s.more[h] == 1:
		delete(s.more, h)
	default:
		slot.Store(gone)
		t.n--
	}
	return true
}

// rebuild makes a table of so many slots in which nothing is gone.
func (t *blockTable) rebuild(size int) {
	next := make([]atomic.Uint64, size)
	for h := range t.all() {
		i, _ := probe(next, h)
		next[i].Store(uint64(h))
	}
	t.dirty = t.n
	t.slots.Store(&next)
}

func (t *blockTable) clear() {
	t.slots.Store(nil)
	t.n, t.dirty = 0, 0
}

func (t *blockTable) bytes() int {
	if slots := t.slots.Load(); slots != nil {
		return 8 * len(*slots)
	}
	return 0
}

func (t *blockTable) all() func(yield func(BlockHash) bool) {
	return func(yield func(BlockHash) bool) {
		slots := t.slots.Load()
		if slots == nil {
			return
		}
		for i := range *slots {
			if v := (*slots)[i].Load(); v > gone && !yield(BlockHash(v)) {
				return
			}
		}
	}
}

func (s *blockSet) clear() {
	s.young.clear()
	s.old.clear()
	s.more = nil
}

// turn makes what is there old; what was old before must be gone. A reader in
// between misses some of it.
func (s *blockSet) turn() {
	s.old.n, s.old.dirty = s.young.n, s.young.dirty
	s.old.slots.Store(s.young.slots.Load())
	s.young.clear()
}

// forget drops a table of the set and returns how many hashes that were.
func (s *blockSet) forget(t *blockTable) int {
	n := t.n
	if len(s.more) > 0 {
		for h := range t.all() {
			delete(s.more, h)
		}
	}
	t.clear()
	return n
}

func (s *blockSet) all() func(yield func(BlockHash) bool) {
	return func(yield func(BlockHash) bool) {
		for _, t := range []*blockTable{&s.young, &s.old} {
			for h := range t.all() {
				if !yield(h) {
					return
				}
			}
		}
	}
}

func (s *blockSet) bytes() int { return s.young.bytes() + s.old.bytes() + copyBytes*len(s.more) }

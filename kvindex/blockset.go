package kvindex

import "sync/atomic"

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

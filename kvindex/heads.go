package kvindex

import (
	"math/bits"
	"sync/atomic"
)

// heads finds the runs that begin with a prompt's first block: those whose first
// block's parent was unknown when it was stored. Every query begins here. The
// list is short, as prompts share their beginnings, so that a query for a text
// that is nowhere ends without a look at the large table.
//
// A word has a run's address in its lower half and 32 bits of the hash of its
// first block in its upper half. 0 ends a search, a run gone leaves headGone.
type heads struct {
	list atomic.Pointer[headList]
	used int // words that are not 0
	live int
}

type headList []uint64

const (
	headGone  = 1
	headFirst = 64 // words to begin with
)

func (l headList) start(x uint64) int { return int(x >> (64 - bits.Len(uint(len(l)-1)))) }

// may reports whether a run may begin with a hash. It looks at no run, so nobody
// need take a place for it.
func (s *heads) may(h BlockHash) bool {
	p := s.list.Load()
	if p == nil {
		return false
	}
	l, x := *p, spread(h)
	for i := l.start(x); ; i++ {
		switch w := atomic.LoadUint64(&l[i&(len(l)-1)]); {
		case w == 0:
			return false
		case w>>32 == x&0xffffffff && w != headGone:
			return true
		}
	}
}

// head is the run that begins with a hash, or 0.
func (v *view) head(h BlockHash) uint32 {
	p := v.x.heads.list.Load()
	if p == nil {
		return 0
	}
	l, x := *p, spread(h)
	for i := l.start(x); ; i++ {
		w := atomic.LoadUint64(&l[i&(len(l)-1)])
		if w == 0 {
			return 0
		}
		if w>>32 != x&0xffffffff || w == headGone {
			continue
		}
		if run := uint32(w); v.line(run)[wordHash] == uint64(h) {
			return run
		}
	}
}

// addHead enters a run.
func (x *Index) addHead(run uint32, h BlockHash) {
	s := &x.heads
	p := s.list.Load()
	if p == nil || 2*(s.used+1) > len(*p) {
		p = x.growHeads(p)
	}
	s.used++
	s.live++
	p.add(spread(h), run)
}

func (l headList) add(x uint64, run uint32) {
	i := l.start(x)
	for l[i&(len(l)-1)] != 0 {
		i++
	}
	atomic.StoreUint64(&l[i&(len(l)-1)], x<<32|uint64(run))
}

func (x *Index) growHeads(old *headList) *headList {
	size := headFirst
	for size < 4*(x.heads.live+1) {
		size *= 2
	}
	list := make(headList, size)
	x.heads.used = x.heads.live
	if old != nil {
		for _, w := range *old {
			if w != 0 && w != headGone {
				run := uint32(w)
				list.add(spread(BlockHash(x.run(run)[wordHash])), run)
			}
		}
	}
	x.heads.list.Store(&list)
	return &list
}

// removeHead takes a run out.
func (x *Index) removeHead(run uint32) {
	l, m := *x.heads.list.Load(), spread(BlockHash(x.run(run)[wordHash]))
	for i := l.start(m); ; i++ {
		w := &l[i&(len(l)-1)]
		if *w == m<<32|uint64(run) {
			atomic.StoreUint64(w, headGone)
			x.heads.live--
			return
		}
		if *w == 0 {
			return
		}
	}
}

package workers

import (
	"slices"

	"github.com/kvlane/kvlane/kvindex"
)

// mirror is what one owner holds, kept so that a log that lost its memory can be
// given a snapshot.
type mirror struct {
	blocks map[mirrorKey]kvindex.BlockHash // to its parent
}

type mirrorKey struct {
	group uint16
	hash  kvindex.BlockHash
}

func newMirror() *mirror { return &mirror{blocks: make(map[mirrorKey]kvindex.BlockHash)} }

// apply follows a Stored, Removed or Cleared record.
func (m *mirror) apply(r *kvindex.Record) {
	switch r.Kind {
	case kvindex.KindStored:
		parent := r.Stored.Parent
		for _, h := range r.Stored.Hashes {
			m.blocks[mirrorKey{r.Stored.Group, h}] = parent
			parent = h
		}
	case kvindex.KindRemoved:
		for _, h := range r.Removed.Hashes {
			delete(m.blocks, mirrorKey{r.Removed.Group, h})
		}
	case kvindex.KindCleared:
		clear(m.blocks)
	default: // not about blocks
	}
}

// snapshot returns Stored bodies that rebuild the mirror, each block after its
// parent, runs as long as they get. The order is the same for the same content.
func (m *mirror) snapshot() []kvindex.Stored {
	children := make(map[mirrorKey][]kvindex.BlockHash)
	var starts []mirrorKey // parents that are not held themselves
	for k, parent := range m.blocks {
		p := mirrorKey{k.group, parent}
		if _, held := m.blocks[p]; !held && children[p] == nil {
			starts = append(starts, p)
		}
		children[p] = append(children[p], k.hash)
	}
	slices.SortFunc(starts, compareKeys)
	var out []kvindex.Stored
	todo := starts
	for len(todo) > 0 {
		p := todo[0]
		todo = todo[1:]
		next := children[p]
		slices.Sort(next)
		for _, h := range next {
			run := []kvindex.BlockHash{h}
			for {
				k := mirrorKey{p.group, run[len(run)-1]}
				following := children[k]
				if len(following) != 1 {
					if len(following) > 1 {
						todo = append(todo, k)
					}
					break
				}
				run = append(run, following[0])
			}
			out = append(out, kvindex.Stored{Group: p.group, Parent: p.hash, Hashes: run})
		}
	}
	return out
}

func compareKeys(a, b mirrorKey) int {
	if a.group != b.group {
		return int(a.group) - int(b.group)
	}
	switch {
	case a.hash < b.hash:
		return -1
	case a.hash > b.hash:
		return 1
	}
	return 0
}

// lessons keeps the last learned prefixes, so that a log that lost its memory
// learns them again. A prompt that continues an earlier one replaces it.
//
// Invariant: bytes is the estimated size of all bodies and at most max, unless
// one body alone is larger.
type lessons struct {
	max, bytes int
	order      []*lesson // oldest first; entries whose body is nil were replaced
	last       map[kvindex.ChunkHash]*lesson
}

type lesson struct{ body *kvindex.Learned }

func newLessons(maxBytes int) *lessons {
	return &lessons{max: maxBytes, last: make(map[kvindex.ChunkHash]*lesson)}
}

func learnedSize(l *kvindex.Learned) int { return 128 + 8*(len(l.Chunks)+len(l.Blocks)) }

func (s *lessons) add(l *kvindex.Learned) {
	if len(l.Chunks) == 0 {
		return
	}
	for _, c := range l.Chunks {
		if old, ok := s.last[c]; ok {
			s.forget(old)
		}
	}
	e := &lesson{body: l}
	s.order = append(s.order, e)
	s.last[l.Chunks[len(l.Chunks)-1]] = e
	s.bytes += learnedSize(l)
	for s.bytes > s.max && len(s.order) > 1 {
		s.forget(s.order[0])
		s.order = s.order[1:]
	}
	if len(s.order) > 2*len(s.last)+16 {
		s.order = slices.DeleteFunc(s.order, func(e *lesson) bool { return e.body == nil })
	}
}

func (s *lessons) forget(e *lesson) {
	if e.body == nil {
		return
	}
	s.bytes -= learnedSize(e.body)
	delete(s.last, e.body.Chunks[len(e.body.Chunks)-1])
	e.body = nil
}

// all are the kept lessons, oldest first.
func (s *lessons) all() []*kvindex.Learned {
	var out []*kvindex.Learned
	for _, e := range s.order {
		if e.body != nil {
			out = append(out, e.body)
		}
	}
	return out
}

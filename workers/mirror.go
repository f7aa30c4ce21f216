package workers

import (
	"cmp"
	"iter"
	"maps"
	"math/rand/v2"
	"slices"

	"github.com/kvlane/kvlane/kvindex"
	"github.com/kvlane/kvlane/kvindex/enginewire"
	"github.com/kvlane/kvlane/kvindex/translate"
)

// mirror is what one owner holds according to records: every block with the one
// before it. The writer keeps one for an engine without events, whose blocks have no
// other names than ours.
type mirror struct {
	seed   uint64
	groups map[uint16]*translate.Map // by KV-cache group
}

func newMirror() *mirror {
	return &mirror{seed: rand.Uint64(), groups: make(map[uint16]*translate.Map)}
}

func (m *mirror) group(g uint16) *translate.Map {
	p := m.groups[g]
	if p == nil {
		p = translate.New(m.seed)
		m.groups[g] = p
	}
	return p
}

// apply follows a Stored, Removed or Cleared record.
func (m *mirror) apply(r *kvindex.Record) {
	switch r.Kind {
	case kvindex.KindStored:
		p, parent := m.group(r.Stored.Group), r.Stored.Parent
		for _, h := range r.Stored.Hashes {
			p.Store(enginewire.IntHash(uint64(h)), h, parent, kvindex.Device)
			parent = h
		}
	case kvindex.KindRemoved:
		p := m.group(r.Removed.Group)
		for _, h := range r.Removed.Hashes {
			p.Remove(enginewire.IntHash(uint64(h)), kvindex.Device)
		}
	case kvindex.KindCleared:
		m.clear()
	default: // not about blocks
	}
}

// clear forgets everything.
func (m *mirror) clear() { clear(m.groups) }

// hashes are the blocks without their groups, sorted, each once.
func (m *mirror) hashes() []kvindex.BlockHash {
	var out []kvindex.BlockHash
	for _, p := range m.groups {
		for h := range p.Held(kvindex.Device) {
			out = append(out, h)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// holds yields Stored bodies that rebuild the mirror (see [chains]), a block that is
// held twice also as often. The mirror must not change meanwhile.
func (m *mirror) holds() iter.Seq[kvindex.Stored] {
	return func(yield func(kvindex.Stored) bool) {
		for _, g := range slices.Sorted(maps.Keys(m.groups)) {
			for s := range chains(m.links(g)) {
				s.Group = g
				if !yield(s) {
					return
				}
			}
		}
	}
}

func (m *mirror) links(g uint16) []link {
	p := m.groups[g]
	links := make([]link, 0, p.Len(kvindex.Device))
	for h, parent := range p.Held(kvindex.Device) {
		for range p.Copies(enginewire.IntHash(uint64(h)), kvindex.Device) {
			links = append(links, link{parent, h})
		}
	}
	return links
}

// link is a block after its parent.
type link struct{ parent, hash kvindex.BlockHash }

// tree are links in the order of their parents, so that children lie together,
// and for each link the place of its block's first child, or -1. starts are the
// places of first children of what is not held.
type tree struct {
	links  []link
	child  []int32
	starts []int32
}

func newTree(links []link) *tree {
	slices.SortFunc(links, compareLinks)
	t := &tree{links: links, child: make([]int32, len(links))}
	byHash := make([]int32, len(links))
	for i := range byHash {
		byHash[i], t.child[i] = int32(i), -1
	}
	slices.SortFunc(byHash, func(a, b int32) int { return cmp.Or(cmp.Compare(links[a].hash, links[b].hash), cmp.Compare(a, b)) })
	for i := range links {
		parent := links[i].parent
		if i > 0 && links[i-1].parent == parent {
			continue
		}
		for len(byHash) > 0 && links[byHash[0]].hash < parent {
			byHash = byHash[1:]
		}
		if len(byHash) > 0 && links[byHash[0]].hash == parent {
			t.child[byHash[0]] = int32(i)
		} else {
			t.starts = append(t.starts, int32(i))
		}
	}
	return t
}

func compareLinks(a, b link) int {
	return cmp.Or(cmp.Compare(a.parent, b.parent), cmp.Compare(a.hash, b.hash))
}

// siblings reports whether the link after this one has the same parent.
func (t *tree) siblings(i int32) bool {
	return int(i)+1 < len(t.links) && t.links[i+1].parent == t.links[i].parent
}

// follow returns the run that begins with a block and ends before the first fork,
// and the place of that fork's first child, or -1.
func (t *tree) follow(i int32) (run []kvindex.BlockHash, fork int32) {
	for {
		run = append(run, t.links[i].hash)
		i = t.child[i]
		if i < 0 || t.siblings(i) {
			return run, i
		}
	}
}

// chains yields blocks in runs, each after its parent: first those whose parent is
// not there, then what follows at each fork. A run is as long as it gets, but for
// maxAppendHashes/4. The order is the same for the same links, which it sorts; a
// link that is there twice comes twice.
func chains(links []link) iter.Seq[kvindex.Stored] {
	return func(yield func(kvindex.Stored) bool) {
		t := newTree(links)
		for todo := t.starts; len(todo) > 0; todo = todo[1:] {
			for i, more := todo[0], true; more; i++ {
				more = t.siblings(i)
				run, fork := t.follow(i)
				if fork >= 0 {
					todo = append(todo, fork)
				}
				for part := range splitStored(kvindex.Stored{Parent: t.links[i].parent, Hashes: run}) {
					if !yield(part) {
						return
					}
				}
			}
		}
	}
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

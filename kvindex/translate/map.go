package translate

import (
	"encoding/binary"
	"iter"
	"strings"
	"unsafe"

	"github.com/kvlane/kvlane/kvindex"
	"github.com/kvlane/kvlane/kvindex/enginewire"
)

// Bounds of the names remembered of blocks that are gone: one for SpareShare held
// blocks, and MinSpares in any case.
const (
	SpareShare = 128
	MinSpares  = 512
)

// Map is the translation of one engine's names in one group. The zero value is
// not usable; see [New].
type Map struct {
	seed  uint64
	short names[short]
	long  names[long]
	text  names[text]
}

// New is an empty map. A seed that the clients of the engine do not know keeps
// them from crowding the table.
func New(seed uint64) *Map {
	m := &Map{seed: seed}
	m.short.last, m.long.last, m.text.last = none, none, none
	return m
}

// Lookup returns what a name stands for, if it is that of a held block or of one
// that is remembered, and the block before that, 0 if it is not known.
func (m *Map) Lookup(h enginewire.Hash) (block, parent kvindex.BlockHash, ok bool) {
	switch len(h) {
	case 8:
		return m.short.lookup(m.shortOf(h))
	case 32:
		return m.long.lookup(longOf(string(h), m.seed))
	}
	return m.text.lookup(text(h))
}

// Store notes a copy of a block in a tier and reports whether it is the first one
// there. A parent of 0 is not known and changes nothing. The name must stand for this block already or for none; otherwise
// [Map.Forget] it first.
func (m *Map) Store(h enginewire.Hash, block, parent kvindex.BlockHash, t kvindex.Tier) bool {
	switch len(h) {
	case 8:
		return m.short.store(m.shortOf(h), block, parent, t)
	case 32:
		return m.long.store(longOf(string(h), m.seed), block, parent, t)
	}
	if _, ok := m.text.find(text(h)); !ok {
		h = enginewire.Hash(strings.Clone(string(h))) // it may be a piece of a whole event
	}
	return m.text.store(text(h), block, parent, t)
}

// Remove notes a copy less in a tier. It returns the block and true if that was
// the last copy there; false where others remain and where there was none.
func (m *Map) Remove(h enginewire.Hash, t kvindex.Tier) (kvindex.BlockHash, bool) {
	switch len(h) {
	case 8:
		return m.short.remove(m.shortOf(h), t)
	case 32:
		return m.long.remove(longOf(string(h), m.seed), t)
	}
	return m.text.remove(text(h), t)
}

// Forget drops a name with all its copies and says in which tiers there were any.
func (m *Map) Forget(h enginewire.Hash) (held [kvindex.NumTiers]bool) {
	switch len(h) {
	case 8:
		return m.short.forget(m.shortOf(h))
	case 32:
		return m.long.forget(longOf(string(h), m.seed))
	}
	return m.text.forget(text(h))
}

// Len is the number of names with a copy in a tier.
func (m *Map) Len(t kvindex.Tier) int {
	return m.short.held[t] + m.long.held[t] + m.text.held[t]
}

// Held yields the block of every name with a copy in a tier, and the block before
// it, 0 if that is not known. The order is not useful; a block that has two names
// comes twice. The map must not change meanwhile.
func (m *Map) Held(t kvindex.Tier) iter.Seq2[kvindex.BlockHash, kvindex.BlockHash] {
	return func(yield func(block, parent kvindex.BlockHash) bool) {
		for _, all := range []iter.Seq2[kvindex.BlockHash, kvindex.BlockHash]{m.short.all(t), m.long.all(t), m.text.all(t)} {
			for block, parent := range all {
				if !yield(block, parent) {
					return
				}
			}
		}
	}
}

// Copies is the number of copies of a block in a tier.
func (m *Map) Copies(h enginewire.Hash, t kvindex.Tier) int {
	switch len(h) {
	case 8:
		return m.short.copies(m.shortOf(h), t)
	case 32:
		return m.long.copies(longOf(string(h), m.seed), t)
	}
	return m.text.copies(text(h), t)
}

// BytesReserved is the memory that the map takes, bytes: of what is in a Go map
// (second copies, parents that came at another time) an estimate.
func (m *Map) BytesReserved() int {
	n := int(unsafe.Sizeof(*m)) + m.short.bytes() + m.long.bytes() + m.text.bytes()
	for p := range m.text.used {
		n += len(m.text.key(p))
	}
	return n
}

func (m *Map) shortOf(h enginewire.Hash) short {
	return mix(binary.BigEndian.Uint64([]byte(h)), m.seed)
}

func (n *names[K]) lookup(k K) (block, parent kvindex.BlockHash, ok bool) {
	p, ok := n.find(k)
	if !ok {
		return 0, 0, false
	}
	n.last = p
	return kvindex.BlockHash(*n.block(p)), n.parent(p), true
}

func (n *names[K]) store(k K, block, parent kvindex.BlockHash, t kvindex.Tier) bool {
	p, ok := n.find(k)
	if !ok {
		p = n.add(k, uint64(block))
	}
	n.last = p
	n.setParent(p, parent)
	if n.settle() {
		p, _ = n.find(k)
		n.last = p
	}
	if *n.flag(p)&(1<<t) != 0 {
		if n.more == nil {
			n.more = make(map[copyOf]uint32)
		}
		n.more[copyOf{p, t}]++
		return false
	}
	*n.flag(p) |= 1 << t
	n.held[t]++
	return true
}

func (n *names[K]) copies(k K, t kvindex.Tier) int {
	p, ok := n.find(k)
	if !ok || *n.flag(p)&(1<<t) == 0 {
		return 0
	}
	return 1 + int(n.more[copyOf{p, t}])
}

func (n *names[K]) remove(k K, t kvindex.Tier) (kvindex.BlockHash, bool) {
	p, ok := n.find(k)
	if !ok || *n.flag(p)&(1<<t) == 0 {
		return 0, false
	}
	if c := (copyOf{p, t}); len(n.more) > 0 && n.more[c] > 0 {
		n.more[c]--
		if n.more[c] == 0 {
			delete(n.more, c)
		}
		return 0, false
	}
	block := kvindex.BlockHash(*n.block(p))
	*n.flag(p) &^= 1 << t
	n.held[t]--
	if *n.flag(p)&inTier == 0 {
		n.remember(k)
	}
	return block, true
}

func (n *names[K]) forget(k K) (held [kvindex.NumTiers]bool) {
	p, ok := n.find(k)
	if !ok {
		return held
	}
	for t := range kvindex.Tier(kvindex.NumTiers) {
		if *n.flag(p)&(1<<t) != 0 {
			held[t] = true
			n.held[t]--
			delete(n.more, copyOf{p, t})
		}
	}
	n.drop(p)
	return held
}

// remember keeps the name of a block that is gone, at the cost of the oldest ones.
func (n *names[K]) remember(k K) {
	n.ring = append(n.ring, k)
	for len(n.ring)-n.head > max(MinSpares, n.live/SpareShare) {
		if p, ok := n.find(n.ring[n.head]); ok && *n.flag(p)&inTier == 0 {
			n.drop(p)
		}
		n.head++
	}
	if n.head > len(n.ring)/4+MinSpares/4 {
		n.ring = append(make([]K, 0, len(n.ring)), n.ring[n.head:]...)
		n.head = 0
	}
}

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
func New(seed uint64) *Map { return &Map{seed: seed} }

// Lookup returns what a name stands for, if it is that of a held block or of one
// that is remembered.
func (m *Map) Lookup(h enginewire.Hash) (kvindex.BlockHash, bool) {
	switch len(h) {
	case 8:
		return m.short.lookup(m.shortOf(h))
	case 32:
		return m.long.lookup(longOf(string(h), m.seed))
	}
	return m.text.lookup(text(h))
}

// Store notes a copy of a block in a tier and reports whether it is the first one
// there. The name must stand for this block already or for none; otherwise
// [Map.Forget] it first.
func (m *Map) Store(h enginewire.Hash, block kvindex.BlockHash, t kvindex.Tier) bool {
	switch len(h) {
	case 8:
		return m.short.store(m.shortOf(h), block, t)
	case 32:
		return m.long.store(longOf(string(h), m.seed), block, t)
	}
	if _, ok := m.text.lookup(text(h)); !ok {
		h = enginewire.Hash(strings.Clone(string(h))) // it may be a piece of a whole event
	}
	return m.text.store(text(h), block, t)
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
	return m.short.tiers[t].n + m.long.tiers[t].n + m.text.tiers[t].n
}

// Held yields the block of every name with a copy in a tier, in no useful order; a
// block that has two names comes twice. The map must not change meanwhile.
func (m *Map) Held(t kvindex.Tier) iter.Seq[kvindex.BlockHash] {
	return func(yield func(kvindex.BlockHash) bool) {
		for _, b := range m.short.tiers[t].all() {
			if !yield(kvindex.BlockHash(b)) {
				return
			}
		}
		for _, b := range m.long.tiers[t].all() {
			if !yield(kvindex.BlockHash(b)) {
				return
			}
		}
		for _, b := range m.text.tiers[t].all() {
			if !yield(kvindex.BlockHash(b)) {
				return
			}
		}
	}
}

// BytesReserved is the memory that the map takes, bytes: of what is in a Go map
// (second copies) an estimate.
func (m *Map) BytesReserved() int {
	n := int(unsafe.Sizeof(*m)) + m.short.bytes() + m.long.bytes() + m.text.bytes()
	for t := range m.text.tiers {
		for k := range m.text.tiers[t].all() {
			n += len(k)
		}
	}
	return n
}

func (m *Map) shortOf(h enginewire.Hash) short {
	return mix(binary.BigEndian.Uint64([]byte(h)), m.seed)
}

// copyKey is a name in a tier.
type copyKey[K name] struct {
	key  K
	tier kvindex.Tier
}

// names are the names of one form.
type names[K name] struct {
	tiers [kvindex.NumTiers]table[K]
	// more counts the copies beyond the first.
	more map[copyKey[K]]uint32
	// spare are names without a copy, ring the same in the order in which they came
	// there, from ring[head] on; some of ring are held again or listed twice.
	spare table[K]
	ring  []K
	head  int
}

func (n *names[K]) lookup(k K) (kvindex.BlockHash, bool) {
	for t := range n.tiers {
		if b, ok := n.tiers[t].get(k); ok {
			return kvindex.BlockHash(b), true
		}
	}
	b, ok := n.spare.get(k)
	return kvindex.BlockHash(b), ok
}

func (n *names[K]) store(k K, block kvindex.BlockHash, t kvindex.Tier) bool {
	if !n.tiers[t].put(k, uint64(block)) {
		if n.more == nil {
			n.more = make(map[copyKey[K]]uint32)
		}
		n.more[copyKey[K]{k, t}]++
		return false
	}
	n.spare.remove(k)
	return true
}

func (n *names[K]) remove(k K, t kvindex.Tier) (kvindex.BlockHash, bool) {
	if len(n.more) > 0 {
		c := copyKey[K]{k, t}
		switch n.more[c] {
		case 0:
		case 1:
			delete(n.more, c)
			return 0, false
		default:
			n.more[c]--
			return 0, false
		}
	}
	b, ok := n.tiers[t].remove(k)
	if ok && !n.held(k) {
		n.remember(k, b)
	}
	return kvindex.BlockHash(b), ok
}

func (n *names[K]) held(k K) bool {
	for t := range n.tiers {
		if _, ok := n.tiers[t].get(k); ok {
			return true
		}
	}
	return false
}

func (n *names[K]) forget(k K) (held [kvindex.NumTiers]bool) {
	for t := range n.tiers {
		_, held[t] = n.tiers[t].remove(k)
		if held[t] && len(n.more) > 0 {
			delete(n.more, copyKey[K]{k, kvindex.Tier(t)})
		}
	}
	n.spare.remove(k)
	return held
}

// remember keeps the name of a block that is gone, at the cost of the oldest ones.
func (n *names[K]) remember(k K, block uint64) {
	held := 0
	for t := range n.tiers {
		held += n.tiers[t].n
	}
	n.spare.put(k, block)
	n.ring = append(n.ring, k)
	for len(n.ring)-n.head > max(MinSpares, held/SpareShare) {
		n.spare.remove(n.ring[n.head])
		n.head++
	}
	if n.head > len(n.ring)/4+MinSpares/4 {
		n.ring = append(make([]K, 0, len(n.ring)), n.ring[n.head:]...)
		n.head = 0
	}
}

func (n *names[K]) bytes() int {
	var k K
	size := n.spare.bytes() + cap(n.ring)*int(unsafe.Sizeof(k)) + len(n.more)*2*int(unsafe.Sizeof(copyKey[K]{})+4)
	for t := range n.tiers {
		size += n.tiers[t].bytes()
	}
	return size
}

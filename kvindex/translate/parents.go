package translate

import (
	"iter"
	"unsafe"

	"github.com/kvlane/kvlane/kvindex"
)

// Parents keeps which block comes before each held block, and how often each is
// held; what went lately is remembered as by a [Map]. The zero value is not
// usable; see [NewParents].
type Parents struct {
	seed  uint64
	names names[short]
}

// NewParents is empty. The seed is as for [New].
func NewParents(seed uint64) *Parents { return &Parents{seed: seed} }

// Store notes a copy of a block and reports whether it is the first one.
func (p *Parents) Store(block, parent kvindex.BlockHash) bool {
	return p.names.store(mix(uint64(block), p.seed), parent, kvindex.Device)
}

// Remove notes a copy less and reports whether it was the last one.
func (p *Parents) Remove(block kvindex.BlockHash) bool {
	_, last := p.names.remove(mix(uint64(block), p.seed), kvindex.Device)
	return last
}

// Parent is the block before one that is held or was lately.
func (p *Parents) Parent(block kvindex.BlockHash) (kvindex.BlockHash, bool) {
	return p.names.lookup(mix(uint64(block), p.seed))
}

// Holds reports whether there is a copy of a block.
func (p *Parents) Holds(block kvindex.BlockHash) bool {
	return p.names.held(mix(uint64(block), p.seed))
}

// Len is the number of blocks held.
func (p *Parents) Len() int { return p.names.tiers[kvindex.Device].n }

// Entry is what is known of a held block.
type Entry struct {
	Parent kvindex.BlockHash
	Copies uint32
}

// All yields every held block in no useful order. Nothing must change meanwhile.
func (p *Parents) All() iter.Seq2[kvindex.BlockHash, Entry] {
	return func(yield func(kvindex.BlockHash, Entry) bool) {
		for k, parent := range p.names.tiers[kvindex.Device].all() {
			e := Entry{kvindex.BlockHash(parent), 1}
			if len(p.names.more) > 0 {
				e.Copies += p.names.more[copyKey[short]{k, kvindex.Device}]
			}
			if !yield(kvindex.BlockHash(unmix(k, p.seed)), e) {
				return
			}
		}
	}
}

// BytesReserved is the memory taken, as of a [Map].
func (p *Parents) BytesReserved() int { return int(unsafe.Sizeof(*p)) + p.names.bytes() }

package workers

import (
	"iter"
	"slices"
	"unsafe"

	"github.com/kvlane/kvlane/kvindex"
)

// maxHashes is how many hashes one record carries at most, 64 KiB of them: no log
// refuses that as too large.
const maxHashes = 8192

// parts cuts a record that carries more than maxHashes; of any other it yields the
// record itself.
func parts(r kvindex.Record) iter.Seq[kvindex.Record] {
	return func(yield func(kvindex.Record) bool) {
		switch {
		case r.Stored != nil && len(r.Stored.Hashes) > maxHashes:
			for s := range splitStored(*r.Stored) {
				r.Stored = &s
				if !yield(r) {
					return
				}
			}
		case r.Removed != nil && len(r.Removed.Hashes) > maxHashes:
			group := r.Removed.Group
			for hashes := range slices.Chunk(r.Removed.Hashes, maxHashes) {
				r.Removed = &kvindex.Removed{Group: group, Hashes: hashes}
				if !yield(r) {
					return
				}
			}
		default:
			yield(r)
		}
	}
}

// splitStored cuts a run into parts of at most maxHashes, each behind the one
// before.
func splitStored(s kvindex.Stored) iter.Seq[kvindex.Stored] {
	return func(yield func(kvindex.Stored) bool) {
		parent := s.Parent
		for part := range slices.Chunk(s.Hashes, maxHashes) {
			if !yield(kvindex.Stored{Group: s.Group, Parent: parent, Hashes: part}) {
				return
			}
			parent = part[len(part)-1]
		}
	}
}

// heap is the memory of a record that waits, bytes, without the names in it.
func heap(r *kvindex.Record) int {
	n := int(unsafe.Sizeof(*r)) + len(r.Rest)
	switch {
	case r.Stored != nil:
		n += int(unsafe.Sizeof(*r.Stored)) + 8*len(r.Stored.Hashes)
	case r.Removed != nil:
		n += int(unsafe.Sizeof(*r.Removed)) + 8*len(r.Removed.Hashes)
	case r.Learned != nil:
		n += int(unsafe.Sizeof(*r.Learned)) + 8*(len(r.Learned.Chunks)+len(r.Learned.Blocks))
	}
	return n
}

// weight is about how many hashes a record carries.
func weight(r *kvindex.Record) int {
	switch r.Kind {
	case kvindex.KindStored:
		return 4 + len(r.Stored.Hashes)
	case kvindex.KindRemoved:
		return 4 + len(r.Removed.Hashes)
	case kvindex.KindLearned:
		return 4 + len(r.Learned.Chunks) + len(r.Learned.Blocks)
	default:
		return 4
	}
}

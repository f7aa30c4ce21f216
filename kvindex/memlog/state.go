package memlog

import (
	"container/list"
	"slices"

	"github.com/kvlane/kvlane/kvindex"
)

// maxRun is the number of hashes in one Stored of a snapshot: 64 KiB.
const maxRun = 8192

// live is what an owner holds, in the order in which it was stored.
type live struct {
	blocks      map[blockKey]*block
	first, last *block
	round       uint64 // counts snapshots
}

// blockKey names a block: the same hash in two groups is two blocks.
type blockKey struct {
	hash  kvindex.BlockHash
	group uint16
}

// block is one live block. Its place in the order is that of its first copy.
type block struct {
	hash, parent kvindex.BlockHash
	group        uint16
	copies       uint32
	prev, next   *block
	round        uint64 // of the last snapshot that has it
}

func newLive() live { return live{blocks: map[blockKey]*block{}} }

func (v *live) store(s *kvindex.Stored) {
	parent := s.Parent
	for _, h := range s.Hashes {
		b := v.blocks[blockKey{h, s.Group}]
		if b == nil {
			b = &block{hash: h, parent: parent, group: s.Group, prev: v.last}
			if v.last != nil {
				v.last.next = b
			} else {
				v.first = b
			}
			v.last = b
			v.blocks[blockKey{h, s.Group}] = b
		}
		b.copies++
		parent = h
	}
}

func (v *live) remove(r *kvindex.Removed) {
	for _, h := range r.Hashes {
		b := v.blocks[blockKey{h, r.Group}]
		if b == nil {
			continue
		}
		b.copies--
		if b.copies > 0 {
			continue
		}
		delete(v.blocks, blockKey{h, r.Group})
		if b.prev != nil {
			b.prev.next = b.next
		} else {
			v.first = b.next
		}
		if b.next != nil {
			b.next.prev = b.prev
		} else {
			v.last = b.prev
		}
	}
}

// snapshot appends Stored records that rebuild the owner, parents before
// children, every block as often as there are copies. head is what the records
// have in common.
func (v *live) snapshot(dst []kvindex.Record, head kvindex.Record) []kvindex.Record {
	head.Kind = kvindex.KindStored
	blocks := v.parentsFirst()
	for copies := uint32(1); len(blocks) > 0; copies++ {
		dst = runs(dst, head, blocks)
		more := blocks[:0]
		for _, b := range blocks {
			if b.copies > copies {
				more = append(more, b)
			}
		}
		blocks = more
	}
	return dst
}

// parentsFirst lists the blocks in their order, except that one whose parent was
// evicted and stored again comes after it.
func (v *live) parentsFirst() []*block {
	v.round++
	order := make([]*block, 0, len(v.blocks))
	var up []*block
	for b := v.first; b != nil; b = b.next {
		up = up[:0]
		for p := b; p != nil && p.round != v.round; p = v.blocks[blockKey{p.parent, p.group}] {
			p.round = v.round
			up = append(up, p)
		}
		for _, p := range slices.Backward(up) {
			order = append(order, p)
		}
	}
	return order
}

// runs appends one Stored for each run of blocks that follow each other.
func runs(dst []kvindex.Record, head kvindex.Record, blocks []*block) []kvindex.Record {
	var s *kvindex.Stored
	for i, b := range blocks {
		if s == nil || b.parent != blocks[i-1].hash || b.group != s.Group || len(s.Hashes) == maxRun {
			s = &kvindex.Stored{Group: b.group, Parent: b.parent}
			r := head
			r.Stored = s
			dst = append(dst, r)
		}
		s.Hashes = append(s.Hashes, b.hash)
	}
	return dst
}

// learned keeps learned texts for new tails, the oldest first, within a budget.
type learned struct {
	texts *list.List // of kvindex.Record
	// ends finds the newest text that ends with a chunk.
	ends  map[kvindex.ChunkHash]*list.Element
	bytes int
	limit int
}

func newLearned(limit int) learned {
	return learned{texts: list.New(), ends: map[kvindex.ChunkHash]*list.Element{}, limit: limit}
}

// add keeps a text and lets go of those that it continues: a conversation is
// kept as its last turn.
func (t *learned) add(r kvindex.Record) {
	n := len(r.Learned.Chunks)
	if n == 0 {
		return
	}
	for _, c := range r.Learned.Chunks {
		if e := t.ends[c]; e != nil && continues(r.Learned, text(e).Learned) {
			t.drop(e)
		}
	}
	r.Seq = 0
	t.ends[r.Learned.Chunks[n-1]] = t.texts.PushBack(r)
	t.bytes += recordBytes(&r)
	for t.bytes > t.limit && t.texts.Len() > 0 {
		t.drop(t.texts.Front())
	}
}

func (t *learned) drop(e *list.Element) {
	r := text(e)
	t.texts.Remove(e)
	t.bytes -= recordBytes(&r)
	end := r.Learned.Chunks[len(r.Learned.Chunks)-1]
	if t.ends[end] == e {
		delete(t.ends, end)
	}
}

func text(e *list.Element) kvindex.Record {
	r, _ := e.Value.(kvindex.Record)
	return r
}

// continues reports whether a's chain begins with all of b's; the texts are
// known to. A block's hash covers all before it.
func continues(a, b *kvindex.Learned) bool {
	n := len(b.Blocks)
	return n == 0 || n <= len(a.Blocks) && a.Blocks[n-1] == b.Blocks[n-1]
}

// recordBytes estimates the memory of a record; its encoding is not longer.
func recordBytes(r *kvindex.Record) int {
	n := 128 + len(r.Owner.Worker) + len(r.Rest)
	switch {
	case r.Stored != nil:
		n += 8 * len(r.Stored.Hashes)
	case r.Removed != nil:
		n += 8 * len(r.Removed.Hashes)
	case r.Learned != nil:
		n += 8 * (len(r.Learned.Chunks) + len(r.Learned.Blocks))
	case r.Hello != nil:
		n += 64 + len(r.Hello.Address) + len(r.Hello.Admin) + len(r.Hello.Model) + len(r.Hello.Deployment) +
			stringBytes(r.Hello.Served) + stringBytes(r.Hello.Adapters)
	case r.Load != nil:
		n += 64 + stringBytes(r.Load.Accepted) + sampleBytes(r.Load.FirstToken) + sampleBytes(r.Load.Done) + stringBytes(r.Load.Failed)
	case r.Booking != nil:
		n += 32 + len(r.Booking.ID) + len(r.Booking.Replica)
	}
	return n
}

func stringBytes(list []string) int {
	n := 16 * len(list)
	for _, s := range list {
		n += len(s)
	}
	return n
}

func sampleBytes(list []kvindex.Sample) int {
	n := 64 * len(list)
	for i := range list {
		n += len(list[i].Booking)
	}
	return n
}

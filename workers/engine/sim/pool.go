package sim

import "slices"

// none ends the lists of a pool; block 0 is never used, it is the head of the
// free queue.
const none = 0

// block is one physical block.
type block struct {
	// ref is how many sequences use it. At 0 it is in the free queue.
	ref int32
	// prev and next are its place in the free queue.
	prev, next int32
	// twin is the next block with the same content, none for the last.
	twin int32
	// id is its content, if cached: the block is full and can be hit.
	cached bool
	id     BlockID
	// parent is the content before it, if hasParent; kept for the host tier.
	parent    BlockID
	hasParent bool
}

// pool is the paged KV cache. Unused blocks wait in one queue, least recently
// used first, and keep their content until they are taken: cached and free are
// not opposites.
//
// Several blocks can have the same content, for sequences that computed it
// without knowing of each other. All of them keep it; the content is stored
// with the first and removed with the last.
type pool struct {
	blocks []block
	free   int
	// emptyFirst puts blocks without content at the front of the free queue.
	emptyFirst bool
	// byID is the first block of each content.
	byID map[BlockID]int32
	// events happened and were not returned yet.
	events []Event
	host   *hostTier // nil: none
}

func newPool(n int) *pool {
	p := &pool{blocks: make([]block, n+1), byID: make(map[BlockID]int32)}
	for i := range p.blocks {
		p.blocks[i].prev, p.blocks[i].next = int32(i)-1, int32(i)+1
	}
	p.blocks[0].prev, p.blocks[n].next = int32(n), 0
	p.free = n
	return p
}

func (p *pool) size() int { return len(p.blocks) - 1 }

// unlink takes block i out of the free queue.
func (p *pool) unlink(i int32) {
	b := &p.blocks[i]
	p.blocks[b.prev].next, p.blocks[b.next].prev = b.next, b.prev
	p.free--
}

// use adds a user to a block that was hit.
func (p *pool) use(i int32) {
	if p.blocks[i].ref == 0 {
		p.unlink(i)
	}
	p.blocks[i].ref++
}

// take gives the least recently used unused block to one user; what it held is
// gone. There must be one.
func (p *pool) take() int32 {
	i := p.blocks[0].next
	p.unlink(i)
	p.forget(i)
	p.blocks[i].ref = 1
	return i
}

// release takes one user from each block, the last block first, so that tails
// are evicted before what they continue.
func (p *pool) release(blocks []int32) {
	for _, i := range slices.Backward(blocks) {
		b := &p.blocks[i]
		b.ref--
		if b.ref > 0 {
			continue
		}
		after := p.blocks[0].prev
		if p.emptyFirst && !b.cached {
			after = 0
		}
		before := p.blocks[after].next
		b.prev, b.next = after, before
		p.blocks[after].next, p.blocks[before].prev = i, i
		p.free++
	}
}

// store says that block i is full with that content and reports whether no
// other block has it.
func (p *pool) store(i int32, id BlockID) bool {
	b := &p.blocks[i]
	first, twin := p.byID[id]
	b.cached, b.id = true, id
	if twin {
		b.twin, p.blocks[first].twin = p.blocks[first].twin, i
		return false
	}
	b.twin = none
	p.byID[id] = i
	return true
}

// follows notes what is before block i of s, where a host tier wants to know.
func (p *pool) follows(s *sequence, i int) {
	if p.host == nil {
		return
	}
	b := &p.blocks[s.blocks[i]]
	if b.parent, b.hasParent = 0, i > 0; i > 0 {
		b.parent = s.ids[i-1]
	}
}

// forget drops the content of block i, if it has any.
func (p *pool) forget(i int32) {
	b := &p.blocks[i]
	if !b.cached {
		return
	}
	b.cached = false
	first := p.byID[b.id]
	switch {
	case first != i:
		before := first
		for p.blocks[before].twin != i {
			before = p.blocks[before].twin
		}
		p.blocks[before].twin = b.twin
	case b.twin != none:
		p.byID[b.id] = b.twin
	default:
		delete(p.byID, b.id)
		p.events = removed(p.events, b.id)
		p.host.put(b)
	}
}

// removed appends an event, one for blocks removed in a row.
func removed(events []Event, id BlockID) []Event {
	if n := len(events); n > 0 && events[n-1].Kind == Removed {
		events[n-1].Blocks = append(events[n-1].Blocks, id)
		return events
	}
	return append(events, Event{Kind: Removed, Blocks: []BlockID{id}})
}

// clear drops the content of all blocks, used or not.
func (p *pool) clear() {
	for i := range p.blocks {
		p.blocks[i].cached = false
	}
	clear(p.byID)
	p.events = append(p.events, Event{Kind: Cleared})
	p.host.clear()
}

// takeEvents returns the events not returned yet, in order.
func (p *pool) takeEvents() []Event {
	events := p.events
	p.events = nil
	return events
}

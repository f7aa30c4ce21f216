package kvindex

import "slices"

// Approx is a model of the cache of an engine that does not say what it holds. It
// is told of requests as they begin, grow and end, and says which blocks the
// engine ought to hold: the blocks of running requests, and of ended ones as long
// as there is room, the least recently used go first, of one request the last
// ones first. That is how vLLM's block pool works.
//
// What the engine reports of the blocks that it found for a request corrects the
// model: a block that it should have found and did not is evidence that everything
// used less recently is gone as well, and that there is less room than was thought.
//
// Invariant: a block is in the list of idle ones exactly if no lease has it; used
// is the number of blocks and of private blocks; it exceeds the room only by what
// leases have.
//
// It is not safe for concurrent use. The zero value is not usable; see [NewApprox].
type Approx struct {
	capacity int // blocks; 0: not known
	room     int // what the engine has shown to have; 0: no limit known
	used     int
	blocks   map[BlockHash]*approxBlock
	leases   map[string]*lease
	// first and last are the idle blocks, the next one to go first.
	first, last *approxBlock
	clock       uint64 // counts ended leases
	changes     []Record
}

// approxBlock is a block that the engine ought to hold.
type approxBlock struct {
	hash, parent BlockHash
	leases       int
	idleSince    uint64 // by clock, while no lease has it
	prev, next   *approxBlock
}

// lease is a running request.
type lease struct {
	blocks []*approxBlock
	parent BlockHash // of the next block
	// private counts the blocks that nobody can share: partly filled ones, and full
	// ones whose tokens are not known yet.
	private int
	// believed is how many of the first blocks were held when the request came;
	// since are their times of rest then, 0 for those in use.
	believed int
	since    []uint64
}

// maxApproxHashes bounds a record of [Approx.Changes]: 64 KiB.
const maxApproxHashes = 8192

// NewApprox is the model of an empty cache of so many blocks; 0 if that is not
// known, then only what the engine reports limits the model.
func NewApprox(capacity int) *Approx {
	return &Approx{
		capacity: capacity, room: capacity,
		blocks: make(map[BlockHash]*approxBlock), leases: make(map[string]*lease),
	}
}

// Begin notes a request with the complete blocks of its prompt, after parent (the
// namespace's root), and the number of blocks that it takes in all. It returns
// how many leading ones were held. A name in use ends the request that has it.
func (a *Approx) Begin(name string, parent BlockHash, chain []BlockHash, total int) (held int) {
	a.End(name)
	l := &lease{parent: parent}
	a.leases[name] = l
	for held < len(chain) && a.blocks[chain[held]] != nil {
		b := a.blocks[chain[held]]
		since := uint64(0)
		if b.leases == 0 {
			since = b.idleSince
		}
		l.since = append(l.since, since)
		held++
	}
	l.believed = held
	a.take(l, chain)
	a.Grow(name, total)
	return held
}

// Extend adds blocks that follow the request's last complete one and are complete
// now.
func (a *Approx) Extend(name string, chain []BlockHash) {
	l := a.leases[name]
	if l == nil {
		return
	}
	n := min(l.private, len(chain))
	l.private -= n
	a.used -= n
	a.take(l, chain)
}

// Grow notes the number of blocks that a request takes in all.
func (a *Approx) Grow(name string, total int) {
	l := a.leases[name]
	if l == nil {
		return
	}
	private := max(0, total-len(l.blocks))
	a.used += private - l.private
	l.private = private
	a.makeRoom()
}

// Found notes how many leading blocks of a request's prompt the engine had, as it
// reports, of the most that it could have used (an engine computes at least one
// token of every prompt). Of each request the first report counts.
func (a *Approx) Found(name string, blocks, most int) {
	l := a.leases[name]
	if l == nil || l.since == nil && l.believed == 0 {
		if l != nil && blocks > 0 && a.capacity > 0 {
			a.room = min(a.capacity, a.room+blocks)
		}
		return
	}
	believed := min(l.believed, most)
	since := l.since
	l.since, l.believed = nil, 0
	switch {
	case blocks > believed && a.capacity > 0:
		a.room = min(a.capacity, a.room+blocks-believed)
	case blocks < believed:
		newest := uint64(0)
		for _, t := range since[blocks:believed] {
			newest = max(newest, t)
		}
		for a.first != nil && a.first.idleSince <= newest {
			a.evict(a.first)
		}
		// They went although only what is left now, without them, was in use since.
		if room := max(1, a.used-(believed-blocks)); a.room == 0 || room < a.room {
			a.room = room
		}
		a.makeRoom()
	}
}

// End notes that a request ended. Its blocks stay until their room is needed.
func (a *Approx) End(name string) {
	l := a.leases[name]
	if l == nil {
		return
	}
	delete(a.leases, name)
	a.used -= l.private
	a.clock++
	for _, b := range slices.Backward(l.blocks) {
		b.leases--
		if b.leases == 0 {
			b.idleSince = a.clock
			a.rest(b)
		}
	}
	a.makeRoom()
}

// Clear forgets everything: the engine is a new one.
func (a *Approx) Clear() {
	*a = *NewApprox(a.capacity)
	a.changes = append(a.changes, Record{Kind: KindCleared})
}

// Resize sets the capacity, blocks, when the engine says it.
func (a *Approx) Resize(capacity int) {
	if capacity == a.capacity {
		return
	}
	a.capacity, a.room = capacity, capacity
	a.makeRoom()
}

// Len is the number of blocks that the engine ought to hold and others can share.
func (a *Approx) Len() int { return len(a.blocks) }

// Changes returns what became of the blocks since the last call, in order, as
// records of which only kind and body are set.
func (a *Approx) Changes() []Record {
	c := a.changes
	a.changes = nil
	return c
}

// take gives a lease the next blocks.
func (a *Approx) take(l *lease, chain []BlockHash) {
	for _, h := range chain {
		b := a.blocks[h]
		if b == nil {
			b = &approxBlock{hash: h, parent: l.parent}
			a.blocks[h] = b
			a.used++
			a.stored(b)
		} else if b.leases == 0 {
			a.wake(b)
		}
		b.leases++
		l.blocks = append(l.blocks, b)
		l.parent = h
	}
	a.makeRoom()
}

// makeRoom lets go of idle blocks while there are more than there is room for.
func (a *Approx) makeRoom() {
	for a.room > 0 && a.used > a.room && a.first != nil {
		a.evict(a.first)
	}
}

func (a *Approx) evict(b *approxBlock) {
	a.wake(b)
	delete(a.blocks, b.hash)
	a.used--
	if n := len(a.changes); n > 0 && a.changes[n-1].Kind == KindRemoved && len(a.changes[n-1].Removed.Hashes) < maxApproxHashes {
		r := a.changes[n-1].Removed
		r.Hashes = append(r.Hashes, b.hash)
		return
	}
	a.changes = append(a.changes, Record{Kind: KindRemoved, Removed: &Removed{Hashes: []BlockHash{b.hash}}})
}

// stored notes that a block came.
func (a *Approx) stored(b *approxBlock) {
	if n := len(a.changes); n > 0 && a.changes[n-1].Kind == KindStored {
		if s := a.changes[n-1].Stored; s.Hashes[len(s.Hashes)-1] == b.parent && len(s.Hashes) < maxApproxHashes {
			s.Hashes = append(s.Hashes, b.hash)
			return
		}
	}
	a.changes = append(a.changes, Record{
		Kind: KindStored, Stored: &Stored{Parent: b.parent, Hashes: []BlockHash{b.hash}},
	})
}

// rest puts a block at the end of the idle ones, wake takes it out.
func (a *Approx) rest(b *approxBlock) {
	b.prev = a.last
	if a.last != nil {
		a.last.next = b
	} else {
		a.first = b
	}
	a.last = b
}

func (a *Approx) wake(b *approxBlock) {
	if b.prev != nil {
		b.prev.next = b.next
	} else {
		a.first = b.next
	}
	if b.next != nil {
		b.next.prev = b.prev
	} else {
		a.last = b.prev
	}
	b.prev, b.next = nil, nil
}

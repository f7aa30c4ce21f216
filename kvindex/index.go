package kvindex

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
)

// Match is what one worker's rank holds of a chain of blocks.
type Match struct {
	Worker WorkerID
	Rank   uint16
	// Seat is a small number, from 0, that names (Worker, Rank) in this index while
	// it is there: for joins by array. A later worker may get the number again, so
	// whoever keeps it compares Worker and Rank.
	Seat uint32
	// Depth[t] is the number of leading blocks held in tier t or a faster one,
	// so it never falls with t.
	Depth [NumTiers]uint32
}

// Index says which owners hold which blocks. The zero value is not usable; see
// [NewIndex]. It is safe for concurrent use: writers take turns, readers
// ([Index.Overlap]) take no lock and wait for nobody.
//
// An owner's blocks are counted: an engine may hold several copies of one
// block, it reports each copy stored and each copy evicted, and the block is
// there until the last copy goes. vLLM does this (every physical block that is
// filled is announced, also if an equal one exists, and every eviction is), so
// the count is the engine's truth; a writer that announces every block once has
// counts of 1. Where a worker's Hello names several KV-cache groups, a prefix
// counts as far as all of them have what they need of it (hybrid.go).
//
// Which records are accepted is said at [Cursor]. At a gap the owner's blocks
// are dropped at once, so nothing is counted that may be gone.
//
// Inside, blocks that follow each other form runs (runs.go) in an arena of
// words (arena.go); a table leads from a hash to its place (table.go); each run
// lists who holds which part of it (holders.go). A query looks up the chain's
// first block, compares its last with the run, looks up the block after the run,
// and so on, then counts the holders of the runs it met (read.go). What is left
// behind is taken away little by little by later writes (sweep.go). Why it is so
// is in docs/decisions/005-runs-index.md.
type Index struct {
	readers readers
	heads   heads
	table   table
	seats   seats
	groups  groupIndex
	// round counts passes over an index that is short of memory; queries note it in
	// the runs that they meet.
	round atomic.Uint64

	// loose is set once somebody stored blocks without saying what is before them:
	// then any run may go on anywhere.
	loose atomic.Bool

	mu     sync.Mutex // of the writer, for all below and above but what is atomic
	arena  arena
	owners map[Owner]*owner
	last   *owner   // of the latest record
	slabs  []uint32 // addresses of slabRuns runs each
	// freeRun begins a list of free runs, linked by their first holder's word.
	freeRun  uint32
	scratch  []holding
	entryBuf []entry
	// aims are of the hashes a write is about; growth counts what makes them void.
	aims    [aims]aim
	growth  int
	parent  BlockHash // of the record being stored
	awaited awaited
	touched uint64
	sweep   sweep
	limit   int // bytes of everything, 0 for none
	// idleFloor is idleFloor; tests have less.
	idleFloor int
	// blocks and idle are the sums of the runs' held and idle blocks, dead slots'
	// included; memberships does not count those. copies is the number of entries in
	// the owners' copies.
	blocks, idle, runs, memberships, copies int
	stats                                   IndexStats
}

// IndexStats counts what an [Index] holds and has met.
type IndexStats struct {
	// Owners is the number of owners with at least one numbered record.
	Owners int
	// Blocks is the number of different blocks, Memberships the number of
	// (block, owner) pairs.
	Blocks, Memberships int
	// Runs is the number of runs, Idle the number of blocks in them that nobody
	// holds any more.
	Runs, Idle int
	// Bytes is the memory reserved for all of it, used or not; Mapped is the part
	// that is not in Go's heap.
	Bytes, Mapped int
	// Repeats are records ignored because they had been applied before. Gaps and
	// Fenced are refused ones. UnknownRemoved are blocks reported removed by an
	// owner that did not hold them. Forgotten are memberships given up because the
	// memory budget was used up; their later removal counts in UnknownRemoved.
	Repeats, Gaps, Fenced, UnknownRemoved, Forgotten uint64
}

// OwnerState is an owner's place in its sequence, as at [Cursor], and the number
// of different blocks it holds.
type OwnerState struct {
	Owner            Owner
	Epoch, Term, Seq uint64
	Doubtful         bool
	Blocks           int
}

// NewIndex is an empty index without a limit.
func NewIndex() *Index { return NewIndexSized(0) }

// NewIndexSized is an empty index that reserves about maxBytes at most, at least
// 1 MiB; 0 is no limit. A quarter of it is for the blocks of further KV-cache groups
// once there are any, which are forgotten by their age. (Blocks that an owner holds in several copies can cost as
// much again.) When seven eighths are in use it forgets runs of blocks
// that no query has met for longest, together with what follows them in the run:
// a query that meets a block has met all before it, so the ends of old
// conversations go first and shared beginnings last. What is forgotten counts as
// not held, and in Stats.
func NewIndexSized(maxBytes int) *Index {
	x := &Index{owners: map[Owner]*owner{}, idleFloor: idleFloor}
	if maxBytes > 0 {
		x.limit = max(maxBytes, 1<<20)
		x.arena.limit = x.limit
	}
	x.arena.owner = x
	x.seats.byKey = map[seatKey]*seat{}
	x.readers.now.Store(1)
	return x
}

// Apply takes one record. It returns a [*GapError] if records of the owner were
// lost before this one (the owner's blocks are dropped and further records
// refused until a Cleared), [ErrFenced] for a stale writer, [ErrMalformed] for
// nonsense. Stored, Removed and Cleared change what the owner holds; Learned
// only counts in the sequence; Bye drops the worker; Hello says which groups it
// has; Load and Booking do nothing here.
func (x *Index) Apply(r *Record) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.apply(r)
}

// ApplyBatch takes records in order, as [Index.Apply] does, up to the first that
// is refused. It returns how many were taken before that one, and its error; the
// caller may go on behind it. It is cheaper than single calls.
func (x *Index) ApplyBatch(records []Record) (int, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for i := range records {
		if err := x.apply(&records[i]); err != nil {
			return i, err
		}
	}
	return len(records), nil
}

func (x *Index) apply(r *Record) error {
	if r.Kind == KindBye {
		return x.bye(r)
	}
	if err := r.check(); err != nil {
		return err
	}
	if r.Kind == KindHello {
		x.groups.hello(r)
	}
	if !r.Kind.Sequenced() || r.Seq == 0 && r.Kind == KindLearned {
		return nil
	}
	o := x.owner(r.Owner)
	step, err := o.cursor.Advance(r)
	if err != nil {
		return x.refuse(o, err)
	}
	if step == StepIgnore {
		x.stats.Repeats++
		return nil
	}
	if step == StepReset {
		x.empty(o)
	}
	if x.groupRecord(r) {
		return nil
	}
	switch r.Kind {
	case KindStored:
		x.store(o, r.Stored.Parent, r.Stored.Hashes)
		x.tidy(len(r.Stored.Hashes))
	case KindRemoved:
		x.remove(o, r.Removed.Hashes)
		x.tidy(2 * len(r.Removed.Hashes))
	default: // Cleared has emptied it, Learned is not about blocks
		x.tidy(0)
	}
	return nil
}

// refuse counts an error of o's cursor; a gap costs o what it held.
func (x *Index) refuse(o *owner, err error) error {
	if errors.Is(err, ErrFenced) {
		x.stats.Fenced++
		return err
	}
	x.stats.Gaps++
	x.empty(o)
	return err
}

// bye drops the worker unless a newer writer has taken over.
func (x *Index) bye(r *Record) error {
	for _, o := range x.owners {
		if o.Worker == r.Owner.Worker && o.cursor.Term > r.Term {
			x.stats.Fenced++
			return fmt.Errorf("bye of worker %s, term %d: %w", o.Worker, r.Term, ErrFenced)
		}
	}
	x.drop(r.Owner.Worker)
	return nil
}

func (x *Index) view() view { return view{x: x, mem: x.arena.mem} }

// store notes that o holds a run of blocks.
func (x *Index) store(o *owner, parent BlockHash, hashes []BlockHash) {
	var before place // of the block before hashes[0]
	for first := true; len(hashes) > 0; first = false {
		n := min(len(hashes), aims-1)
		x.aim(hashes[:n], parent)
		if first && x.known(&x.aims[0]) == 0 {
			x.parent = parent
			if parent == 0 {
				x.loose.Store(true)
			}
			if a := x.known(&x.aims[n]); a != 0 {
				v := x.view()
				before = v.place(a)
			}
		}
		if before = x.storePart(o, before, x.aims[:n], hashes[:n]); before.run == 0 {
			x.stats.Forgotten += uint64(len(hashes))
			return
		}
		hashes = hashes[n:]
	}
}

// storePart stores hashes behind a place and returns where the last one is; no
// place if there is no memory.
func (x *Index) storePart(o *owner, before place, at []aim, hashes []BlockHash) place {
	for len(at) > 0 {
		var p place
		var n uint32
		if a := x.known(&at[0]); a != 0 {
			v := x.view()
			p = v.place(a)
			n = x.common(p, hashes)
			if before.run != 0 && p != (place{before.run, before.at + 1}) {
				x.setFork(before)
			}
		} else if p, n = x.extend(before, at); n == 0 {
			return place{}
		}
		x.hold(o, p, n)
		before = place{p.run, p.at + n - 1}
		at, hashes = at[n:], hashes[n:]
	}
	return before
}

// common is how many hashes the run has from p on, at least 1.
func (x *Index) common(p place, hashes []BlockHash) uint32 {
	v := x.view()
	r := x.run(p.run)
	n, limit := uint32(1), min(uint32(len(hashes)), runState(r[wordState]).length()-p.at)
	for n < limit && v.hash(p.run, r, p.at+n) == hashes[n] {
		n++
	}
	return n
}

// extend adds new blocks behind a place, or at no place: to its run if that ends
// there, to a new one otherwise. It returns where they begin and how many there
// are, up to the next that is known.
func (x *Index) extend(before place, hashes []aim) (place, uint32) {
	if before.run != 0 {
		s := runState(x.run(before.run)[wordState])
		if before.at+1 == s.length() && s&runSealed == 0 {
			if n := x.grow(before.run, hashes); n > 0 {
				return place{before.run, before.at + 1}, n
			}
		}
		x.setFork(before)
	} else {
		x.awaited.add(x.parent)
	}
	run := x.newRun()
	if run == 0 {
		return place{}, 0
	}
	n := x.grow(run, hashes)
	switch {
	case n == 0:
		x.dropRun(run)
	case before.run == 0:
		r := x.run(run)
		atomic.StoreUint64(&r[wordState], r[wordState]|uint64(runHead))
		x.addHead(run, hashes[0].hash)
	}
	return place{run, 0}, n
}

// hold is cover with the memory it may lack.
func (x *Index) hold(o *owner, p place, n uint32) {
	if !x.cover(o, p.run, p.at, p.at+n) {
		x.stats.Forgotten += uint64(n)
		x.setState(x.run(p.run), x.reach(x.run(p.run)))
	}
}

// remove notes that o no longer holds these blocks. They mostly follow each other,
// backwards as a rule: the last blocks of a prompt are evicted first.
func (x *Index) remove(o *owner, hashes []BlockHash) {
	v := x.view()
	for len(hashes) > 0 {
		a := v.find(hashes[0])
		if a == 0 {
			x.stats.UnknownRemoved++
			hashes = hashes[1:]
			continue
		}
		p := v.place(a)
		r := x.run(p.run)
		length := runState(r[wordState]).length()
		from, to, n := p.at, p.at+1, 1
		for n < len(hashes) && from > 0 && v.hash(p.run, r, from-1) == hashes[n] {
			from--
			n++
		}
		for n < len(hashes) && from == p.at && to < length && v.hash(p.run, r, to) == hashes[n] {
			to++
			n++
		}
		x.uncover(o, p.run, from, to)
		hashes = hashes[n:]
	}
}

// Drop forgets a worker: all its owners with their blocks and places in their
// sequences. A worker that writes again begins anew.
func (x *Index) Drop(w WorkerID) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.drop(w)
}

func (x *Index) drop(w WorkerID) {
	for _, o := range x.owners {
		if o.Worker == w {
			x.leave(o)
		}
	}
	x.groups.drop(w)
}

// Stats counts what the index holds and has met. It first finishes what
// earlier writes have left to do, so its cost grows with the number of runs when a
// worker has been dropped or emptied since the last call.
func (x *Index) Stats() IndexStats {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.finishSweep()
	s := x.stats
	s.Owners = len(x.owners)
	s.Blocks, s.Memberships = x.blocks, x.memberships
	s.Runs, s.Idle = x.runs, x.idle
	s.Bytes = x.bytes() + x.groups.bytes()
	return s
}

// Blocks lists what an owner holds, sorted by hash, each block once. It is for
// checks and people; it looks at all runs, and writers wait for it.
func (x *Index) Blocks(o Owner) []BlockHash {
	x.mu.Lock()
	defer x.mu.Unlock()
	own := x.owners[o]
	if own == nil {
		return nil
	}
	v := x.view()
	list := make([]BlockHash, 0, own.held)
	for addr := range x.allRuns() {
		r := x.run(addr)
		for _, w := range x.holders(r) {
			if h := holding(w); w != 0 && h.slot() == own.slot {
				for at := h.from(); at < h.to(); at++ {
					list = append(list, v.hash(addr, r, at))
				}
			}
		}
	}
	for s := range x.groups.sets(o) {
		for h := range s.all() {
			list = append(list, h)
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// Owners lists all owners, by worker, rank and tier.
func (x *Index) Owners() []OwnerState {
	x.mu.Lock()
	defer x.mu.Unlock()
	list := make([]OwnerState, 0, len(x.owners))
	for _, o := range x.owners {
		list = append(list, OwnerState{
			Owner: o.Owner, Epoch: o.cursor.Epoch, Term: o.cursor.Term, Seq: o.cursor.Seq,
			Doubtful: o.cursor.Doubtful, Blocks: o.held,
		})
	}
	slices.SortFunc(list, func(a, b OwnerState) int {
		return cmp.Or(cmp.Compare(a.Owner.Worker, b.Owner.Worker), cmp.Compare(a.Owner.Rank, b.Owner.Rank),
			cmp.Compare(a.Owner.Tier, b.Owner.Tier))
	})
	return list
}

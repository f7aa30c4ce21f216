package kvindex

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sync"
)

// Match is what one worker's rank holds of a chain of blocks.
type Match struct {
	Worker WorkerID
	Rank   uint16
	// Depth[t] is the number of leading blocks held in tier t or a faster one,
	// so it never falls with t.
	Depth [NumTiers]uint32
}

// Index says which owners hold which blocks. The zero value is not usable; see
// [NewIndex]. It is safe for concurrent use.
//
// An owner's blocks are counted: an engine may hold several copies of one
// block, it reports each copy stored and each copy evicted, and the block is
// there until the last copy goes. vLLM does this (every physical block that is
// filled is announced, also if an equal one exists, and every eviction is), so
// the count is the engine's truth; a writer that announces every block once has
// counts of 1. The engine's KV-cache groups are not told apart: a block counts
// as held while any group holds it. Agents write only groups that keep the
// whole prefix.
//
// Which records are accepted is said at [Cursor]. At a gap the owner's blocks
// are dropped at once, so nothing is counted that may be gone.
type Index struct {
	mu     sync.RWMutex
	owners map[Owner]*holder
	// blocks lists the holders of each block, unordered and without repeats.
	blocks map[BlockHash][]*holder
	seats  map[seatKey]*seat
	free   []int // slots of seats that are gone
	slots  int   // slots ever used
	stats  IndexStats
	// scratch are []int32, one per slot: a position in the matches, plus 1.
	scratch sync.Pool
}

// holder is an owner with what it holds.
type holder struct {
	cursor Cursor
	seat   *seat
	tier   Tier
	held   map[BlockHash]uint32 // copies
}

type seatKey struct {
	worker WorkerID
	rank   uint16
}

// seat is a (worker, rank): the line of one Match.
type seat struct {
	seatKey
	slot int
}

// IndexStats counts what an [Index] holds and has met.
type IndexStats struct {
	// Owners is the number of owners with at least one numbered record.
	Owners int
	// Blocks is the number of different blocks, Memberships the number of
	// (block, owner) pairs.
	Blocks, Memberships int
	// Bytes estimates the memory for Blocks and Memberships.
	Bytes int
	// Repeats are records ignored because they had been applied before. Gaps and
	// Fenced are refused ones. UnknownRemoved are blocks reported removed by an
	// owner that did not hold them.
	Repeats, Gaps, Fenced, UnknownRemoved uint64
}

// Memory of one block (map slot with its list's header, at the usual fill of
// Go's maps) and of one membership (slot in the owner's map, pointer in the
// block's list), in bytes. TestIndexBytes compares them with the heap.
const (
	blockBytes      = 48
	membershipBytes = 32
)

// NewIndex is an empty index.
func NewIndex() *Index {
	return &Index{
		owners: map[Owner]*holder{},
		blocks: map[BlockHash][]*holder{},
		seats:  map[seatKey]*seat{},
	}
}

// Apply takes one record. It returns a [*GapError] if records of the owner were
// lost before this one (the owner's blocks are dropped and further records
// refused until a Cleared), [ErrFenced] for a stale writer, [ErrMalformed] for
// nonsense. Stored, Removed and Cleared change what the owner holds; Learned
// only counts in the sequence; Bye drops the worker; Hello, Load and Booking do
// nothing here.
func (x *Index) Apply(r *Record) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if r.Kind == KindBye {
		return x.bye(r)
	}
	if !r.Kind.Sequenced() || r.Seq == 0 && r.Kind == KindLearned {
		return r.check()
	}
	if err := r.check(); err != nil {
		return err
	}
	h := x.holder(r.Owner)
	step, err := h.cursor.Advance(r)
	if err != nil {
		return x.refuse(h, err)
	}
	if step == StepIgnore {
		x.stats.Repeats++
		return nil
	}
	if step == StepReset {
		x.empty(h)
	}
	switch r.Kind {
	case KindStored:
		x.store(h, r.Stored.Hashes)
	case KindRemoved:
		x.remove(h, r.Removed.Hashes)
	default: // Cleared has emptied it, Learned is not about blocks
	}
	return nil
}

// refuse counts an error of h's cursor; a gap costs h what it held.
func (x *Index) refuse(h *holder, err error) error {
	if errors.Is(err, ErrFenced) {
		x.stats.Fenced++
		return err
	}
	x.stats.Gaps++
	x.empty(h)
	return err
}

// bye drops the worker unless a newer writer has taken over.
func (x *Index) bye(r *Record) error {
	for o, h := range x.owners {
		if o.Worker == r.Owner.Worker && h.cursor.Term > r.Term {
			x.stats.Fenced++
			return fmt.Errorf("bye of worker %s, term %d: %w", o.Worker, r.Term, ErrFenced)
		}
	}
	x.drop(r.Owner.Worker)
	return nil
}

// holder is the owner's entry, made if need be.
func (x *Index) holder(o Owner) *holder {
	h := x.owners[o]
	if h != nil {
		return h
	}
	key := seatKey{o.Worker, o.Rank}
	s := x.seats[key]
	if s == nil {
		s = &seat{seatKey: key}
		if n := len(x.free); n > 0 {
			s.slot, x.free = x.free[n-1], x.free[:n-1]
		} else {
			s.slot = x.slots
			x.slots++
		}
		x.seats[key] = s
	}
	h = &holder{seat: s, tier: o.Tier, held: map[BlockHash]uint32{}}
	x.owners[o] = h
	return h
}

func (x *Index) store(h *holder, hashes []BlockHash) {
	for _, b := range hashes {
		n := h.held[b]
		h.held[b] = n + 1
		if n == 0 {
			x.blocks[b] = append(x.blocks[b], h)
			x.stats.Memberships++
		}
	}
}

func (x *Index) remove(h *holder, hashes []BlockHash) {
	for _, b := range hashes {
		switch n := h.held[b]; n {
		case 0:
			x.stats.UnknownRemoved++
		case 1:
			delete(h.held, b)
			x.leave(h, b)
		default:
			h.held[b] = n - 1
		}
	}
}

// leave takes h off the list of b's holders.
func (x *Index) leave(h *holder, b BlockHash) {
	list := x.blocks[b]
	x.stats.Memberships--
	if len(list) == 1 {
		delete(x.blocks, b)
		return
	}
	i := slices.Index(list, h)
	last := len(list) - 1
	list[i], list[last] = list[last], nil
	x.blocks[b] = list[:last]
}

func (x *Index) empty(h *holder) {
	for b := range h.held {
		x.leave(h, b)
	}
	// A new map: a cleared one would keep its size for ever.
	h.held = map[BlockHash]uint32{}
}

// Drop forgets a worker: all its owners with their blocks and places in their
// sequences. A worker that writes again begins anew.
func (x *Index) Drop(w WorkerID) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.drop(w)
}

func (x *Index) drop(w WorkerID) {
	for o, h := range x.owners {
		if o.Worker != w {
			continue
		}
		x.empty(h)
		delete(x.owners, o)
		if key := h.seat.seatKey; x.seats[key] == h.seat {
			delete(x.seats, key)
			x.free = append(x.free, h.seat.slot)
		}
	}
}

// Overlap appends to dst what each worker's rank holds of the chain's beginning,
// for those that hold the first block in any tier, ordered by worker and rank.
// It allocates nothing if dst has room.
func (x *Index) Overlap(chain []BlockHash, dst []Match) []Match {
	x.mu.RLock()
	defer x.mu.RUnlock()
	at := x.positions()
	base := len(dst)
	for i, b := range chain {
		grew := false
		for _, h := range x.blocks[b] {
			p := &(*at)[h.seat.slot]
			if *p == 0 {
				if i > 0 {
					continue
				}
				dst = append(dst, Match{Worker: h.seat.worker, Rank: h.seat.rank})
				*p = int32(len(dst) - base)
			}
			m := &dst[base+int(*p)-1]
			for t := h.tier; t < NumTiers; t++ {
				if m.Depth[t] == uint32(i) {
					m.Depth[t]++
					grew = true
				}
			}
		}
		if !grew {
			break
		}
	}
	for _, m := range dst[base:] {
		(*at)[x.seats[seatKey{m.Worker, m.Rank}].slot] = 0
	}
	x.scratch.Put(at)
	slices.SortFunc(dst[base:], func(a, b Match) int {
		return cmp.Or(cmp.Compare(a.Worker, b.Worker), cmp.Compare(a.Rank, b.Rank))
	})
	return dst
}

// positions is a zeroed scratch slice with a place for every slot.
func (x *Index) positions() *[]int32 {
	p, _ := x.scratch.Get().(*[]int32)
	if p == nil {
		p = new([]int32)
	}
	if len(*p) < x.slots {
		*p = make([]int32, x.slots)
	}
	return p
}

// Stats counts what the index holds and has met.
func (x *Index) Stats() IndexStats {
	x.mu.RLock()
	defer x.mu.RUnlock()
	s := x.stats
	s.Owners = len(x.owners)
	s.Blocks = len(x.blocks)
	s.Bytes = s.Blocks*blockBytes + s.Memberships*membershipBytes
	return s
}

// Blocks lists what an owner holds, sorted by hash, each block once. It is for
// checks and people; it copies.
func (x *Index) Blocks(o Owner) []BlockHash {
	x.mu.RLock()
	defer x.mu.RUnlock()
	h := x.owners[o]
	if h == nil {
		return nil
	}
	list := make([]BlockHash, 0, len(h.held))
	for b := range h.held {
		list = append(list, b)
	}
	slices.Sort(list)
	return list
}

// OwnerState is one owner's place in the log and how much it holds.
type OwnerState struct {
	Owner Owner
	// Epoch, Term and Seq are of the last record accepted; see [Cursor].
	Epoch, Term, Seq uint64
	// Doubtful: records were lost, and nothing counts until a Cleared comes.
	Doubtful bool
	Blocks   int // different ones
}

// Owners lists all owners, sorted by worker, rank and tier.
func (x *Index) Owners() []OwnerState {
	x.mu.RLock()
	defer x.mu.RUnlock()
	list := make([]OwnerState, 0, len(x.owners))
	for o, h := range x.owners {
		list = append(list, OwnerState{
			Owner: o, Epoch: h.cursor.Epoch, Term: h.cursor.Term, Seq: h.cursor.Seq,
			Doubtful: h.cursor.Doubtful, Blocks: len(h.held),
		})
	}
	slices.SortFunc(list, func(a, b OwnerState) int {
		return cmp.Or(cmp.Compare(a.Owner.Worker, b.Owner.Worker), cmp.Compare(a.Owner.Rank, b.Owner.Rank), cmp.Compare(a.Owner.Tier, b.Owner.Tier))
	})
	return list
}

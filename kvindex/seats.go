package kvindex

import "sync/atomic"

// A seat is the small number of a (worker, rank), a slot that of an owner's
// content. Emptying an owner gives it another slot: the holdings of the old one
// no longer count, at once, and the sweep takes them away. A number is given out
// again when no holding has it and no reader can have seen one.
type slotInfo struct {
	worker WorkerID
	rank   uint16
	tier   Tier
	seat   uint32
	dead   uint32 // atomic: 1 once void, the only field that changes while somebody may look
}

func (i *slotInfo) isDead() bool { return atomic.LoadUint32(&i.dead) != 0 }

type seatKey struct {
	worker WorkerID
	rank   uint16
}

// seat counts the slots that have its number.
type seat struct {
	number uint32
	slots  int
}

// seats gives out seats and slots. Only the writer uses it, but for list and count.
type seats struct {
	// list has the slots by number. A longer one takes its place when it is full;
	// who still looks at the old one misses what happens from then on.
	list  atomic.Pointer[[]slotInfo]
	count atomic.Uint32 // seats are below it
	// slower is set once an owner of a slower tier than Device has been seen.
	slower atomic.Bool

	byKey     map[seatKey]*seat
	freeSeats []uint32
	freeSlots []uint32
	slots     uint32
	// dying are slots whose holdings are still there.
	dying []dying
}

// dying is a slot that no holding has once so many passes of the sweep are done.
type dying struct {
	slot   uint32
	passes uint64
}

// owner is an owner with what it holds.
type owner struct {
	Owner
	cursor Cursor
	slot   uint32
	held   int // blocks
	// copies are the blocks reported more than once: how often beyond the first.
	copies map[BlockHash]uint32
}

func (s *seats) all() []slotInfo {
	if p := s.list.Load(); p != nil {
		return *p
	}
	return nil
}

func (s *seats) slot(n uint32) *slotInfo { return &(*s.list.Load())[n] }

// take gives an owner a slot.
func (s *seats) take(o Owner) uint32 {
	key := seatKey{o.Worker, o.Rank}
	at := s.byKey[key]
	if at == nil {
		at = &seat{number: s.count.Load()}
		if n := len(s.freeSeats); n > 0 {
			at.number, s.freeSeats = s.freeSeats[n-1], s.freeSeats[:n-1]
		} else {
			s.count.Add(1)
		}
		s.byKey[key] = at
	}
	at.slots++
	n := s.number()
	info := s.slot(n)
	info.worker, info.rank, info.tier, info.seat = o.Worker, o.Rank, o.Tier, at.number
	atomic.StoreUint32(&info.dead, 0)
	if o.Tier > Device {
		s.slower.Store(true)
	}
	return n
}

func (s *seats) number() uint32 {
	if n := len(s.freeSlots); n > 0 {
		slot := s.freeSlots[n-1]
		s.freeSlots = s.freeSlots[:n-1]
		return slot
	}
	slot := s.slots
	s.slots++
	if old := s.all(); int(slot) == len(old) {
		list := make([]slotInfo, max(16, 2*len(old)))
		copy(list, old)
		for i := len(old); i < len(list); i++ {
			list[i].dead = 1
		}
		s.list.Store(&list)
	}
	return slot
}

// give takes back a slot that nobody can see.
func (s *seats) give(slot uint32) {
	info := s.slot(slot)
	key := seatKey{info.worker, info.rank}
	at := s.byKey[key]
	at.slots--
	if at.slots == 0 {
		delete(s.byKey, key)
		s.freeSeats = append(s.freeSeats, at.number)
	}
	s.freeSlots = append(s.freeSlots, slot)
}

// owner is the owner's entry, made if need be.
func (x *Index) owner(o Owner) *owner {
	if x.last != nil && x.last.Owner == o {
		return x.last
	}
	own := x.owners[o]
	if own == nil {
		own = &owner{Owner: o, slot: x.seats.take(o)}
		x.owners[o] = own
	}
	x.last = own
	return own
}

// empty takes everything from an owner, in constant time.
func (x *Index) empty(o *owner) {
	x.groups.empty(o.Owner)
	if o.held > 0 {
		old := o.slot
		o.slot = x.seats.take(o.Owner)
		x.bury(old)
	}
	x.memberships -= o.held
	x.copies -= len(o.copies)
	o.held, o.copies = 0, nil
}

// bury declares a slot's holdings void.
func (x *Index) bury(slot uint32) {
	atomic.StoreUint32(&x.seats.slot(slot).dead, 1)
	x.seats.dying = append(x.seats.dying, dying{slot: slot, passes: x.sweep.passes + 2})
}

// leave removes an owner.
func (x *Index) leave(o *owner) {
	x.groups.empty(o.Owner)
	x.memberships -= o.held
	x.copies -= len(o.copies)
	x.bury(o.slot)
	delete(x.owners, o.Owner)
	x.last = nil
}

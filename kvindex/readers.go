package kvindex

import (
	"sync/atomic"
	"unsafe"
)

// reader is the place of one goroutine inside the index. While its epoch is not
// 0, nothing that was reachable in that epoch or later is used for something
// else. A reader takes a place and leaves it; it waits for nobody.
type reader struct {
	epoch atomic.Uint64
	// found has for each seat where its match is: the query's number in the upper
	// half, the place in dst in the lower.
	found []uint64
	query uint32
	next  *reader // in the list of extra places
	path  [pathSteps]step
}

// readers are all places: some to begin with, and a list that grows when more
// goroutines than that read at once.
type readers struct {
	now   atomic.Uint64 // the epoch, from 1
	seats [32]reader
	extra atomic.Pointer[reader]
}

// enter takes a place. Which one to try first comes from the address of the
// stack, so that a goroutine finds its own again.
func (x *readers) enter() *reader {
	var here byte
	at := uint32(uintptr(unsafe.Pointer(&here))>>11) * 0x9E3779B1 >> 27 //nolint:gosec // a number to start from, never followed
	for i := range uint32(len(x.seats)) {
		r := &x.seats[(at+i)%uint32(len(x.seats))]
		if r.epoch.Load() == 0 && r.epoch.CompareAndSwap(0, x.now.Load()) {
			return r
		}
	}
	return x.enterExtra()
}

func (x *readers) enterExtra() *reader {
	for r := x.extra.Load(); r != nil; r = r.next {
		if r.epoch.Load() == 0 && r.epoch.CompareAndSwap(0, x.now.Load()) {
			return r
		}
	}
	r := &reader{}
	r.epoch.Store(x.now.Load())
	for {
		r.next = x.extra.Load()
		if x.extra.CompareAndSwap(r.next, r) {
			return r
		}
	}
}

func (r *reader) leave() { r.epoch.Store(0) }

// The path ends every reader's place on a line of its own.
const _ = -(unsafe.Sizeof(reader{}) % 64)

// begin starts a query over n seats and returns its number.
func (r *reader) begin(seats int) uint64 {
	if len(r.found) < seats {
		r.found = make([]uint64, seats+seats/4+8)
		r.query = 0
	}
	r.query++
	if r.query == 0 { // after 4 billion queries old numbers come again
		clear(r.found)
		r.query = 1
	}
	return uint64(r.query) << 32
}

// advance begins a new epoch and returns the oldest that somebody is in: what
// was retired in an earlier one is out of everybody's sight.
func (x *readers) advance() uint64 {
	oldest := x.now.Add(1)
	for i := range x.seats {
		if e := x.seats[i].epoch.Load(); e != 0 {
			oldest = min(oldest, e)
		}
	}
	for r := x.extra.Load(); r != nil; r = r.next {
		if e := r.epoch.Load(); e != 0 {
			oldest = min(oldest, e)
		}
	}
	return oldest
}

package sim

import (
	"container/heap"
	"time"
)

// class orders events of one moment: what was sent arrives, then requests come,
// then engines decide.
type class uint8

const (
	classNotice class = iota // records and answers reach a router
	classChange              // workers leave and join
	classArrive
	classEngine
)

// event is something due at a time.
type event struct {
	at    time.Duration
	class class
	seq   uint64
	do    func()
	// engine is set in place of do for an engine's step: most events are these.
	engine *engine
}

// agenda is the events to come.
type agenda struct {
	events []event
	seq    uint64
}

func (a *agenda) Len() int { return len(a.events) }

func (a *agenda) Less(i, j int) bool {
	x, y := &a.events[i], &a.events[j]
	if x.at != y.at {
		return x.at < y.at
	}
	if x.class != y.class {
		return x.class < y.class
	}
	return x.seq < y.seq
}

func (a *agenda) Swap(i, j int) { a.events[i], a.events[j] = a.events[j], a.events[i] }

// Push implements heap.Interface.
func (a *agenda) Push(x any) { a.events = append(a.events, x.(event)) } //nolint:forcetypeassert // only add calls it

// Pop implements heap.Interface.
func (a *agenda) Pop() any {
	last := len(a.events) - 1
	e := a.events[last]
	a.events[last] = event{}
	a.events = a.events[:last]
	return e
}

func (a *agenda) add(e event) {
	a.seq++
	e.seq = a.seq
	heap.Push(a, e)
}

func (a *agenda) next() event { return heap.Pop(a).(event) } //nolint:forcetypeassert // only add filled it

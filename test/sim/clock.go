package sim

import "time"

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

// agenda is the events to come: a binary heap, as container/heap keeps it but
// without a boxed value for each of the millions of events of a run.
type agenda struct {
	events []event
	seq    uint64
}

func (a *agenda) empty() bool { return len(a.events) == 0 }

func (e *event) before(o *event) bool {
	if e.at != o.at {
		return e.at < o.at
	}
	if e.class != o.class {
		return e.class < o.class
	}
	return e.seq < o.seq
}

func (a *agenda) add(e event) {
	a.seq++
	e.seq = a.seq
	a.events = append(a.events, e)
	for i := len(a.events) - 1; i > 0; {
		up := (i - 1) / 2
		if !a.events[i].before(&a.events[up]) {
			return
		}
		a.events[i], a.events[up] = a.events[up], a.events[i]
		i = up
	}
}

// next takes out the first event; there must be one.
func (a *agenda) next() event {
	first, last := a.events[0], len(a.events)-1
	a.events[0], a.events[last] = a.events[last], event{}
	a.events = a.events[:last]
	for i := 0; ; {
		least := i
		for child := 2*i + 1; child <= 2*i+2 && child < last; child++ {
			if a.events[child].before(&a.events[least]) {
				least = child
			}
		}
		if least == i {
			return first
		}
		a.events[i], a.events[least] = a.events[least], a.events[i]
		i = least
	}
}

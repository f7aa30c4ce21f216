package picker

import "time"

// booking is one picked request until it is closed.
type booking struct {
	isl int
	// decode is the leg that answers; prefill the leg on a prefill worker, if the
	// plan has one.
	decode, prefill leg
	// ended: the worker reported the end, the close is still to come.
	ended bool
	until time.Time // when the lease ends
}

// leg is what a booking puts on one worker.
type leg struct {
	on *worker // nil: on none
	// uncached and cached are the prompt's tokens to prefill there and those that
	// need none; both 0 on the decode worker of a pair.
	uncached, cached int
	// accepted: the worker has reported it, so its figures include it.
	accepted bool
}

func (l *leg) area() int { return l.uncached * (2*l.cached + l.uncached) }

// place puts a leg on w.
func (l *leg) place(w *worker, now time.Time) {
	l.on, l.accepted = w, false
	w.open++
	if l.uncached > 0 {
		w.queue.push(l, w.rates(), now)
	}
}

// lift takes the leg off its worker; nothing if it is on none.
func (l *leg) lift(now time.Time) {
	w := l.on
	if w == nil {
		return
	}
	w.queue.drop(l, w.rates(), now)
	w.open--
	if l.accepted {
		w.accepted--
	}
	l.on, l.accepted = nil, false
}

// move puts the leg on another worker. What that one has cached was not looked
// at, so nothing counts as cached.
func (l *leg) move(w *worker, isl int, now time.Time) {
	l.lift(now)
	if l.uncached > 0 {
		l.uncached, l.cached = max(1, isl), 0
	}
	l.place(w, now)
}

// lift takes both legs off their workers.
func (b *booking) lift(now time.Time) {
	b.decode.lift(now)
	b.prefill.lift(now)
}

// at is the booking's leg on w; nil if there is none.
func (b *booking) at(w *worker) *leg {
	switch w {
	case b.decode.on:
		return &b.decode
	case b.prefill.on:
		return &b.prefill
	default:
		return nil
	}
}

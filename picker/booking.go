package picker

import (
	"math"
	"time"

	"github.com/kvlane/kvlane/kvindex"
)

// booking is one request that a picker sent out, until it is closed; what is
// known of it afterwards stays for a while, so that late news changes nothing.
type booking struct {
	id string
	// replica is the picker that made it; empty for this one.
	replica string
	phase   phase
	isl     int
	session sessionKey
	// decode is the leg that answers; prefill the leg on a prefill worker, if the
	// plan has one.
	decode, prefill leg
	// seq is the newest announcement that was sent or, of another replica, heard.
	seq uint64
	// until is when its lease ends; renew when it is announced again.
	until, renew time.Time
	home         home
	// told is what its worker said of its answer, if heard.
	told  Report
	heard bool

	in         *list // each booking is in one
	prev, next *booking
}

// Report is what a worker said of a request's answer.
type Report struct {
	// TTFTMs is from the request's arrival at the worker's agent to the first token,
	// ms; 0 if it was not seen, as in answers that do not stream.
	TTFTMs float64 `json:"ttftMs"`
	// Cached are the prompt's tokens that needed no prefill, as the engine counted
	// them; -1 if it does not say.
	Cached int `json:"cached"`
}

// tell keeps what a worker said of the answer.
func (b *booking) tell(s *kvindex.Sample) {
	cached := int(s.CachedTokens)
	if s.PromptTokens == 0 && cached == 0 { // no usage was seen yet
		cached = -1
	}
	if ms := s.FirstTokenMs; ms > 0 && !math.IsInf(ms, 1) {
		b.told.TTFTMs = ms
	}
	if cached >= 0 || !b.heard {
		b.told.Cached = cached
	}
	b.heard = true
}

// Reported is what the worker of a booking has said of its answer so far; false if
// nothing, or if the booking was closed.
func (p *Pool) Reported(id string) (Report, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	b := p.bookings[id]
	if b == nil || !b.heard {
		return Report{}, false
	}
	return b.told, true
}

// phase is how far a booking is.
type phase uint8

const (
	// open: the request is under way.
	open phase = iota
	// ended: a worker or the other replica said that it is over. One of our own
	// waits for its close, one of another replica for announcements that are late.
	ended
	// foretold: a worker has reported a booking that no replica has announced yet.
	foretold
)

// leg is what a booking puts on one worker.
type leg struct {
	on    *worker // nil: on none
	since time.Time
	// uncached and cached are the prompt's tokens to prefill there and those that
	// need none; both 0 on the decode worker of a pair.
	uncached, cached int
	// shared: it belongs to a booking of another replica.
	shared bool
	// accepted: a worker has reported it, so that worker's figures include it. Where
	// it is on none, they have had it all along.
	accepted bool
	// seq is the announcement that put it there, if shared.
	seq uint64
}

func (l *leg) area() int { return l.uncached * (2*l.cached + l.uncached) }

// place puts a leg on w.
func (l *leg) place(w *worker, now time.Time) {
	l.on, l.since, l.accepted = w, now, false
	w.open++
	if l.shared {
		w.shared++
	}
	if l.uncached > 0 {
		w.queue.push(l, w.rates(), now)
	}
	w.owe(l, 1, now)
	w.touch()
}

// accept marks a placed leg as included in its worker's figures.
func (l *leg) accept() {
	if l.accepted {
		return
	}
	l.accepted = true
	l.on.accepted++
	if l.shared {
		l.on.sharedAccepted++
	}
}

// lift takes the leg off its worker; nothing if it is on none.
func (l *leg) lift(now time.Time) {
	w := l.on
	if w == nil {
		return
	}
	w.queue.drop(l, w.rates(), now)
	if !l.accepted {
		w.owe(l, -1, now)
	}
	w.open--
	if l.shared {
		w.shared--
	}
	if l.accepted {
		w.accepted--
		if l.shared {
			w.sharedAccepted--
			w.others = max(w.others, -w.sharedAccepted)
		}
	}
	l.on, l.accepted = nil, false
	w.touch()
}

// over lifts a leg that its worker is done with: announcements of it are late.
func (l *leg) over(now time.Time) {
	l.lift(now)
	l.accepted = l.shared
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

// leg is the leg that a worker which reports the booking is likely to have.
func (b *booking) leg(w *worker) *leg {
	if w.hello.Role == kvindex.RolePrefill {
		return &b.prefill
	}
	return &b.decode
}

// shared reports whether another replica made it.
func (b *booking) shared() bool { return b.decode.shared }

// own reports whether the booking is one of this picker's, under way; nil is not.
func (b *booking) own() bool { return b != nil && !b.shared() && b.phase == open }

// settled reports whether the workers' figures include every leg that is on one.
func (b *booking) settled() bool {
	return (b.decode.on == nil || b.decode.accepted) && (b.prefill.on == nil || b.prefill.accepted)
}

// list is a queue of bookings in the order of their next appointment.
type list struct {
	first, last *booking
	n           int
}

// push appends b, which is taken out of the list that it is in.
func (l *list) push(b *booking) {
	b.leave()
	b.in, b.prev = l, l.last
	if l.last != nil {
		l.last.next = b
	} else {
		l.first = b
	}
	l.last = b
	l.n++
}

// leave takes b out of its list.
func (b *booking) leave() {
	l := b.in
	if l == nil {
		return
	}
	if b.prev != nil {
		b.prev.next = b.next
	} else {
		l.first = b.next
	}
	if b.next != nil {
		b.next.prev = b.prev
	} else {
		l.last = b.prev
	}
	b.in, b.prev, b.next = nil, nil, nil
	l.n--
}

// enter makes a booking under a name that is free.
func (p *Pool) enter(id string) *booking {
	b := p.spare
	if b == nil {
		b = new(booking)
	} else {
		p.spare = b.next
		*b = booking{}
	}
	b.id = id
	p.bookings[id] = b
	return b
}

// drop forgets a booking that is on no worker any more. Its memory is used
// again.
func (p *Pool) drop(b *booking) {
	if b.shared() {
		p.shared--
	}
	b.leave()
	delete(p.bookings, b.id)
	b.id, b.replica = "", ""
	b.next, p.spare = p.spare, b
}

// schedule puts a booking that is under way where it is due.
func (p *Pool) schedule(b *booking, now time.Time) {
	switch {
	case b.settled() && b.in != &p.reported:
		if b.shared() {
			b.until = now.Add(p.config.BookingLease)
		}
		p.reported.push(b)
	case !b.settled() && !b.shared():
		b.renew = b.until
		if !p.alone() {
			b.renew = now.Add(p.config.ReplicaLease / 3)
		}
		p.unreported.push(b)
	}
}

// due is when something is to be done about a booking that no worker reported.
func (b *booking) due() time.Time {
	if b.until.Before(b.renew) {
		return b.until
	}
	return b.renew
}

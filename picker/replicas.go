package picker

import (
	"time"

	"github.com/kvlane/kvlane/kvindex"
)

// What replicas of a picker tell each other: each announces its bookings, and
// counts those of the others on their workers as it counts its own.
//
// Announcements and the workers' reports travel by different ways and may
// overtake each other, or be lost. So an announcement has a number, and only a
// newer one changes a leg; a leg that a worker has reported is that worker's
// business and no announcement moves it; what is over stays known for a while.
// What no worker has reported is announced again every third of ReplicaLease:
// so a replica that comes late learns of it, and one that dies is forgotten.

// Bounds of what is kept for other replicas.
const (
	// maxPending is the most announcements that wait for Outbox. More means that
	// nobody fetches them; the leases make up for what is lost.
	maxPending = 1 << 16
	// maxShared is the most bookings of other replicas that are known, those that
	// are over included: 30 s of 2,000 requests a second.
	maxShared = 1 << 16
	// maxTokens bounds what is believed of a leg's length.
	maxTokens = 1 << 24
)

// announcement is a record that waits for Outbox.
type announcement struct {
	owner   kvindex.Owner
	epoch   uint64
	booking kvindex.Booking
}

// home is where the last announcement of a booking said that it is.
type home struct {
	worker kvindex.WorkerID
	rank   uint16
	epoch  uint64
}

// Outbox appends the announcements that were made since the last call: Booking
// records for the log, in order. Call it when [Pool.Outgoing] wakes. A pool
// without a Replica makes none.
func (p *Pool) Outbox(dst []kvindex.Record) []kvindex.Record {
	p.mu.Lock()
	defer p.mu.Unlock()
	bookings := make([]kvindex.Booking, len(p.pending))
	for i := range p.pending {
		a := &p.pending[i]
		bookings[i] = a.booking
		dst = append(dst, kvindex.Record{Owner: a.owner, Epoch: a.epoch, Kind: kvindex.KindBooking, Booking: &bookings[i]})
	}
	clear(p.pending)
	p.pending = p.pending[:0]
	return dst
}

// Outgoing receives a value when the outbox is no longer empty. One signal is
// kept.
func (p *Pool) Outgoing() <-chan struct{} { return p.outgoing }

// alone reports whether there are no other replicas to tell.
func (p *Pool) alone() bool { return p.config.Replica == "" }

// announce tells the other replicas where the legs of b are that no worker has
// reported.
func (p *Pool) announce(b *booking, state kvindex.BookingState) {
	if p.alone() {
		return
	}
	p.seq++
	b.seq = p.seq
	for _, l := range [...]*leg{&b.prefill, &b.decode} {
		if l.on == nil || l.accepted {
			continue
		}
		b.home = home{worker: l.on.id, rank: l.on.rank, epoch: l.on.epoch}
		p.send(b, state, l)
	}
}

// announceEnd tells them that b is over. A worker's report that says so goes to
// all of them anyway.
func (p *Pool) announceEnd(b *booking) {
	if p.alone() || b.home.worker == "" {
		return
	}
	p.seq++
	b.seq = p.seq
	p.send(b, kvindex.BookingClosed, &leg{})
}

func (p *Pool) send(b *booking, state kvindex.BookingState, l *leg) {
	if len(p.pending) >= maxPending {
		p.counts.unsent++
		return
	}
	p.counts.announced++
	p.pending = append(p.pending, announcement{
		owner: kvindex.Owner{Worker: b.home.worker, Rank: b.home.rank}, epoch: b.home.epoch,
		booking: kvindex.Booking{
			ID: b.id, Replica: p.config.Replica, Seq: b.seq, State: state, Prefill: l == &b.prefill,
			Cached: uint32(l.cached), Uncached: uint32(l.uncached), LeaseMs: uint32(p.config.ReplicaLease.Milliseconds()),
		},
	})
	select {
	case p.outgoing <- struct{}{}:
	default: // one is there
	}
}

// hear takes over an announcement of another replica.
func (p *Pool) hear(r *kvindex.Record, now time.Time) {
	news := r.Booking
	if p.alone() || news == nil || news.ID == "" || news.Replica == "" || news.Replica == p.config.Replica {
		return
	}
	if news.Seq == 0 { // nobody has sent it: numbers begin with 1
		p.counts.late++
		return
	}
	b := p.known(news, now)
	switch {
	case b == nil:
	case news.State == kvindex.BookingClosed:
		if news.Seq <= b.seq {
			p.counts.late++
			return
		}
		b.seq = news.Seq
		p.end(b, now)
	default:
		p.hearLeg(b, r, now)
	}
}

// known is the booking that the announcement is about; nil where it changes
// nothing: it is late, or the name or the room is taken.
func (p *Pool) known(news *kvindex.Booking, now time.Time) *booking {
	b := p.bookings[news.ID]
	switch {
	case b == nil:
	case b.phase == foretold:
		b.replica, b.phase = news.Replica, open
		return b
	case b.replica == news.Replica && (b.phase == open || news.State == kvindex.BookingClosed):
		if news.State == kvindex.BookingOpen && news.Seq > b.seq {
			// The name was booked again and the close in between is late.
			b.lift(now)
			b.decode, b.prefill = leg{shared: true}, leg{shared: true}
		}
		return b
	case !b.shared() || b.phase == open:
		p.counts.clashes++
		return nil
	case b.replica == news.Replica && (news.State != kvindex.BookingOpen || news.Seq <= b.seq):
		p.counts.late++
		return nil
	default:
		p.drop(b)
	}
	b = p.meet(news.ID)
	if b != nil {
		b.replica, b.phase = news.Replica, open
	}
	return b
}

// hearLeg takes over what the announcement says of its leg, unless a newer one or
// the leg's worker has spoken.
func (p *Pool) hearLeg(b *booking, r *kvindex.Record, now time.Time) {
	news := r.Booking
	l := &b.decode
	if news.Prefill {
		l = &b.prefill
	}
	if news.Seq <= l.seq {
		p.counts.late++
		return
	}
	p.counts.heard++
	l.seq, b.seq = news.Seq, max(b.seq, news.Seq)
	b.isl = max(b.isl, int(min(news.Cached, maxTokens))+int(min(news.Uncached, maxTokens)))
	if !l.accepted {
		p.putLeg(l, r, now)
	}
	if b.in == nil || b.in == &p.past || !b.settled() {
		lease := p.config.ReplicaLease
		if news.LeaseMs > 0 {
			lease = min(lease, time.Duration(news.LeaseMs)*time.Millisecond)
		}
		b.until = now.Add(lease)
		p.heard.push(b)
	}
}

// putLeg puts it on the worker, unless that is not known or its engine is gone.
func (p *Pool) putLeg(l *leg, r *kvindex.Record, now time.Time) {
	w := p.worker(r.Owner.Worker, r.Owner.Rank)
	if w != nil && r.Epoch < w.epoch {
		w = nil // it was sent to an engine that is gone
	}
	if l.on == w {
		return
	}
	l.lift(now)
	if w != nil {
		l.uncached, l.cached = int(min(r.Booking.Uncached, maxTokens)), int(min(r.Booking.Cached, maxTokens))
		l.place(w, now)
	}
}

// foretell notes that a worker has reported a booking that is not known here: its
// announcement is late, or nobody makes one.
func (p *Pool) foretell(w *worker, id string, now time.Time) {
	if p.alone() || id == "" {
		return
	}
	if p.bookings[id] != nil {
		return
	}
	if b := p.meet(id); b != nil {
		b.phase = foretold
		b.leg(w).accepted = true
		b.until = now.Add(p.config.ReplicaLease)
		p.past.push(b)
	}
}

// meet makes a booking that is not our own; nil if there are too many. Those
// that are over give way first.
func (p *Pool) meet(id string) *booking {
	if p.shared >= maxShared {
		if p.past.first == nil {
			p.counts.overflow++
			return nil
		}
		p.drop(p.past.first)
	}
	b := p.enter(id)
	b.decode.shared, b.prefill.shared = true, true
	p.shared++
	return b
}

// end lifts a booking of another replica that is over. It stays known for as
// long as announcements may be late.
func (p *Pool) end(b *booking, now time.Time) {
	b.lift(now)
	b.phase, b.until = ended, now.Add(p.config.ReplicaLease)
	p.past.push(b)
}

package picker

import (
	"slices"
	"time"

	"github.com/kvlane/kvlane/internal/timing"
	"github.com/kvlane/kvlane/kvindex"
)

// Apply takes over a record of the log: Hello, Load and Bye of a worker's device
// memory; any other record of a worker only shows that it is alive. Records of
// an older term or epoch than the newest seen are counted and ignored. A newer
// epoch forgets the load and the bookings of the life before. A lapsed Bye ends the
// worker's lease only: it stays known for LeaseGrace, not ready. A Booking of
// another replica counts on its worker until it is closed or its lease ends, from
// the worker's report of it on as a part of that. The record is not kept.
func (p *Pool) Apply(r *kvindex.Record, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	defer p.sweep(now)
	if p.base.IsZero() {
		p.base = now
	}
	if r.Kind == kvindex.KindBooking {
		p.hear(r, now)
		return
	}
	w := p.worker(r.Owner.Worker, r.Owner.Rank)
	if r.Owner.Tier != kvindex.Device {
		if w != nil {
			w.heard = now // other tiers have epochs and terms of their own
			w.touch()
		}
		return
	}
	if w == nil {
		if r.Kind != kvindex.KindHello || r.Hello == nil {
			return // its next heartbeat introduces it
		}
		w = p.insert(r.Owner)
	}
	if r.Term < w.term || r.Epoch < w.epoch {
		p.counts.fenced++
		return
	}
	if r.Kind == kvindex.KindBye && r.Lapsed {
		w.heard = now.Add(-w.lease - 1) // its name stays for LeaseGrace
		w.touch()
		return
	}
	if r.Epoch > w.epoch {
		p.liftFrom(w, now)
		w.forget()
		w.health.reborn(now)
	}
	w.epoch, w.term, w.heard = r.Epoch, r.Term, now
	w.touch()
	switch {
	case r.Kind == kvindex.KindHello && r.Hello != nil:
		p.hello(w, r.Hello)
		p.assume(w, now)
	case r.Kind == kvindex.KindLoad && r.Load != nil:
		p.load(w, r.Load, now)
	case r.Kind == kvindex.KindBye:
		i, _ := p.find(w.id, w.rank)
		p.remove(i, now)
	}
}

func (p *Pool) insert(o kvindex.Owner) *worker {
	w := &worker{pool: p, id: o.Worker, rank: o.Rank, chunk: p.config.ChunkTokens}
	i, _ := p.find(o.Worker, o.Rank)
	p.workers = slices.Insert(p.workers, i, w)
	p.moved = true
	return w
}

func (p *Pool) remove(i int, now time.Time) {
	p.liftFrom(p.workers[i], now)
	p.workers[i].gone = true
	p.workers = slices.Delete(p.workers, i, i+1)
	p.moved = true
}

// liftFrom takes all legs off w. Their bookings stay until they are closed.
func (p *Pool) liftFrom(w *worker, now time.Time) {
	if w.open == 0 {
		return
	}
	for _, b := range p.bookings {
		if l := b.at(w); l != nil {
			l.lift(now)
		}
	}
}

func (p *Pool) hello(w *worker, h *kvindex.Hello) {
	w.lease = p.config.DefaultLease
	if h.LeaseMs > 0 {
		w.lease = time.Duration(h.LeaseMs) * time.Millisecond
	}
	w.hello.Ready = h.Ready
	if same(&w.hello, h) && w.deployed != "" {
		return // a heartbeat
	}
	d := p.deployment(h.Deployment)
	if prior := d.Timing().Scaled(1 / p.config.TimeScale); w.deployed != d.Name || w.hello.Role != h.Role {
		w.timing, w.watch = prior, watch{learner: timing.NewLearner(prior)}
	}
	w.deployed, w.kvBytes = d.Name, d.KVBytesPerToken
	w.hello = *h
	w.hello.Served, w.hello.Adapters, w.hello.Loading = slices.Clone(h.Served), slices.Clone(h.Adapters), slices.Clone(h.Loading)
	w.hello.Tiers = slices.Clone(h.Tiers)
	p.moved = true
}

// same reports whether two introductions say the same of what matters to a pick,
// but for Ready.
func same(a, b *kvindex.Hello) bool {
	return a.Address == b.Address && a.Role == b.Role && a.Model == b.Model && a.BlockSize == b.BlockSize &&
		a.Deployment == b.Deployment && slices.Equal(a.Served, b.Served) && slices.Equal(a.Adapters, b.Adapters) &&
		slices.Equal(a.Loading, b.Loading) && slices.Equal(a.Tiers, b.Tiers) &&
		a.Zone == b.Zone && a.Rack == b.Rack && a.Domain == b.Domain && a.Lockstep == b.Lockstep && a.Bare == b.Bare
}

// deployment is the one of that name, else the default one, else the first.
func (p *Pool) deployment(name string) timing.Deployment {
	for _, n := range []string{name, p.config.DefaultDeployment} {
		if d, err := p.table.Find(n); err == nil {
			return d
		}
	}
	if len(p.table.Deployments) > 0 {
		return p.table.Deployments[0]
	}
	return timing.Deployment{}
}

// load applies a report: first what it says of bookings, then its figures, which
// include exactly the accepted ones.
func (p *Pool) load(w *worker, l *kvindex.Load, now time.Time) {
	if w.hello.Bare {
		p.bare(w, l, now)
		return
	}
	if p.config.Learn && !w.hello.Lockstep { // whose steps take as long as other ranks'
		p.watch(w, l, now)
		defer p.relearn(now)
	}
	since := w.queue.reported
	p.judge(w, l, now)
	for _, id := range l.Accepted {
		if b, _ := p.accept(w, id, now); b == nil {
			p.foretell(w, id, now)
		}
	}
	for i := range l.FirstToken {
		p.firstToken(w, &l.FirstToken[i], since, now)
	}
	for i := range l.Done {
		p.done(w, &l.Done[i], now)
	}
	w.report(l, now)
}

// accept marks the booking's leg on w as included in the worker's figures. A
// booking that is not there as far as we know has reached w by a fallback or a
// retry: it moves.
func (p *Pool) accept(w *worker, id string, now time.Time) (*booking, *leg) {
	b := p.bookings[id]
	if b == nil || b.phase == ended {
		return nil, nil
	}
	l := b.at(w)
	if l == nil {
		l = b.leg(w)
		if l.on == nil && l.accepted {
			return b, l // its worker reported it before its replica did, or is done with it
		}
		if b.phase == foretold {
			l.accepted = true
			return b, l
		}
		p.came(b, l, w, now)
		l.move(w, b.isl, now)
	}
	l.accept()
	p.schedule(b, now)
	return b, l
}

// came notes that a booking's leg is on another worker than it was sent to.
func (p *Pool) came(b *booking, l *leg, w *worker, now time.Time) {
	if l != &b.decode {
		return
	}
	if l.on != nil && l.on.id != w.id { // which of its ranks has it is an engine's own affair
		p.passedOver(b, now)
	}
	p.sessions.note(b.session, w.id, w.rank, now)
}

// firstToken takes a leg out of the queue, its prompt has been prefilled. The
// first token of the answer also ends a prefill leg elsewhere.
func (p *Pool) firstToken(w *worker, s *kvindex.Sample, since, now time.Time) {
	b, l := p.accept(w, s.Booking, now)
	if b == nil {
		return
	}
	if l == &b.decode {
		b.tell(s)
	}
	w.queue.finish(l, w.rates(), since, now)
	w.touch()
	if l == &b.decode {
		b.prefill.over(now)
	}
}

// done ends a leg. The end of the answer ends the booking; it stays known for a
// while, for its close.
func (p *Pool) done(w *worker, s *kvindex.Sample, now time.Time) {
	b := p.bookings[s.Booking]
	if b == nil || b.phase == ended {
		return
	}
	switch l := b.at(w); {
	case l == &b.prefill, l == nil && b.leg(w) == &b.prefill:
		b.prefill.over(now)
		return
	case l == nil && b.decode.on != nil:
		return
	}
	b.tell(s)
	// Without a leg on w: the worker was forgotten in between.
	switch {
	case b.phase == foretold:
		b.decode.over(now)
		b.prefill.over(now)
	case b.shared():
		p.end(b, now)
	default:
		b.lift(now)
		b.phase, b.until = ended, now.Add(endedGrace)
		p.ended.push(b)
	}
}

package picker

import "time"

// debt is the count of the prefill time that a worker was given beyond the part of
// its time that the target of the time between tokens leaves for it.
//
// A step that prefills takes some hundred ms, one that only decodes some ten: the
// time between tokens is the decode step divided by the part of the time that is not
// spent on prefills. So with a target, prefills may take 1 - step/target. What is
// booked is owed; what is owed falls by that part of the time that passes.
type debt struct {
	owed float64 // ms
	at   time.Time
}

// shareMargin is the part of the target that the mean is kept at: requests differ.
// Simulated fleets under overload answered most requests in time with 0.8 to 0.9.
const shareMargin = 0.9

// leastShare is what prefills may take of the time however long decode steps are:
// a worker that is given nothing would never be asked again.
const leastShare = 0.05

// shares reports whether prefills are limited by their part of the time: there has to
// be a target, and a limit for what may be owed.
func (f *Fleet) shares() bool { return f.MaxQueueMs > 0 && f.SLO.TPOTMs > 0 }

// left is what is owed now if decode steps take so long, ms.
func (s *debt) left(stepMs, targetMs float64, now time.Time) float64 {
	part := max(leastShare, 1-stepMs/(shareMargin*targetMs))
	return max(0, s.owed-part*msBetween(s.at, now))
}

// owedMs is what the worker owes now; 0 without such a limit.
func (w *worker) owedMs(now time.Time) float64 {
	f := &w.pool.fleet
	if !f.shares() || w.debt.owed == 0 {
		return 0
	}
	return w.debt.left(w.timing.DecodeMs(w.decoding(), int(w.load.ContextTokens)), f.SLO.TPOTMs, now)
}

// owe adds the prefill of a leg that was put on the worker, or takes back that of one
// that never got there.
func (w *worker) owe(l *leg, sign float64, now time.Time) {
	if !w.pool.fleet.shares() || l.uncached == 0 {
		return
	}
	owed := w.owedMs(now) + sign*w.timing.PrefillMs(l.uncached, l.cached, w.chunk)
	w.debt = debt{owed: max(0, owed), at: now}
}

// postShares puts on the board what the workers owe now.
func (p *Pool) postShares(now time.Time) {
	if !p.fleet.shares() {
		return
	}
	for i, w := range p.workers {
		p.board.candidates[i].owed = w.owedMs(now)
	}
}

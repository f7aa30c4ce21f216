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
	// spare is the same of the smaller part that is left to requests with less room.
	spare float64
	at    time.Time
}

// shareMargin is the part of the target that the mean is kept at: requests differ.
// Simulated fleets under overload answered most requests in time with 0.8 to 0.9.
const shareMargin = 0.9

// spareMargin is shareMargin for requests with less room ([Request].Room): what it
// leaves free is for the others. With 0.8 a simulated tenant beside a flood kept 0.90 of
// its requests in time and with 0.6 0.96, the flood 0.46 and 0.41.
const spareMargin = 0.7

// leastShare is what prefills may take of the time however long decode steps are:
// a worker that is given nothing would never be asked again.
const leastShare = 0.05

// shares reports whether prefills are limited by their part of the time: there has to
// be a target, and a limit for what may be owed.
func (f *Fleet) shares() bool { return f.MaxQueueMs > 0 && f.SLO.TPOTMs > 0 }

// after is what is owed now if decode steps take so long, ms.
func (s debt) after(stepMs, targetMs float64, now time.Time) debt {
	passed := msBetween(s.at, now)
	left := func(owed, margin float64) float64 {
		return max(0, owed-max(leastShare, 1-stepMs/(margin*targetMs))*passed)
	}
	return debt{owed: left(s.owed, shareMargin), spare: left(s.spare, spareMargin), at: now}
}

// owes is what the worker owes now; nothing without such a limit.
func (w *worker) owes(now time.Time) debt {
	f := &w.pool.fleet
	if !f.shares() || w.debt.spare == 0 { // never less than what is owed
		return debt{at: now}
	}
	return w.debt.after(w.timing.DecodeMs(w.decoding(), int(w.load.ContextTokens)), f.SLO.TPOTMs, now)
}

// owe adds the prefill of a leg that was put on the worker, or takes back that of one
// that never got there.
func (w *worker) owe(l *leg, sign float64, now time.Time) {
	if !w.pool.fleet.shares() || l.uncached == 0 {
		return
	}
	more := sign * w.timing.PrefillMs(l.uncached, l.cached, w.chunk)
	d := w.owes(now)
	w.debt = debt{owed: max(0, d.owed+more), spare: max(0, d.spare+more), at: now}
}

// postShares puts on the board what the workers owe now.
func (p *Pool) postShares(now time.Time) {
	if !p.fleet.shares() {
		return
	}
	for i, w := range p.workers {
		d := w.owes(now)
		p.board.candidates[i].owed, p.board.candidates[i].spare = d.owed, d.spare
	}
}

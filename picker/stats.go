package picker

import (
	"slices"
	"time"

	"github.com/kvlane/kvlane/kvindex"
)

// PoolStats are the pool's gauges and totals.
type PoolStats struct {
	Workers, Ready int
	// Unreported are the ready workers that have not reported their load for a while, or
	// at all: the mean of the others is assumed there.
	Unreported int
	// Bookings are those under way; ones whose end a worker has reported and that
	// only wait for their close are not counted.
	Bookings int
	// Shared are those of other replicas, as far as they were announced.
	Shared    int
	PerWorker []WorkerStats // sorted by worker, then rank
	// Classes are what was learned of the workers' timing, sorted by deployment, role and
	// kind; none where the picker does not learn.
	Classes []ClassStats

	// Totals since the start: picks with and without a target, bookings that
	// nobody closed within their lease, closes of names that were not booked,
	// bookings whose name was booked again, records of an older term or epoch.
	Picked, Refused, Expired, UnknownCloses, Replaced, Fenced uint64

	// Totals of what replicas tell each other. Announced and Unsent are
	// announcements of ours that were made, and that were not because nobody fetched
	// the ones before.
	Announced, Unsent uint64
	// Heard are announcements of others that were taken over, Late those that came
	// after a newer one, or after their end. Clashes are those whose name was
	// booked here or by a third, Overflow those for which there was no room: both are
	// not counted until a worker reports them. Lapsed are bookings that nobody closed
	// or announced again.
	Heard, Late, Clashes, Overflow, Lapsed uint64

	// Sessions are those remembered.
	Sessions int
	// Ejected are the workers that are out for their failures.
	Ejected int
	// Totals: ejections, failures that would have ejected one more than the share, picks
	// that only ejected workers were left for, failures by their blame.
	Ejections, Kept, Resorted uint64
	Failures                  [NumBlames]uint64

	// HandOffs are the picks with a target by why the prompt is prefilled on another
	// worker, or is not.
	HandOffs [NumHandOffs]uint64
}

// WorkerStats are the gauges of one worker's rank.
type WorkerStats struct {
	Worker  kvindex.WorkerID
	Rank    uint16
	Address string
	Role    kvindex.Role
	Ready   bool
	// Deployment names the timing constants in use.
	Deployment string
	// Requests are all that are known there, Bookings the legs of our own ones
	// among them, Shared those of other replicas.
	Requests, Bookings, Shared int
	QueueMs                    float64 // predicted
	QueuedTokens               int     // uncached tokens of bookings without a first token
	// EjectedMs is how long it is still out for its failures, ReturnMs what its price
	// has more since, ms; 0 for none. Failures are all that it was blamed for.
	EjectedMs, ReturnMs float64
	Failures            uint64
}

// Stats are the figures at one moment.
func (p *Pool) Stats(now time.Time) PoolStats {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sweep(now)
	p.refresh(now)
	s := PoolStats{
		Workers: len(p.workers), PerWorker: make([]WorkerStats, 0, len(p.workers)),
		Picked: p.counts.picked, Refused: p.counts.refused, Expired: p.counts.expired,
		UnknownCloses: p.counts.unknownCloses, Replaced: p.counts.replaced, Fenced: p.counts.fenced,
		Announced: p.counts.announced, Unsent: p.counts.unsent,
		Sessions: p.sessions.live(now), Ejections: p.counts.ejections, Kept: p.counts.kept, Resorted: p.counts.resorted,
		Failures: p.counts.blamed, HandOffs: p.counts.handOffs,
		Heard: p.counts.heard, Late: p.counts.late, Clashes: p.counts.clashes, Overflow: p.counts.overflow, Lapsed: p.counts.lapsed,
	}
	s.Classes = slices.Clone(p.learned)
	for _, b := range p.bookings {
		switch {
		case b.own():
			s.Bookings++
		case b.phase == open:
			s.Shared++
		}
	}
	for _, w := range p.workers {
		e := w.endpoint(now)
		if e.Ready {
			s.Ready++
			if w.assumed.share > 0 {
				s.Unreported++
			}
		}
		if e.EjectedMs > 0 {
			s.Ejected++
		}
		s.PerWorker = append(s.PerWorker, WorkerStats{
			Worker: w.id, Rank: w.rank, Address: e.Address, Role: e.Role, Ready: e.Ready, Deployment: w.deployed,
			Requests: e.Requests, Bookings: w.open - w.shared, Shared: w.shared, QueueMs: e.QueueMs, QueuedTokens: w.queue.tokens,
			EjectedMs: e.EjectedMs, ReturnMs: e.ReturnMs, Failures: w.failures,
		})
	}
	return s
}

package epp

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvlane/kvlane/kvindex"
	"github.com/kvlane/kvlane/picker"
)

// retryAfter is the pause before a broken tail starts anew.
const retryAfter = 200 * time.Millisecond

// dropEvery is the pause between two looks for workers that left without a word.
const dropEvery = 5 * time.Second

// holdEvery is how often the leases of the workers are renewed here while the log
// is away: well below the shortest lease of an agent, 3 s.
const holdEvery = 500 * time.Millisecond

// regainEvery is the least time between two tails that begin anew for what the
// index has lost.
const regainEvery = 5 * time.Second

// errRegain ends a tail so that the next one rebuilds what the index has lost.
var errRegain = errors.New("the index lost a worker that writes on")

// follower reads the log into the index, the prefix map and the pool.
type follower struct {
	log      *source
	index    *kvindex.Index
	prefixes *kvindex.PrefixMap
	pool     *picker.Pool
	logger   *slog.Logger
	members  *members
	ready    *readiness
	// reported is told of every batch of records: a worker may have room; learned of
	// every lesson.
	reported func()
	learned  func(*kvindex.Learned)

	writing  sync.Mutex // one record at a time goes into the index
	lost     map[kvindex.Owner]loss
	regained time.Time

	records, bookings, gaps, fenced, fault atomic.Uint64
}

// loss is where the records of an owner ceased to follow.
type loss struct{ epoch, term, seq uint64 }

// over reports whether a Cleared makes up for it: it comes later, or from a newer
// life or writer.
func (l loss) over(r *kvindex.Record) bool {
	return r.Epoch > l.epoch || r.Term > l.term || r.Seq >= l.seq
}

// run follows the log until ctx ends. A tail that breaks starts anew: what the
// index holds stays in use, and the log's first records bring it up to date.
func (f *follower) run(ctx context.Context) error {
	for {
		err := f.log.Tail(ctx, f.apply)
		if ctx.Err() != nil {
			return nil //nolint:nilerr // asked to stop
		}
		f.logger.Warn("tail of the log broke, starting anew", "err", err)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(retryAfter):
		}
	}
}

// apply takes over a batch. An empty one says that the present state is complete.
func (f *follower) apply(records []kvindex.Record) error {
	now := time.Now()
	f.writing.Lock()
	defer f.writing.Unlock()
	for i := range records {
		f.one(&records[i], now)
	}
	f.reported()
	if len(records) == 0 {
		f.ready.stateRead(f.readyWorkers())
	}
	return f.regain(now)
}

// regain drops from the index the workers that it has lost records of, and asks
// for a tail that begins anew: its first records rebuild them. A writer that knows
// of the loss sends all anew by itself, which may come first.
func (f *follower) regain(now time.Time) error {
	if len(f.lost) == 0 || now.Sub(f.regained) < regainEvery {
		return nil
	}
	for o := range f.lost {
		f.index.Drop(o.Worker)
	}
	clear(f.lost)
	f.regained = now
	return errRegain
}

// one applies a record everywhere; the caller holds writing. A record that the
// index refuses is counted: the owner's blocks are unknown until its writer sends a
// snapshot.
func (f *follower) one(r *kvindex.Record, now time.Time) {
	f.records.Add(1)
	if r.Kind == kvindex.KindBooking {
		f.bookings.Add(1)
	}
	f.pool.Apply(r, now)
	f.note(r) // after the pool: whoever is noted and not there is taken for gone
	err := f.index.Apply(r)
	if r.Learned != nil && err == nil {
		f.prefixes.Learn(r.Learned)
		f.learned(r.Learned)
	}
	var gap *kvindex.GapError
	switch {
	case err == nil && r.Kind == kvindex.KindCleared:
		if l, ok := f.lost[r.Owner]; ok && l.over(r) {
			delete(f.lost, r.Owner)
		}
	case err == nil && r.Kind == kvindex.KindBye:
		maps.DeleteFunc(f.lost, func(o kvindex.Owner, _ loss) bool { return o.Worker == r.Owner.Worker })
	case err == nil:
	case errors.As(err, &gap):
		f.gaps.Add(1)
		f.lost[r.Owner] = loss{epoch: r.Epoch, term: r.Term, seq: gap.Want - 1}
		f.logger.Warn("records were lost", "err", err)
	case errors.Is(err, kvindex.ErrFenced):
		f.fenced.Add(1)
	default:
		f.fault.Add(1)
		f.logger.Warn("record refused", "err", err)
	}
}

// note keeps the list of workers.
func (f *follower) note(r *kvindex.Record) {
	switch joined, left := f.members.note(r); {
	case joined:
		f.logger.Info("worker joined", "worker", r.Owner.Worker, "address", r.Hello.Address, "role", r.Hello.Role.String(), "ready", r.Hello.Ready)
	case left:
		f.logger.Info("worker left", "worker", r.Owner.Worker, "lease_over", r.Lapsed)
	}
	if r.Kind == kvindex.KindHello {
		f.ready.changed()
	}
}

func (f *follower) readyWorkers() int { return f.pool.Stats(time.Now()).Ready }

// hold keeps the workers in the pool while the log is away: nobody can renew a
// lease then, and what was there a moment ago is the best that is known. The log's
// tail repeats their Hellos, too, but a busy machine may be late with that.
func (f *follower) hold(ctx context.Context) error {
	if f.log.redis == nil {
		return nil
	}
	tick := time.NewTicker(holdEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-tick.C:
			if f.log.redis.Status().Connected {
				continue
			}
			for _, hello := range f.members.hellos() {
				f.pool.Apply(&hello, now)
			}
		}
	}
}

// dropSilent takes workers out that the pool has given up: their lease ran out
// long ago. The own log then says Bye for them. In Redis, leases end by themselves
// and a Bye says so; one that was missed is made up for here alone, since another
// picker may still hear the worker.
func (f *follower) dropSilent(ctx context.Context) error {
	tick := time.NewTicker(dropEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-tick.C:
			for _, id := range f.silent(now) {
				f.logger.Warn("worker left without a word", "worker", id)
				if f.log.embedded != nil {
					f.log.embedded.Drop(id)
					continue
				}
				f.writing.Lock()
				f.one(&kvindex.Record{Owner: kvindex.Owner{Worker: id}, Term: math.MaxUint64, Kind: kvindex.KindBye}, now)
				f.writing.Unlock()
			}
		}
	}
}

// silent are the workers that the pool no longer has.
func (f *follower) silent(now time.Time) []kvindex.WorkerID {
	gone := f.members.names()
	for _, e := range f.pool.Fleet(now).Endpoints {
		if i, ok := slices.BinarySearch(gone, e.Worker); ok {
			gone = slices.Delete(gone, i, i+1)
		}
	}
	return gone
}

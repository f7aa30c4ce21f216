package epp

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/kvlane/kvlane/kvindex"
	"github.com/kvlane/kvlane/picker"
)

// retryAfter is the pause before a broken tail starts anew.
const retryAfter = 200 * time.Millisecond

// dropEvery is the pause between two looks for workers that left without a word,
// holdEvery that between two looks whether the log is away.
const (
	dropEvery = 5 * time.Second
	holdEvery = 500 * time.Millisecond
)

// follower reads the log into the index, the prefix map and the pool.
type follower struct {
	log          *source
	index        *kvindex.Index
	prefixes     *kvindex.PrefixMap
	pool         *picker.Pool
	defaultLease time.Duration // of workers that do not say theirs
	logger       *slog.Logger
	members      *members
	ready        *readiness

	records, bookings, gaps, fenced, fault atomic.Uint64
}

// run follows the log until ctx ends. A tail that breaks starts anew: what the
// index holds stays in use, and the log's first records bring it up to date.
func (f *follower) run(ctx context.Context) error {
	told := false
	for {
		err := f.log.Tail(ctx, f.apply)
		if ctx.Err() != nil {
			return nil //nolint:nilerr // asked to stop
		}
		level := slog.LevelWarn
		if told && !f.log.connected() { // whoever watches the connection has said so
			level = slog.LevelDebug
		}
		told = true
		f.logger.Log(ctx, level, "tail of the log broke, starting anew", "err", err)
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
	for i := range records {
		f.one(&records[i], now)
	}
	if len(records) == 0 {
		f.ready.stateRead(f.readyWorkers())
	}
	return nil
}

// one applies a record everywhere. A record that the index refuses is counted:
// the owner's blocks are unknown until its writer sends a snapshot.
func (f *follower) one(r *kvindex.Record, now time.Time) {
	f.records.Add(1)
	if r.Kind == kvindex.KindBooking {
		f.bookings.Add(1)
	}
	f.pool.Apply(r, now)
	f.note(r, now) // after the pool: whoever is noted and not there is taken for gone
	err := f.index.Apply(r)
	if r.Learned != nil && err == nil {
		f.prefixes.Learn(r.Learned)
	}
	var gap *kvindex.GapError
	switch {
	case err == nil:
	case errors.As(err, &gap):
		f.gaps.Add(1)
		f.logger.Warn("records were lost", "err", err)
	case errors.Is(err, kvindex.ErrFenced):
		f.fenced.Add(1)
	default:
		f.fault.Add(1)
		f.logger.Warn("record refused", "err", err)
	}
}

// note keeps the list of workers.
func (f *follower) note(r *kvindex.Record, now time.Time) {
	switch joined, left := f.members.note(r, now); {
	case joined:
		f.logger.Info("worker joined", "worker", r.Owner.Worker, "address", r.Hello.Address, "role", r.Hello.Role.String(), "ready", r.Hello.Ready)
	case left:
		f.logger.Info("worker left", "worker", r.Owner.Worker)
	}
	if r.Kind == kvindex.KindHello {
		f.ready.changed()
	}
}

func (f *follower) readyWorkers() int { return f.pool.Stats(time.Now()).Ready }

// hold keeps the workers in the pool while the log is away. Nobody can renew a
// lease then, and what was there a moment ago is the best that is known.
func (f *follower) hold(ctx context.Context) error {
	tick := time.NewTicker(holdEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-tick.C:
			if f.log.connected() {
				continue
			}
			for _, hello := range f.members.present(f.defaultLease) {
				f.pool.Apply(&hello, now)
			}
		}
	}
}

// dropSilent takes workers out of the log that the pool has given up: their
// lease ran out long ago. The log's Bye then empties the index.
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
				if err := f.log.drop(ctx, id); err != nil {
					f.logger.Warn("worker stays in the log", "worker", id, "err", err)
				}
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

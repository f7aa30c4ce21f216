package epp

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvlane/kvlane/kvindex"
	"github.com/kvlane/kvlane/kvindex/memlog"
	"github.com/kvlane/kvlane/picker"
)

// retryAfter is the pause before a broken tail starts anew.
const retryAfter = 200 * time.Millisecond

// dropEvery is the pause between two looks for workers that left without a word.
const dropEvery = 5 * time.Second

// follower reads the log into the index, the prefix map and the pool.
type follower struct {
	log      kvindex.Log
	index    *kvindex.Index
	prefixes *kvindex.PrefixMap
	pool     *picker.Pool
	logger   *slog.Logger

	mu      sync.Mutex
	workers map[kvindex.WorkerID]struct{} // introduced and not gone

	tailing                      atomic.Bool
	records, gaps, fenced, fault atomic.Uint64
}

func newFollower(log kvindex.Log, index *kvindex.Index, prefixes *kvindex.PrefixMap, pool *picker.Pool, logger *slog.Logger) *follower {
	return &follower{log: log, index: index, prefixes: prefixes, pool: pool, logger: logger, workers: map[kvindex.WorkerID]struct{}{}}
}

// ready is nil while the log is being followed.
func (f *follower) ready() error {
	if !f.tailing.Load() {
		return errors.New("the log is not being followed")
	}
	return nil
}

// run follows the log until ctx ends. A tail that breaks starts anew: what the
// index holds stays in use, and the log's first records bring it up to date.
func (f *follower) run(ctx context.Context) error {
	for {
		f.tailing.Store(true)
		err := f.log.Tail(ctx, f.apply)
		f.tailing.Store(false)
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

func (f *follower) apply(records []kvindex.Record) error {
	now := time.Now()
	for i := range records {
		f.one(&records[i], now)
	}
	return nil
}

// one applies a record everywhere. A record that the index refuses is counted:
// the owner's blocks are unknown until its writer sends a snapshot.
func (f *follower) one(r *kvindex.Record, now time.Time) {
	f.records.Add(1)
	f.pool.Apply(r, now)
	f.note(r) // after the pool: whoever is noted and not there is taken for gone
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
func (f *follower) note(r *kvindex.Record) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch r.Kind {
	case kvindex.KindHello:
		if _, known := f.workers[r.Owner.Worker]; !known {
			f.logger.Info("worker joined", "worker", r.Owner.Worker, "address", r.Hello.Address, "role", r.Hello.Role.String(), "ready", r.Hello.Ready)
		}
		f.workers[r.Owner.Worker] = struct{}{}
	case kvindex.KindBye:
		if _, known := f.workers[r.Owner.Worker]; known {
			f.logger.Info("worker left", "worker", r.Owner.Worker)
		}
		delete(f.workers, r.Owner.Worker)
	default:
	}
}

// dropSilent takes workers out of the log that the pool has given up: their
// lease ran out long ago. The log's Bye then empties the index.
func (f *follower) dropSilent(ctx context.Context, log *memlog.Log) error {
	tick := time.NewTicker(dropEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-tick.C:
			for _, id := range f.silent(now) {
				f.logger.Warn("worker left without a word", "worker", id)
				log.Drop(id)
			}
		}
	}
}

// silent are the workers that the pool no longer has.
func (f *follower) silent(now time.Time) []kvindex.WorkerID {
	f.mu.Lock()
	gone := maps.Clone(f.workers)
	f.mu.Unlock()
	for _, e := range f.pool.Fleet(now).Endpoints {
		delete(gone, e.Worker)
	}
	return slices.Sorted(maps.Keys(gone))
}

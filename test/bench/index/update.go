package main

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvlane/kvlane/kvindex"
)

// rates are blocks per CPU second.
type rates struct{ store, remove []float64 }

// updates compares storing and removing on one lane and on two.
func (b *bench) updates(p *plan) error {
	for _, lanes := range []int{1, 2} {
		for _, kind := range []string{"batch", "singles"} {
			if b.short && p.workers != 32 && (lanes == 2 || kind == "singles") {
				continue
			}
			if err := b.update(p, lanes, kind); err != nil {
				return err
			}
		}
	}
	return nil
}

func (b *bench) update(p *plan, lanes int, kind string) error {
	var ours rates
	theirs := map[string]*rates{}
	for i := range b.repeats + 1 { // the first only warms the heaps
		store, remove, err := updateOnce(p, lanes, kind == "singles")
		if err != nil {
			return err
		}
		if i > 0 {
			ours.store, ours.remove = append(ours.store, store), append(ours.remove, remove)
		}
		for _, indexer := range b.writers(lanes) {
			a, err := b.peer.one("update %s %d %s", indexer, lanes, kind)
			if err != nil {
				return err
			}
			if theirs[indexer] == nil {
				theirs[indexer] = &rates{}
			}
			if r := theirs[indexer]; i > 0 {
				r.store, r.remove = append(r.store, a.Store), append(r.remove, a.Remove)
			}
		}
	}
	most, by := fastest(theirs, func(r *rates) []float64 { return r.store })
	what := "19 blocks an event"
	if kind == "singles" {
		what = "with single-block events"
	}
	name := fmt.Sprintf("store, %s, %d workers, lanes: %d", what, p.workers, lanes)
	b.file.Compare(name, "rate", "blocks/CPU-s", "higher", median(ours.store), peerName+" "+by, most, 1.5)
	if kind == "batch" {
		most, by = fastest(theirs, func(r *rates) []float64 { return r.remove })
		name = fmt.Sprintf("remove, 16 blocks an event, %d workers, lanes: %d", p.workers, lanes)
		b.file.Compare(name, "rate", "blocks/CPU-s", "higher", median(ours.remove), peerName+" "+by, most, 1.5)
	}
	return nil
}

// writers are the peer's indexers that take so many lanes.
func (b *bench) writers(lanes int) []string {
	switch {
	case lanes == 1 && b.short:
		return []string{"crtc", "radix"}
	case lanes == 1:
		return []string{"crtc", "radix", "positional"}
	case b.short:
		return []string{"crtc"}
	default:
		return []string{"crtc", "positional"}
	}
}

func fastest(all map[string]*rates, of func(*rates) []float64) (most float64, by string) {
	for indexer, r := range all {
		if m := median(of(r)); m > most || by == "" {
			most, by = m, indexer
		}
	}
	return most, by
}

// updateOnce fills a new index, then (not with singles) evicts half of it, and
// returns the blocks per CPU second of both, summed over the lanes.
func updateOnce(p *plan, lanes int, singles bool) (store, remove float64, err error) {
	x := kvindex.NewIndex()
	f := newFeed(p.workers, lanes)
	p.stores(given, singles, f.store)
	if store, err = f.run(x); err != nil || singles {
		return store, 0, err
	}
	p.removes(given, f.remove)
	remove, err = f.run(x)
	runtime.KeepAlive(x)
	return store, remove, err
}

// run applies the feed's records, each lane on a thread of its own, and drops
// them. The collection that frees them is on the lanes' clocks.
func (f *feed) run(x *kvindex.Index) (rate float64, err error) {
	runtime.GC()
	lanes, blocks := f.lanes, f.blocks
	f.reset(len(lanes))
	used, errs := make([]float64, len(lanes)), make([]error, len(lanes))
	var ready, done sync.WaitGroup
	start := make(chan struct{})
	for i := range lanes {
		ready.Add(1)
		done.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			ready.Done()
			<-start
			from := threadCPU()
			errs[i] = apply(x, lanes[i])
			used[i] = threadCPU() - from
			lanes[i] = nil
		})
	}
	ready.Wait()
	close(start)
	done.Wait()
	collect := collectCPU() / float64(len(lanes))
	for i := range used {
		if errs[i] != nil {
			return 0, errs[i]
		}
		if blocks[i] > 0 {
			rate += float64(blocks[i]) / (used[i] + collect)
		}
	}
	return rate, nil
}

// clears are the workers whose blocks are forgotten, one after the other.
const clears = 5

// clearOurs is the CPU time in us to forget a worker's blocks.
func clearOurs(p *plan) (float64, error) {
	x := kvindex.NewIndex()
	f := newFeed(p.workers, 1)
	p.stores(given, false, f.store)
	if err := f.applyAll(x); err != nil {
		return 0, err
	}
	var us []float64
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for worker := range uint64(clears) {
		f.clear(worker)
		from := threadCPU()
		if err := f.applyAll(x); err != nil {
			return 0, err
		}
		us = append(us, (threadCPU()-from)*1e6)
	}
	return median(us), nil
}

// clearPeer is the same of the indexer that the peer has filled.
func (b *bench) clearPeer() (float64, error) {
	rows, err := b.peer.ask("clear %d", clears)
	if err != nil || len(rows) == 0 {
		return 0, err
	}
	var us []float64
	for _, r := range rows {
		us = append(us, r.US)
	}
	return median(us), nil
}

// mixed compares lookups beside a lane that stores.
func (b *bench) mixed(p *plan) error {
	for _, c := range []struct {
		name    string
		pace    time.Duration
		repeats int
	}{{"10,000 lookups/s", 100 * time.Microsecond, 10}, {"lookups without a pause", 0, 3}} {
		if b.short {
			c.repeats = 2
		}
		ours, err := mixedOnce(p, c.pace, c.repeats)
		if err != nil {
			return err
		}
		a, err := b.peer.one("mixed crtc %d %d", c.pace.Microseconds(), c.repeats)
		if err != nil {
			return err
		}
		name, by := c.name+" of q128 beside a saturated writer, 32 workers", peerName+" crtc"
		b.file.Compare(name, "p50", "ns", "lower", ours.P50, by, a.P50, 0)
		if c.pace > 0 {
			b.compareOurs(name, "p99", "ns", "lower", ours.P99, by, a.P99, 5000)
		} else {
			b.file.Compare(name, "p99", "ns", "lower", ours.P99, by, a.P99, 0)
		}
		b.file.Compare(name, "rate of the writer", "blocks/CPU-s", "higher", ours.store, by, a.Store, 0)
	}
	return nil
}

type mixedResult struct {
	timing
	store float64 // blocks per CPU second
}

// mixedOnce looks up q128 while a lane stores the second half, one lookup every
// pace, and does that several times.
func mixedOnce(p *plan, pace time.Duration, repeats int) (mixedResult, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	s, result := newSamples(), mixedResult{}
	set := p.queries()[1]
	next := 0
	for range repeats {
		x := kvindex.NewIndex()
		f, err := halfStored(p, x)
		if err != nil {
			return result, err
		}
		call := lookup(x, set, false)
		runtime.GC()
		var done atomic.Bool
		finished := make(chan error, 1)
		go func() {
			rate, err := f.run(x)
			result.store += rate / float64(repeats)
			done.Store(true)
			finished <- err
		}()
		batch := 16
		if pace > 0 {
			batch = 1
		}
		for due := time.Now(); !done.Load() && !s.full(); {
			if time.Now().Before(due) {
				continue
			}
			due = due.Add(pace)
			s.batch(batch, func() {
				call(next)
				next = (next + 1) % len(set.prompts)
			})
		}
		if err := <-finished; err != nil {
			return result, err
		}
	}
	result.timing = s.timing()
	return result, nil
}

// halfStored applies the first half of the stores and returns the rest.
func halfStored(p *plan, x *kvindex.Index) (*feed, error) {
	total := 0
	p.stores(given, false, func(uint64, kvindex.BlockHash, []kvindex.BlockHash) { total++ })
	f, i := newFeed(p.workers, 1), 0
	var err error
	p.stores(given, false, func(worker uint64, parent kvindex.BlockHash, hashes []kvindex.BlockHash) {
		if i == total/2 {
			err = f.applyAll(x)
		}
		f.store(worker, parent, hashes)
		i++
	})
	return f, err
}

// split compares evicting a chain that many workers hold before and after
// branches were put at every fourth block of it.
func (b *bench) split(context.Context) error {
	for _, c := range []struct{ length, batch int }{{256, 1}, {256, 16}, {2048, 1}, {2048, 16}} {
		if b.short && c.length != 2048 {
			continue
		}
		a, err := b.peer.one("split %d %d", c.length, c.batch)
		if err != nil {
			return err
		}
		before, err := splitOnce(c.length, c.batch, false)
		if err != nil {
			return err
		}
		after, err := splitOnce(c.length, c.batch, true)
		if err != nil {
			return err
		}
		name, by := fmt.Sprintf("evict a chain of %d blocks held by 32 workers, events of %d", c.length, c.batch), peerName+" crtc"
		b.file.Compare(name+", no branches", "CPU time", "us/block", "lower", before, by, a.BeforeUS, 0)
		b.file.Compare(name+", with branches", "CPU time", "us/block", "lower", after, by, a.AfterUS, 0)
		slower := 0.0
		if a.BeforeUS > 0 {
			slower = a.AfterUS / a.BeforeUS
		}
		b.compareOurs(name, "with branches over without", "ratio", "lower", after/before, by, slower, 2)
	}
	return nil
}

func splitOnce(length, batch int, branches bool) (float64, error) {
	const workers = 32
	x := kvindex.NewIndex()
	f := newFeed(workers, 2)
	blocks := make([]uint64, length)
	for i := range blocks {
		blocks[i] = block(5, 0, uint64(i)) //nolint:gosec // not negative
	}
	chain := given(blocks)
	for w := range uint64(workers) {
		f.store(w, root(), chain)
	}
	if branches {
		for k, at := uint64(0), length-4; at >= 4; k, at = k+1, at-4 {
			f.store(0, chain[at-1], []kvindex.BlockHash{kvindex.BlockHash(block(7, k, 0))})
		}
	}
	if err := f.applyAll(x); err != nil {
		return 0, err
	}
	for w := uint64(1); w < workers; w += 2 {
		for end := length; end > 0; end -= batch {
			hashes := make([]kvindex.BlockHash, 0, batch)
			for i := end - 1; i >= end-batch; i-- {
				hashes = append(hashes, chain[i])
			}
			f.remove(w, hashes)
		}
	}
	rate, err := f.run(x)
	return 1e6 / rate, err
}

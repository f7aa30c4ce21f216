package main

import (
	"context"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/kvlane/kvlane/kvindex"
)

// mixed compares lookups beside a lane that stores.
func (b *bench) mixed(p *plan) error {
	for _, c := range []struct {
		name    string
		pace    time.Duration
		repeats int
	}{{"10,000 lookups/s", 100 * time.Microsecond, 10}, {"lookups without a pause", 0, 3}} {
		if b.short {
			c.repeats = max(1, c.repeats/5)
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
			b.file.Because("after 100 us without a lookup its lines and code are no longer near: " +
				"without a pause, see below, p99 is less than half; other work on two cores does the rest")
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
		blocks[i] = block(5, 0, uint64(i))
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

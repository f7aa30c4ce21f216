package main

import (
	"fmt"
	"runtime"
	"sync"

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
	first := 0
	if !b.warm || !b.short {
		first = 1 // the first only warms the heaps
	}
	b.warm = true
	for i := range b.repeats + first {
		store, remove, err := updateOnce(p, lanes, kind == "singles")
		if err != nil {
			return err
		}
		if i >= first {
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
			if r := theirs[indexer]; i >= first {
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
	b.file.Because(whyStore(lanes))
	if kind == "batch" {
		most, by = fastest(theirs, func(r *rates) []float64 { return r.remove })
		name = fmt.Sprintf("remove, 16 blocks an event, %d workers, lanes: %d", p.workers, lanes)
		b.file.Compare(name, "rate", "blocks/CPU-s", "higher", median(ours.remove), peerName+" "+by, most, 1.5)
		b.file.Because(whyRemove(lanes))
	}
	return nil
}

// takeTurns is what two lanes have in common.
const takeTurns = "writers take turns, so what they write moves from core to core, " +
	"and who waits is put to sleep and woken; a replica reads its log on one lane"

func whyStore(lanes int) string {
	if lanes > 1 {
		return takeTurns
	}
	return "each block is a write to a line of the table that is in no near cache, and a search of it before that; " +
		"a third of the time is waiting for such lines, a tenth is making the table larger"
}

func whyRemove(lanes int) string {
	if lanes > 1 {
		return takeTurns
	}
	return "the event itself changes one number, but the blocks are then taken out of the table, each from a line that is in no near cache"
}

// writers are the peer's indexers that take so many lanes.
func (b *bench) writers(lanes int) []string {
	switch {
	case b.short:
		return []string{"crtc"}
	case lanes == 1:
		return []string{"crtc", "radix", "positional"}
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

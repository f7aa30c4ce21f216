package main

import (
	"fmt"
	"slices"

	"github.com/kvlane/kvlane/kvindex"
)

// batchRecords is how many records a lane applies at a time.
const batchRecords = 64

// feed makes the records that agents' tails deliver: numbered per worker, each
// with a body of its own, in batches per lane. A worker's records are all in one lane.
type feed struct {
	lanes   [][][]kvindex.Record
	workers []kvindex.WorkerID
	seqs    []uint64
	blocks  []int // per lane
}

func newFeed(workers uint64, lanes int) *feed {
	f := &feed{seqs: make([]uint64, workers)}
	for i := range workers {
		f.workers = append(f.workers, workerName(i))
	}
	f.reset(lanes)
	return f
}

func workerName(i uint64) kvindex.WorkerID {
	return kvindex.WorkerID(fmt.Sprintf("10.0.%d.%d:8000", i/256, i%256))
}

// reset drops the records and goes on with the numbers.
func (f *feed) reset(lanes int) {
	f.lanes, f.blocks = make([][][]kvindex.Record, lanes), make([]int, lanes)
}

func (f *feed) store(worker uint64, parent kvindex.BlockHash, hashes []kvindex.BlockHash) {
	f.add(worker, len(hashes), kvindex.Record{Kind: kvindex.KindStored, Stored: &kvindex.Stored{Parent: parent, Hashes: slices.Clone(hashes)}})
}

func (f *feed) remove(worker uint64, hashes []kvindex.BlockHash) {
	f.add(worker, len(hashes), kvindex.Record{Kind: kvindex.KindRemoved, Removed: &kvindex.Removed{Hashes: slices.Clone(hashes)}})
}

func (f *feed) clear(worker uint64) {
	f.add(worker, 0, kvindex.Record{Kind: kvindex.KindCleared})
}

func (f *feed) add(worker uint64, blocks int, r kvindex.Record) {
	f.seqs[worker]++
	r.Owner = kvindex.Owner{Worker: f.workers[worker]}
	r.Epoch, r.Term, r.Seq = 1, 1, f.seqs[worker]
	lane := int(worker % uint64(len(f.lanes)))
	batches := f.lanes[lane]
	if n := len(batches); n == 0 || len(batches[n-1]) == batchRecords {
		batches = append(batches, make([]kvindex.Record, 0, batchRecords))
	}
	last := &batches[len(batches)-1]
	*last = append(*last, r)
	f.lanes[lane] = batches
	f.blocks[lane] += blocks
}

// apply applies one lane's records and lets go of each batch.
func apply(x *kvindex.Index, batches [][]kvindex.Record) error {
	for i := range batches {
		if _, err := x.ApplyBatch(batches[i]); err != nil {
			return fmt.Errorf("apply records: %w", err)
		}
		batches[i] = nil
	}
	return nil
}

// applyAll applies all lanes one after the other, without a clock.
func (f *feed) applyAll(x *kvindex.Index) error {
	lanes := len(f.lanes)
	for _, batches := range f.lanes {
		if err := apply(x, batches); err != nil {
			return err
		}
	}
	f.reset(lanes)
	return nil
}

package kvindex

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
)

// Readers beside a writer that is short of memory: what is forgotten beside them is
// no race, and nobody is told of twice.
func TestIndexReadersBesideForgetting(t *testing.T) {
	const chains, length = 1500, 60
	x := NewIndexSized(1 << 20)
	x.idleFloor = 0
	var list [chains][]BlockHash
	for c := range list {
		h := BlockHash(c + 1)
		for i := range length {
			h = h.Next([]uint32{uint32(i)}, nil)
			list[c] = append(list[c], h)
		}
	}
	var stop atomic.Bool
	var readers sync.WaitGroup
	for i := range 2 {
		readers.Go(func() {
			var dst []Match
			for c := i; !stop.Load(); c++ {
				dst = x.Overlap(list[c%20], dst[:0])
				seen := map[WorkerID]bool{}
				for _, m := range dst {
					if seen[m.Worker] {
						t.Errorf("worker %s twice in %v", m.Worker, dst)
						return
					}
					seen[m.Worker] = true
				}
			}
		})
	}
	seqs := map[WorkerID]uint64{}
	for n := range 3000 {
		w := WorkerID(fmt.Sprint("w", n%7))
		seqs[w]++
		r := Record{Owner: Owner{Worker: w}, Epoch: 1, Term: 1, Seq: seqs[w], Kind: KindStored, Stored: &Stored{Hashes: list[n*31%chains]}}
		if n%400 == 399 {
			r.Kind = KindCleared
		}
		if err := x.Apply(&r); err != nil {
			t.Fatal(err)
		}
	}
	stop.Store(true)
	readers.Wait()
	checkIndex(t, x)
	if s := x.Stats(); s.Forgotten == 0 {
		t.Errorf("nothing was forgotten: %+v", s)
	}
}

// An owner that was emptied while the list of slots moved is not told of twice by a
// query that still looks at the old list, where its old slot lives on.
func TestIndexSlotsMove(t *testing.T) {
	x := NewIndex()
	seq := uint64(0)
	write := func(w int, k Kind, hashes ...BlockHash) {
		seq++
		r := Record{Owner: Owner{Worker: WorkerID(fmt.Sprint("w", w))}, Epoch: 1, Term: seq, Seq: 1, Kind: KindCleared}
		if err := x.Apply(&r); err != nil && k == KindCleared {
			t.Fatal(err)
		}
		if k == KindStored {
			r.Kind, r.Seq, r.Stored = k, 2, &Stored{Hashes: hashes}
			if err := x.Apply(&r); err != nil {
				t.Fatal(err)
			}
		}
	}
	many := []BlockHash(nil)
	for i := range 5000 { // runs of their own, so that the sweep does not come to the first
		many = append(many, BlockHash(1000+7*i))
	}
	const chain = BlockHash(5)
	for w := range 15 {
		write(w, KindStored, chain)
	}
	write(15, KindStored, 1)
	for i, h := range many {
		r := Record{Owner: Owner{Worker: "w15"}, Epoch: 1, Term: seq, Seq: uint64(3 + i), Kind: KindStored, Stored: &Stored{Hashes: []BlockHash{h}}}
		if err := x.Apply(&r); err != nil {
			t.Fatal(err)
		}
	}
	r := x.readers.enter()
	defer r.leave()
	q := query{view: x.view(), chain: []BlockHash{chain}, reader: r, slots: x.seats.all()}
	if steps, done := q.walk(0, place{run: q.head(chain)}); steps != 1 || !done {
		t.Fatalf("%d steps, done %t", steps, done)
	}
	x.sweep.slab, x.sweep.at = len(x.slabs)-1, 0
	write(3, KindStored, chain)
	if len(x.seats.all()) == len(q.slots) {
		t.Fatal("the list did not move")
	}
	var names []string
	for _, m := range q.open(&r.path[0], nil) {
		names = append(names, string(m.Worker))
	}
	slices.Sort(names)
	if len(slices.Compact(slices.Clone(names))) != len(names) || len(names) != 15 {
		t.Errorf("got %v, want each once", names)
	}
}

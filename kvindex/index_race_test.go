package kvindex

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

const (
	raceChains, raceLength = 24, 300
	raceShared             = 40 // blocks that every third chain has in common
)

// depths is how deep a worker holds a chain, after each of its changes. A reader
// that saw begun changes after its question and done ones before it may have met
// any of the depths from one to the other.
type depths struct {
	done, begun atomic.Int32
	after       []atomic.Int32
}

// told is a worker's writer, which says beforehand what it is about to do.
type told struct {
	x      *Index
	rng    *rand.Rand
	record Record
	reach  [raceChains]int // blocks of each chain stored for it
	chains [raceChains]depths
}

// depth is the chain's own reach, or what another chain stored for it.
func (w *told) depth(c int) int {
	d := w.reach[c]
	for o := c % 3; o < raceChains; o += 3 {
		if w.reach[o] > 0 {
			d = max(d, raceShared)
		}
	}
	return d
}

// change applies r, after which the reaches are as set.
func (w *told) change(r Record) error {
	var changed []int
	for c := range w.chains {
		if d, n := &w.chains[c], w.chains[c].done.Load(); int(d.after[n].Load()) != w.depth(c) {
			d.after[n+1].Store(int32(w.depth(c)))
			d.begun.Store(n + 1)
			changed = append(changed, c)
		}
	}
	w.record.Seq++
	r.Owner, r.Epoch, r.Term, r.Seq = w.record.Owner, 1, 1, w.record.Seq
	err := w.x.Apply(&r)
	for _, c := range changed {
		w.chains[c].done.Add(1)
	}
	return err
}

// step changes one chain, or clears all.
func (w *told) step(chains [][]BlockHash) error {
	c := w.rng.IntN(raceChains)
	from, to := w.reach[c], w.rng.IntN(raceLength-raceShared)+raceShared
	switch {
	case w.rng.IntN(40) == 0:
		w.reach = [raceChains]int{}
		return w.change(Record{Kind: KindCleared})
	case from < to:
		var parent BlockHash
		if from > 0 {
			parent = chains[c][from-1]
		}
		w.reach[c] = to
		return w.change(Record{Kind: KindStored, Stored: &Stored{Parent: parent, Hashes: chains[c][from:to]}})
	case to < from:
		gone := slices.Clone(chains[c][to:from])
		slices.Reverse(gone)
		w.reach[c] = to
		return w.change(Record{Kind: KindRemoved, Removed: &Removed{Hashes: gone}})
	}
	return nil
}

// ask compares the answer for a chain with what all workers may have held.
func ask(x *Index, workers []*told, chains [][]BlockHash, c int, dst []Match) ([]Match, error) {
	var done [8]int32
	for i, w := range workers {
		done[i] = w.chains[c].done.Load()
	}
	dst = x.Overlap(chains[c], dst[:0])
	var got [8]int32
	for _, m := range dst {
		i := slices.IndexFunc(workers, func(w *told) bool { return w.record.Owner.Worker == m.Worker })
		if i < 0 || got[i] > 0 {
			return dst, fmt.Errorf("worker %q twice or unknown in %v", m.Worker, dst)
		}
		got[i] = int32(m.Depth[Device])
	}
	for i, w := range workers {
		d := &w.chains[c]
		least, most := int32(raceLength), int32(0)
		for n := done[i]; n <= d.begun.Load(); n++ {
			least, most = min(least, d.after[n].Load()), max(most, d.after[n].Load())
		}
		if got[i] < least || got[i] > most {
			return dst, fmt.Errorf("worker %d holds %d to %d blocks of chain %d, answer %d", i, least, most, c, got[i])
		}
	}
	return dst, nil
}

// Readers beside writers: every answer lies within what the worker held at some
// moment of the question, and workers that do not write are never missed.
func TestIndexReadersBesideWriters(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	steps := 20_000
	if raceEnabled {
		steps = 2000
	}
	chains := make([][]BlockHash, raceChains)
	for c := range chains {
		h := BlockHash(1)
		for i := range raceLength {
			branch := uint32(c)
			if i < raceShared {
				branch %= 3
			}
			h = h.Next([]uint32{uint32(i), branch}, nil)
			chains[c] = append(chains[c], h)
		}
	}
	x := NewIndex()
	x.idleFloor = 0
	var workers []*told
	for i := range 6 {
		w := &told{x: x, rng: rand.New(rand.NewPCG(seed, uint64(i)))}
		w.record.Owner.Worker = WorkerID(fmt.Sprintf("w%d", i))
		for c := range w.chains {
			w.chains[c].after = make([]atomic.Int32, steps+2)
		}
		workers = append(workers, w)
	}
	var stop atomic.Bool
	var answers atomic.Int64
	var readers, writers sync.WaitGroup
	for i := range 3 {
		readers.Go(func() {
			rng := rand.New(rand.NewPCG(seed, 100+uint64(i)))
			var dst []Match
			for !stop.Load() {
				var err error
				if dst, err = ask(x, workers, chains, rng.IntN(raceChains), dst); err != nil {
					t.Errorf("seed %d: %v", seed, err)
					return
				}
				answers.Add(1)
			}
		})
	}
	for _, w := range workers {
		writers.Go(func() {
			for range steps {
				if err := w.step(chains); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	writers.Wait()
	stop.Store(true)
	readers.Wait()
	t.Logf("%d answers; %+v", answers.Load(), x.Stats())
	checkIndex(t, x)
}

// Within a budget an index says less than the truth, never more, and keeps what
// is asked for.
func TestIndexBudget(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	const budget = 1 << 20
	x := NewIndexSized(budget)
	x.idleFloor = 0
	h := newHistory(t, seed, setting{blocks: 60_000, workers: 3, long: 100, calm: 1000}, x)
	events := 40_000
	if raceEnabled {
		events = 4000
	}
	most := 0
	for h.event < events {
		h.step()
		if h.event%10 == 0 {
			_, chain := h.blocks.path(h.blocks.block(h.rng, h.event/len(h.writers)), len(h.blocks.hash))
			truth := map[seatKey][NumTiers]uint32{}
			for _, m := range modelOverlap(h.model, chain) {
				truth[seatKey{m.Worker, m.Rank}] = m.Depth
			}
			for _, m := range x.Overlap(chain, nil) {
				for tier, d := range m.Depth {
					if d > truth[seatKey{m.Worker, m.Rank}][tier] {
						t.Fatalf("seed %d, event %d: got %v, want at most %v", seed, h.event, m, truth)
					}
				}
			}
		}
		if h.event%1000 == 0 {
			checkIndex(t, x)
			most = max(most, x.Stats().Bytes)
		}
	}
	s := x.Stats()
	t.Logf("%+v", s)
	if !raceEnabled && s.Forgotten == 0 {
		t.Error("got nothing forgotten, want some: the trial is too small")
	}
	if most > budget*2 { // this trial has more copies than blocks
		t.Errorf("got %d bytes, want about %d at most", most, budget)
	}
}

// A run that queries meet stays when others are forgotten.
func TestIndexBudgetKeepsWhatIsAsked(t *testing.T) {
	x := NewIndexSized(1 << 20)
	chain := func(c int) []BlockHash {
		h, list := BlockHash(c+1), []BlockHash(nil)
		for i := range 100 {
			h = h.Next([]uint32{uint32(i)}, nil)
			list = append(list, h)
		}
		return list
	}
	for c := range 3000 {
		r := Record{Owner: Owner{Worker: "w"}, Epoch: 1, Term: 1, Seq: uint64(c + 1), Kind: KindStored, Stored: &Stored{Hashes: chain(c)}}
		if err := x.Apply(&r); err != nil {
			t.Fatal(err)
		}
		if got := x.Overlap(chain(0), nil); len(got) != 1 || got[0].Depth[Device] != 100 {
			t.Fatalf("after %d: got %v, want 100 blocks of the first chain", c, got)
		}
	}
	if s := x.Stats(); s.Forgotten == 0 || s.Blocks < 20_000 {
		t.Errorf("got %+v, want some forgotten and most of the budget in use", s)
	}
	checkIndex(t, x)
}

// A batch stops at the first record that is refused, and can be gone on with.
func TestIndexApplyBatch(t *testing.T) {
	x := NewIndex()
	var batch []Record
	for _, seq := range []uint64{1, 2, 4, 3} {
		batch = append(batch, Record{
			Owner: Owner{Worker: "w"}, Epoch: 1, Term: 1, Seq: seq, Kind: KindStored,
			Stored: &Stored{Parent: BlockHash(seq), Hashes: []BlockHash{BlockHash(seq + 1)}},
		})
	}
	batch = append(batch, Record{Owner: Owner{Worker: "w"}, Epoch: 1, Term: 1, Seq: 5, Kind: KindCleared})
	var gap *GapError
	n, err := x.ApplyBatch(batch)
	if n != 2 || !errors.As(err, &gap) || gap.Want != 3 {
		t.Fatalf("got %d, %v, want 2 and a gap at 3", n, err)
	}
	if got := x.Blocks(Owner{Worker: "w"}); len(got) > 0 {
		t.Errorf("got %v after the gap, want nothing", got)
	}
	if n, err = x.ApplyBatch(batch[4:]); n != 1 || err != nil {
		t.Errorf("got %d, %v, want 1 and no error", n, err)
	}
}

// 3,750 blocks and 96 workers that all hold them: the size of a long prompt in a
// large pool.
func BenchmarkIndexLongPrompt(b *testing.B) {
	x := NewIndex()
	var chain []BlockHash
	h := BlockHash(1)
	for i := range 3750 {
		h = h.Next([]uint32{uint32(i)}, nil)
		chain = append(chain, h)
	}
	for w := range 96 {
		r := Record{Owner: Owner{Worker: workerName(uint64(w))}, Epoch: 1, Term: 1, Seq: 1, Kind: KindStored, Stored: &Stored{Hashes: chain}}
		if err := x.Apply(&r); err != nil {
			b.Fatal(err)
		}
	}
	dst := make([]Match, 0, 96)
	for b.Loop() {
		dst = x.Overlap(chain, dst[:0])
	}
	if len(dst) != 96 || dst[95].Depth[Device] != 3750 {
		b.Fatalf("got %d matches, %v", len(dst), dst[len(dst)-1])
	}
}

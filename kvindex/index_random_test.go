package kvindex

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// modelOwner is an owner as the rules tell it, without anything incremental:
// what it holds is replayed from the accepted records.
type modelOwner struct {
	epoch, term, last uint64
	// waiting: records were lost; nothing but a Cleared helps.
	waiting bool
	// taken are the accepted records since the last reset, the Cleared included.
	taken []Record
}

var errModelGap = errors.New("gap")

// apply returns nil, errModelGap or ErrFenced.
func (o *modelOwner) apply(r Record) error {
	if r.Term < o.term || r.Epoch < o.epoch {
		return ErrFenced
	}
	if r.Seq == 0 {
		if r.Term == o.term && r.Epoch == o.epoch && o.inSnapshot() {
			o.taken = append(o.taken, r)
		}
		return nil
	}
	other := r.Term != o.term
	o.term = r.Term
	if r.Epoch != o.epoch {
		*o = modelOwner{epoch: r.Epoch, term: r.Term}
		other = false
	}
	if r.Kind == KindCleared {
		if other || r.Seq > o.last || o.waiting && r.Seq == o.last {
			o.last, o.waiting, o.taken = r.Seq, false, []Record{r}
			return nil
		}
		if !other {
			o.endSnapshot(r)
			return nil
		}
	}
	if !other && r.Seq <= o.last {
		return nil
	}
	if o.waiting || r.Seq != o.last+1 {
		o.waiting, o.taken = true, nil
		if other {
			o.last = 0
		}
		return errModelGap
	}
	o.last = r.Seq
	o.taken = append(o.taken, r)
	return nil
}

// inSnapshot: since the last Cleared nothing numbered was accepted.
func (o *modelOwner) inSnapshot() bool {
	for _, r := range slices.Backward(o.taken) {
		if r.Seq > 0 {
			return r.Kind == KindCleared
		}
	}
	return false
}

// endSnapshot notes an ignored Cleared: what follows it without a number is its
// content, and known.
func (o *modelOwner) endSnapshot(r Record) {
	if o.inSnapshot() {
		r.Kind = KindLearned // any numbered record without content
		o.taken = append(o.taken, r)
	}
}

// held counts the copies of each block.
func (o *modelOwner) held() map[BlockHash]int {
	held := map[BlockHash]int{}
	for i := range o.taken {
		switch r := &o.taken[i]; r.Kind {
		case KindStored:
			for _, b := range r.Stored.Hashes {
				held[b]++
			}
		case KindRemoved:
			for _, b := range r.Removed.Hashes {
				held[b]--
				if held[b] <= 0 {
					delete(held, b)
				}
			}
		default:
		}
	}
	return held
}

// writer makes a plausible history of one owner, and faults in its delivery.
type writer struct {
	owner            Owner
	epoch, term, seq uint64
	past, late       []Record
}

const randomBlocks = 60 // different blocks, so that copies and holes are common

func someBlocks(rng *rand.Rand) []BlockHash {
	start := rng.IntN(randomBlocks)
	var list []BlockHash
	for b := start; b < min(start+1+rng.IntN(8), randomBlocks); b++ {
		list = append(list, BlockHash(b))
	}
	return list
}

// next is the records that arrive now.
func (w *writer) next(rng *rand.Rand) []Record {
	r := w.write(rng)
	switch p := rng.IntN(1000); {
	case p < 10: // lost
		return nil
	case p < 20: // late
		w.late = append(w.late, r)
		return nil
	case p < 40 && len(w.late) > 0: // out of order
		out := append([]Record{r}, w.late...)
		w.late = nil
		return out
	case p < 80 && len(w.past) > 0: // twice
		return []Record{w.past[rng.IntN(len(w.past))], r}
	}
	return []Record{r}
}

// write makes the next record.
func (w *writer) write(rng *rand.Rand) Record {
	if len(w.past) > 40 {
		w.past = w.past[20:]
	}
	fresh := false
	switch p := rng.IntN(2000); {
	case p < 10: // a new engine
		w.epoch, w.seq = w.epoch+1, 0
	case p < 15: // a new agent that knows where it is
		w.term++
	case p < 20: // a new agent that does not
		w.term++
		w.seq, fresh = uint64(rng.IntN(3)), true
	}
	r := Record{Owner: w.owner, Epoch: w.epoch, Term: w.term}
	switch p := rng.IntN(100); {
	case fresh || p < 4:
		r.Kind = KindCleared
		w.seq += uint64(rng.IntN(3))
	case p < 8:
		r.Kind, r.Learned = KindLearned, &Learned{}
	case p < 12 && w.seq > 0: // a part of a snapshot
		r.Kind, r.Stored = KindStored, &Stored{Hashes: someBlocks(rng)}
		return r
	case p < 65:
		r.Kind, r.Stored = KindStored, &Stored{Hashes: someBlocks(rng)}
	default:
		r.Kind, r.Removed = KindRemoved, &Removed{Hashes: someBlocks(rng)}
	}
	w.seq++
	r.Seq = w.seq
	w.past = append(w.past, r)
	return r
}

// A quarter of a million random events, faults included, against the model.
func TestIndexRandomHistory(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	x := NewIndex()
	model := map[Owner]*modelOwner{}
	var writers []*writer
	for i := range 18 {
		o := Owner{WorkerID(fmt.Sprintf("w%d", i/6)), uint16(i / 3 % 2), Tier(i % 3)}
		writers = append(writers, &writer{owner: o, epoch: 1, term: 1})
	}
	refused := map[string]int{}
	for event := 0; event < 250_000; {
		if rng.IntN(20_000) == 0 {
			w := writers[rng.IntN(len(writers))].owner.Worker
			x.Drop(w)
			for o := range model {
				if o.Worker == w {
					delete(model, o)
				}
			}
		}
		for _, r := range writers[rng.IntN(len(writers))].next(rng) {
			event++
			if model[r.Owner] == nil {
				model[r.Owner] = &modelOwner{}
			}
			want, got := model[r.Owner].apply(r), x.Apply(&r)
			var gap *GapError
			if (want == nil) != (got == nil) || errors.Is(want, ErrFenced) != errors.Is(got, ErrFenced) ||
				errors.Is(want, errModelGap) != errors.As(got, &gap) {
				t.Fatalf("event %d, %s seq %d of %s: got %v, want %v", event, r.Kind, r.Seq, r.Owner, got, want)
			}
			if want != nil {
				refused[want.Error()]++
			}
			if event%500 == 0 {
				compareIndex(t, rng, x, model)
			}
		}
	}
	t.Logf("refused: %v; %+v", refused, x.Stats())
}

func compareIndex(t *testing.T, rng *rand.Rand, x *Index, model map[Owner]*modelOwner) {
	t.Helper()
	held := map[Owner]map[BlockHash]int{}
	blocks, members := map[BlockHash]bool{}, 0
	for o, m := range model {
		held[o] = m.held()
		var want []BlockHash
		for b := range held[o] {
			want = append(want, b)
			blocks[b] = true
			members++
		}
		slices.Sort(want)
		if got := x.Blocks(o); !slices.Equal(got, want) {
			t.Fatalf("%s holds: got %v, want %v", o, got, want)
		}
	}
	if s := x.Stats(); s.Blocks != len(blocks) || s.Memberships != members || s.Owners != len(model) {
		t.Fatalf("stats: got %+v, want %d blocks, %d memberships, %d owners", s, len(blocks), members, len(model))
	}
	chain := someBlocks(rng)
	if got, want := sorted(x.Overlap(chain, nil)), modelOverlap(held, chain); !slices.Equal(got, want) {
		t.Fatalf("overlap of %v: got %v, want %v", chain, got, want)
	}
}

// sorted puts matches in order of worker and rank, without their seats.
func sorted(list []Match) []Match {
	for i := range list {
		list[i].Seat = 0
	}
	slices.SortFunc(list, func(a, b Match) int {
		return cmp.Or(cmp.Compare(a.Worker, b.Worker), cmp.Compare(a.Rank, b.Rank))
	})
	return list
}

// modelOverlap counts for each rank and tier separately.
func modelOverlap(held map[Owner]map[BlockHash]int, chain []BlockHash) []Match {
	ranks := map[seatKey]bool{}
	for o := range held {
		ranks[seatKey{o.Worker, o.Rank}] = true
	}
	var out []Match
	for k := range ranks {
		m := Match{Worker: k.worker, Rank: k.rank}
		for t := range Tier(NumTiers) {
			for _, b := range chain {
				found := false
				for faster := Tier(0); faster <= t; faster++ {
					found = found || held[Owner{k.worker, k.rank, faster}][b] > 0
				}
				if !found {
					break
				}
				m.Depth[t]++
			}
		}
		if m.Depth[External] > 0 {
			out = append(out, m)
		}
	}
	slices.SortFunc(out, func(a, b Match) int {
		return cmp.Or(cmp.Compare(a.Worker, b.Worker), cmp.Compare(a.Rank, b.Rank))
	})
	return out
}

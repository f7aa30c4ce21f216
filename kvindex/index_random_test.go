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

// modelOwner is an owner as the rules tell it: numbers and a map.
type modelOwner struct {
	epoch, term, last uint64
	// waiting: records were lost; nothing but a Cleared helps. snapshot: nothing
	// numbered was accepted since the last Cleared.
	waiting, snapshot bool
	copies            map[BlockHash]int
}

var errModelGap = errors.New("gap")

// apply returns nil, errModelGap or ErrFenced.
func (o *modelOwner) apply(r *Record) error {
	if r.Term < o.term || r.Epoch < o.epoch {
		return ErrFenced
	}
	if r.Seq == 0 {
		if r.Term == o.term && r.Epoch == o.epoch && o.snapshot {
			o.take(r)
		}
		return nil
	}
	other := r.Term != o.term
	o.term = r.Term
	if r.Epoch != o.epoch {
		*o = modelOwner{epoch: r.Epoch, term: r.Term}
		other = false
	}
	known := !other && r.Seq <= o.last
	switch {
	case r.Kind == KindCleared && (!known || o.waiting && r.Seq == o.last):
		o.last, o.waiting, o.snapshot, o.copies = r.Seq, false, true, nil
		return nil
	case r.Kind == KindCleared:
		o.snapshot = false // what follows it without a number is its content, and known
		return nil
	case known:
		return nil
	case o.waiting || r.Seq != o.last+1:
		o.waiting, o.snapshot, o.copies = true, false, nil
		if other {
			o.last = 0
		}
		return errModelGap
	}
	o.last, o.snapshot = r.Seq, false
	o.take(r)
	return nil
}

func (o *modelOwner) take(r *Record) {
	switch r.Kind {
	case KindStored:
		if o.copies == nil {
			o.copies = map[BlockHash]int{}
		}
		for _, b := range r.Stored.Hashes {
			o.copies[b]++
		}
	case KindRemoved:
		for _, b := range r.Removed.Hashes {
			if o.copies[b] > 1 {
				o.copies[b]--
			} else {
				delete(o.copies, b)
			}
		}
	default:
	}
}

// forest is a set of blocks, each with one parent.
type forest struct {
	hash   []BlockHash
	parent []int // -1 for none
	depth  []int
}

// newForest has n blocks in lines that branch now and then.
func newForest(rng *rand.Rand, n int) *forest {
	f := &forest{}
	for i := range n {
		p := i - 1
		switch k := rng.IntN(100); {
		case k < 2:
			p = -1
		case k < 6 && i > 0:
			p = rng.IntN(i)
		}
		depth := 0
		if p >= 0 {
			depth = f.depth[p] + 1
		}
		h := BlockHash(i + 1) // small numbers, to see that nothing depends on good ones
		if n > 1000 {
			h = BlockHash(rng.Uint64())
		}
		f.hash, f.parent, f.depth = append(f.hash, h), append(f.parent, p), append(f.depth, depth)
	}
	return f
}

// path is up to n blocks that end with block i, and the one before them.
func (f *forest) path(i, n int) (parent BlockHash, hashes []BlockHash) {
	for ; i >= 0 && n > 0; n-- {
		hashes = append(hashes, f.hash[i])
		i = f.parent[i]
	}
	slices.Reverse(hashes)
	if i >= 0 {
		return f.hash[i], hashes
	}
	return 1 << 62, hashes // the namespace's root
}

// block is a random one, mostly of a part that moves on as time goes by, so that
// the same ones come again.
func (f *forest) block(rng *rand.Rand, time int) int {
	n := len(f.hash)
	if rng.IntN(4) == 0 || n < 100 {
		return rng.IntN(n)
	}
	return (time/50 + rng.IntN(n/10)) % n
}

// writer makes a plausible history of one owner, and faults in its delivery.
type writer struct {
	owner            Owner
	epoch, term, seq uint64
	past, late       []Record
	blocks           *forest
	long             int // blocks in an event at most
	calm             int // how much rarer faults and resets are
	time             int
	asked            bool // for a snapshot, after a gap
	loose            bool // it does not always say what is before what it stores
}

// next is the records that arrive now.
func (w *writer) next(rng *rand.Rand) []Record {
	r := w.write(rng)
	switch p := rng.IntN(1000 * w.calm); {
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
	switch p := rng.IntN(2000 * w.calm); {
	case p < 10: // a new engine
		w.epoch, w.seq = w.epoch+1, 0
	case p < 15: // a new agent that knows where it is
		w.term++
	case p < 20: // a new agent that does not
		w.term++
		w.seq, fresh = uint64(rng.IntN(3)), true
	}
	r := Record{Owner: w.owner, Epoch: w.epoch, Term: w.term}
	w.time++
	switch p := rng.IntN(100 * w.calm); {
	case fresh || p < 4 || w.asked && rng.IntN(20) == 0:
		r.Kind, w.asked = KindCleared, false
		w.seq += uint64(rng.IntN(3))
	case p < 8:
		r.Kind, r.Learned = KindLearned, &Learned{}
	case p < 12 && w.seq > 0: // a part of a snapshot
		r.Kind, r.Stored = KindStored, w.stored(rng)
		return r
	case rng.IntN(88) < 53:
		r.Kind, r.Stored = KindStored, w.stored(rng)
	default:
		r.Kind, r.Removed = KindRemoved, &Removed{Hashes: w.removed(rng)}
	}
	w.seq++
	r.Seq = w.seq
	w.past = append(w.past, r)
	return r
}

func (w *writer) stored(rng *rand.Rand) *Stored {
	parent, hashes := w.blocks.path(w.blocks.block(rng, w.time), 1+rng.IntN(w.long))
	if w.loose && rng.IntN(10) == 0 {
		parent = 0
	}
	return &Stored{Parent: parent, Hashes: hashes}
}

// removed are blocks in a row, backwards or forwards, or here and there.
func (w *writer) removed(rng *rand.Rand) []BlockHash {
	n := 1 + rng.IntN(w.long)
	_, hashes := w.blocks.path(w.blocks.block(rng, w.time), n)
	switch rng.IntN(5) {
	case 0:
	case 1:
		for i := range hashes {
			hashes[i] = w.blocks.hash[w.blocks.block(rng, w.time)]
		}
	default:
		slices.Reverse(hashes)
	}
	return hashes
}

// setting is a random history: some workers with some owners each, over some blocks.
type setting struct {
	blocks, workers, long, calm int
	loose                       bool
}

// history runs a setting in an index and in the model.
type history struct {
	t       *testing.T
	rng     *rand.Rand
	x       *Index
	model   map[Owner]*modelOwner
	writers []*writer
	blocks  *forest
	event   int
	refused map[string]int
}

func newHistory(t *testing.T, seed uint64, c setting, x *Index) *history {
	rng := rand.New(rand.NewPCG(seed, uint64(c.blocks)))
	h := &history{t: t, rng: rng, x: x, model: map[Owner]*modelOwner{}, blocks: newForest(rng, c.blocks), refused: map[string]int{}}
	for i := range c.workers * 6 {
		o := Owner{WorkerID(fmt.Sprintf("w%d", i/6)), uint16(i / 3 % 2), Tier(i % 3)}
		h.writers = append(h.writers, &writer{owner: o, epoch: 1, term: 1, blocks: h.blocks, long: c.long, calm: c.calm, loose: c.loose})
	}
	return h
}

// step lets one writer write, or drops a worker.
func (h *history) step() {
	if h.rng.IntN(20_000) == 0 {
		w := h.writers[h.rng.IntN(len(h.writers))].owner.Worker
		h.x.Drop(w)
		for o := range h.model {
			if o.Worker == w {
				delete(h.model, o)
			}
		}
	}
	w := h.writers[h.rng.IntN(len(h.writers))]
	for _, r := range w.next(h.rng) {
		h.event++
		if h.model[r.Owner] == nil {
			h.model[r.Owner] = &modelOwner{}
		}
		want, got := h.model[r.Owner].apply(&r), h.x.Apply(&r)
		var gap *GapError
		if (want == nil) != (got == nil) || errors.Is(want, ErrFenced) != errors.Is(got, ErrFenced) ||
			errors.Is(want, errModelGap) != errors.As(got, &gap) {
			h.t.Fatalf("event %d, %s seq %d of %s: got %v, want %v", h.event, r.Kind, r.Seq, r.Owner, got, want)
		}
		if want != nil {
			h.refused[want.Error()]++
			w.asked = true
		}
	}
}

// ask compares the answers for a random prompt.
func (h *history) ask() {
	_, chain := h.blocks.path(h.blocks.block(h.rng, h.event/len(h.writers)), len(h.blocks.hash))
	if len(chain) > 0 && h.rng.IntN(4) == 0 { // the prompt goes on differently
		chain[h.rng.IntN(len(chain))] = BlockHash(1 << 63)
		if i := slices.Index(chain, 1<<63); i >= 0 {
			chain = chain[:i+1]
		}
	}
	if got, want := sorted(h.x.Overlap(chain, nil)), modelOverlap(h.model, chain); !slices.Equal(got, want) {
		h.t.Fatalf("event %d: overlap of %v: got %v, want %v", h.event, chain, got, want)
	}
}

// compare compares everything.
func (h *history) compare() {
	h.t.Helper()
	blocks, members := map[BlockHash]bool{}, 0
	for o, m := range h.model {
		var want []BlockHash
		for b := range m.copies {
			want = append(want, b)
			blocks[b] = true
			members++
		}
		slices.Sort(want)
		if got := h.x.Blocks(o); !slices.Equal(got, want) {
			h.t.Fatalf("event %d: %s holds: got %v, want %v", h.event, o, got, want)
		}
	}
	checkIndex(h.t, h.x)
	if s := h.x.Stats(); s.Blocks != len(blocks) || s.Memberships != members || s.Owners != len(h.model) {
		h.t.Fatalf("event %d: stats: got %+v, want %d blocks, %d memberships, %d owners", h.event, s, len(blocks), members, len(h.model))
	}
	for _, s := range h.x.Owners() {
		m := h.model[s.Owner]
		if m == nil || s.Epoch != m.epoch || s.Term != m.term || s.Seq != m.last || s.Doubtful != m.waiting || s.Blocks != len(m.copies) {
			h.t.Fatalf("event %d: owner: got %+v, want %+v", h.event, s, m)
		}
	}
	checkIndex(h.t, h.x)
}

// A million random events, faults included, against the model: few blocks, where
// everything happens to every block, and many, where structures grow. With the
// race detector there are fewer.
func TestIndexMillion(t *testing.T) {
	events := 1_000_000
	if raceEnabled {
		events = 60_000
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d, %d events", seed, events)
	settings := []setting{
		{blocks: 5, workers: 1, long: 5, calm: 1},
		{blocks: 60, workers: 3, long: 8, calm: 1},
		{blocks: 60, workers: 3, long: 8, calm: 50},
		{blocks: 100, workers: 3, long: 8, calm: 10, loose: true},
		{blocks: 400, workers: 10, long: 30, calm: 10},
		{blocks: 3000, workers: 2, long: 200, calm: 200},
		{blocks: 50_000, workers: 5, long: 60, calm: 1000},
	}
	for i, c := range settings {
		x := NewIndex()
		x.idleFloor = []int{0, 0, 10, 0, 0, 100, idleFloor}[i]
		h := newHistory(t, seed, c, x)
		every := 1000 + 2*c.blocks
		for h.event < events/len(settings) {
			h.step()
			if h.rng.IntN(20) == 0 {
				h.ask()
			}
			if h.rng.IntN(every) == 0 {
				h.compare()
			}
		}
		h.compare()
		t.Logf("%+v: refused: %v; %+v", c, h.refused, h.x.Stats())
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
func modelOverlap(model map[Owner]*modelOwner, chain []BlockHash) []Match {
	ranks := map[seatKey]bool{}
	for o := range model {
		ranks[seatKey{o.Worker, o.Rank}] = true
	}
	var out []Match
	for k := range ranks {
		m := Match{Worker: k.worker, Rank: k.rank}
		for t := range Tier(NumTiers) {
			for _, b := range chain {
				found := false
				for faster := Tier(0); faster <= t; faster++ {
					o := model[Owner{k.worker, k.rank, faster}]
					found = found || o != nil && o.copies[b] > 0
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
	return sorted(out)
}

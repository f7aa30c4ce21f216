package kvindex

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"
)

// valid says by the definition whether a prefix of n blocks is of use: every group
// has what it needs of it, and with EAGLE one block more. held says whether a group
// holds the block of the worker's size that ends at a place.
func valid(h *Hello, held func(group, end int) bool, limit, n int) bool {
	base := int(h.BlockSize)
	for g, spec := range h.Groups {
		ratio := max(1, int(spec.BlockSize)/base)
		if spec.Kind == GroupUnused {
			continue
		}
		if n%ratio != 0 {
			return false
		}
		last := n / ratio // in the group's blocks, the number after the last that is needed
		if h.Eagle && spec.Kind != GroupState && n > 0 {
			last++
			if last*ratio > limit {
				return false
			}
		}
		tokens := base * ratio
		first := 0
		switch spec.Kind {
		case GroupWindow:
			// The token after the prefix sees window-1 before it.
			seen := n*base - (int(spec.Window) - 1)
			first = max(0, seen) / tokens
		case GroupChunk:
			first = n * base / int(spec.Window) * int(spec.Window) / tokens
		case GroupState:
			first = max(0, last-1)
		default:
		}
		if n == 0 {
			continue
		}
		for i := first; i < last; i++ {
			if !held(g, (i+1)*ratio) {
				return false
			}
		}
	}
	return true
}

// TestHybridRandom compares what an index says of hybrid workers with the
// definition, for all prefixes, over random groups and contents.
func TestHybridRandom(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	for round := range 5000 {
		h := &Hello{BlockSize: 4, Groups: []GroupSpec{{Kind: GroupFull}}}
		h.Eagle = r.IntN(3) == 0
		for range 1 + r.IntN(3) {
			g := GroupSpec{Kind: GroupKind(r.IntN(5))}
			if !h.Eagle && r.IntN(3) == 0 {
				g.BlockSize = 4 * uint32(1+r.IntN(3))
			}
			switch g.Kind {
			case GroupWindow:
				g.Window = uint32(2 + r.IntN(30)) // of 1, no block is seen and vLLM still wants one
			case GroupChunk:
				if h.Eagle { // vLLM has no such thing
					g.Kind = GroupFull
				} else {
					g.Window = max(4, g.BlockSize) * uint32(1+r.IntN(4))
				}
			default:
			}
			h.Groups = append(h.Groups, g)
		}
		chain := AppendChain(nil, BlockHash(r.Uint64()), make([]uint32, 4*(1+r.IntN(20))), 4)
		x := NewIndex()
		owner := Owner{Worker: "w"}
		seq := uint64(0)
		apply := func(rec Record) {
			rec.Owner, rec.Epoch, rec.Term = owner, 1, 1
			if rec.Kind.Sequenced() {
				seq++
				rec.Seq = seq
			}
			if err := x.Apply(&rec); err != nil {
				t.Fatal(err)
			}
		}
		if r.IntN(2) == 0 {
			apply(Record{Kind: KindHello, Hello: h})
		}
		have := make([]map[BlockHash]int, len(h.Groups))
		for g := range have {
			have[g] = map[BlockHash]int{}
			density := 1 + r.IntN(12)
			for i, b := range chain {
				if r.IntN(density) == 0 && density < 12 {
					continue
				}
				parent := BlockHash(1)
				if i > 0 {
					parent = chain[i-1]
				}
				for range 1 + r.IntN(5)/4 {
					apply(Record{Kind: KindStored, Stored: &Stored{Group: uint16(g), Parent: parent, Hashes: []BlockHash{b}}})
					have[g][b]++
				}
				if r.IntN(6) == 0 {
					apply(Record{Kind: KindRemoved, Removed: &Removed{Group: uint16(g), Hashes: []BlockHash{b}}})
					have[g][b]--
				}
			}
		}
		apply(Record{Kind: KindHello, Hello: h})
		want := 0
		for n := len(chain); n > 0 && want == 0; n-- {
			if valid(h, func(g, end int) bool { return have[g][chain[end-1]] > 0 }, len(chain), n) {
				want = n
			}
		}
		got := 0
		for _, m := range x.Overlap(chain, nil) {
			got = int(m.Depth[Device])
			if m.Depth != [NumTiers]uint32{uint32(got), uint32(got), uint32(got), uint32(got)} {
				t.Fatalf("round %d: depths %v", round, m.Depth)
			}
		}
		if got != want {
			t.Fatalf("round %d: %d of %d blocks, want %d; %+v, eagle %v, have %v", round, got, len(chain), want, h.Groups, h.Eagle, counts(have, chain))
		}
		var all []BlockHash
		for g := range have {
			for b, n := range have[g] {
				if n > 0 {
					all = append(all, b)
				}
			}
		}
		slices.Sort(all)
		if got := x.Blocks(owner); !slices.Equal(got, slices.Compact(all)) {
			t.Fatalf("round %d: Blocks lists %d, want %d", round, len(got), len(all))
		}
		apply(Record{Kind: KindCleared})
		if got := x.Overlap(chain, nil); len(got) > 0 || len(x.Blocks(owner)) > 0 {
			t.Fatalf("round %d: %v after a clear", round, got)
		}
	}
}

func counts(have []map[BlockHash]int, chain []BlockHash) (out []string) {
	for _, m := range have {
		s := ""
		for _, b := range chain {
			s += fmt.Sprint(m[b])
		}
		out = append(out, s)
	}
	return out
}

// TestHybridTiers: a slower tier may fill the holes of a faster one, group by group.
func TestHybridTiers(t *testing.T) {
	x := NewIndex()
	chain := AppendChain(nil, 1, make([]uint32, 16), 4)
	hello := &Hello{BlockSize: 4, Groups: []GroupSpec{{}, {Kind: GroupState}}}
	seqs := map[Owner]uint64{}
	apply := func(tier Tier, rec Record) {
		t.Helper()
		rec.Owner, rec.Epoch, rec.Term = Owner{Worker: "w", Tier: tier}, 1, 1
		if rec.Kind.Sequenced() {
			seqs[rec.Owner]++
			rec.Seq = seqs[rec.Owner]
		}
		if err := x.Apply(&rec); err != nil {
			t.Fatal(err)
		}
	}
	depth := func() [NumTiers]uint32 {
		for _, m := range x.Overlap(chain, nil) {
			return m.Depth
		}
		return [NumTiers]uint32{}
	}
	apply(Device, Record{Kind: KindHello, Hello: hello})
	apply(Device, Record{Kind: KindStored, Stored: &Stored{Parent: 1, Hashes: chain}})
	if got := depth(); got != [NumTiers]uint32{} {
		t.Errorf("without any state: %v", got)
	}
	apply(Device, Record{Kind: KindStored, Stored: &Stored{Group: 1, Parent: chain[0], Hashes: chain[1:2]}})
	apply(Host, Record{Kind: KindStored, Stored: &Stored{Group: 1, Parent: chain[2], Hashes: chain[3:]}})
	if got := depth(); got != [NumTiers]uint32{2, 4, 4, 4} {
		t.Errorf("got %v, want a state after 2 blocks on the device and after 4 in host memory", got)
	}
	// A worker that turns out to be an ordinary one.
	apply(Device, Record{Kind: KindHello, Hello: &Hello{BlockSize: 4}})
	if got := depth(); got != [NumTiers]uint32{4, 4, 4, 4} {
		t.Errorf("got %v, want 4 everywhere", got)
	}
	x.Drop("w")
	if x.groups.workers.Load() != nil {
		t.Error("a dropped worker's groups are still there")
	}
}

// TestBlockSetRandom compares a set with a map, with readers beside the writer.
func TestBlockSetRandom(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	var s blockSet
	const always = BlockHash(1 << 60)
	s.add(always)
	stop := make(chan struct{})
	var readers sync.WaitGroup
	for range 2 {
		readers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					if !s.has(always) {
						t.Error("a block that is always there was missed")
						return
					}
				}
			}
		})
	}
	want := map[BlockHash]int{always: 1}
	for range 100_000 {
		h := BlockHash(2 + r.Uint64N(3000))
		if r.IntN(2) == 0 {
			s.add(h)
			want[h]++
		} else {
			if got := s.remove(h); got != (want[h] > 0) {
				t.Fatalf("remove %d: %v with %d copies", h, got, want[h])
			}
			want[h] = max(0, want[h]-1)
		}
	}
	close(stop)
	readers.Wait()
	n := 0
	for h, copies := range want {
		if s.has(h) != (copies > 0) {
			t.Fatalf("%d: has %v with %d copies", h, s.has(h), copies)
		}
		if copies > 0 {
			n++
		}
	}
	if s.young.n != n {
		t.Errorf("it counts %d, want %d", s.young.n, n)
	}
}

// TestBlockSetTurns: what was there before a turn counts on, until it is forgotten.
func TestBlockSetTurns(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 2))
	var s blockSet
	want, old := map[BlockHash]int{}, map[BlockHash]bool{}
	for range 200_000 {
		h := BlockHash(2 + r.Uint64N(3000))
		switch n := r.IntN(2000); {
		case n == 0 && s.old.n == 0:
			s.turn()
			for h, copies := range want {
				old[h] = copies > 0
			}
		case n == 1:
			for h, was := range old {
				if was {
					delete(want, h)
				}
			}
			clear(old)
			s.forget(&s.old)
		case n%2 == 0:
			s.add(h)
			want[h]++
		default:
			if got := s.remove(h); got != (want[h] > 0) {
				t.Fatalf("remove %d: %v with %d copies", h, got, want[h])
			}
			if want[h] = max(0, want[h]-1); want[h] == 0 {
				delete(old, h)
			}
		}
		if s.has(h) != (want[h] > 0) {
			t.Fatalf("%d: has %v with %d copies", h, s.has(h), want[h])
		}
	}
}

// TestGroupBudget: the sets of hybrid groups stay within their part of the budget,
// whatever comes, and what is forgotten is the older half.
func TestGroupBudget(t *testing.T) {
	const (
		limit   = 6 << 20
		workers = 8
		window  = 4 // blocks
		blocks  = 64
		prompts = 2000
	)
	x := NewIndexSized(limit)
	apply := func(r Record) {
		t.Helper()
		if err := x.Apply(&r); err != nil {
			t.Fatal(err)
		}
	}
	seqs, most := [workers]uint64{}, 0
	var chain []BlockHash
	for w := range workers {
		apply(Record{Owner: Owner{Worker: WorkerID(fmt.Sprint(w))}, Epoch: 1, Term: 1, Kind: KindHello, Hello: &Hello{
			BlockSize: 4, Groups: []GroupSpec{{Kind: GroupFull}, {Kind: GroupWindow, Window: 4 * window}},
		}})
	}
	for p := range prompts {
		w := p % workers
		owner := Owner{Worker: WorkerID(fmt.Sprint(w))}
		chain = AppendChain(chain[:0], BlockHash(p+1), make([]uint32, 4*blocks), 4)
		for g := range uint16(2) {
			seqs[w]++
			apply(Record{Owner: owner, Epoch: 1, Term: 1, Seq: seqs[w], Kind: KindStored, Stored: &Stored{Group: g, Parent: BlockHash(p + 1), Hashes: slices.Clone(chain)}})
		}
		most = max(most, x.groups.bytes())
		if got := x.Overlap(chain, nil); len(got) != 1 || got[0].Depth[Device] != blocks {
			t.Fatalf("prompt %d: %+v right after it was stored", p, got)
		}
	}
	s := x.Stats()
	t.Logf("groups at most %d bytes, all %d of %d, %d forgotten", most, s.Bytes, limit, s.Forgotten)
	if most > limit/4 || s.Bytes > limit+limit/16 || s.Forgotten == 0 {
		t.Errorf("groups at most %d bytes, all %d of %d, %d forgotten", most, s.Bytes, limit, s.Forgotten)
	}
}

func TestParseGroups(t *testing.T) {
	got, err := ParseGroups("full,window:128,state::528,chunk:8192,unused")
	want := []GroupSpec{{}, {Kind: GroupWindow, Window: 128}, {Kind: GroupState, BlockSize: 528}, {Kind: GroupChunk, Window: 8192}, {Kind: GroupUnused}}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("got %+v, %v", got, err)
	}
	for _, bad := range []string{"none", "window", "chunk:0", "full:x", "full:1:2:3", ","} {
		if _, err := ParseGroups(bad); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}

func ExampleIndex_hybrid() {
	x := NewIndex()
	w := Owner{Worker: "10.0.0.1:8000"}
	chain := AppendChain(nil, 1, make([]uint32, 32), 4)
	hello := &Hello{BlockSize: 4, Groups: []GroupSpec{{Kind: GroupFull}, {Kind: GroupWindow, Window: 8}}}
	for _, r := range []Record{
		{Kind: KindHello, Hello: hello},
		{Kind: KindStored, Seq: 1, Stored: &Stored{Parent: 1, Hashes: chain}},
		// Of the windows only blocks 3 to 5 are left.
		{Kind: KindStored, Seq: 2, Stored: &Stored{Group: 1, Parent: chain[2], Hashes: chain[3:6]}},
	} {
		r.Owner, r.Epoch, r.Term = w, 1, 1
		if err := x.Apply(&r); err != nil {
			fmt.Println(err)
		}
	}
	fmt.Println(x.Overlap(chain, nil)[0].Depth[Device], "of", len(chain))
	// Output: 6 of 8
}

package kvindex

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// Asking with tokens gives what asking with their chain gives.
func TestOverlapTokens(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	const size = 4
	root := Namespace{Model: "m", BlockSize: size}.Root()
	x := NewIndex()
	prompts := make([][]uint32, 60)
	for i := range prompts {
		p := make([]uint32, rng.IntN(3000))
		for j := range p {
			p[j] = rng.Uint32N(50)
		}
		if i > 0 && len(p) > 0 { // goes on from an earlier one
			old := prompts[rng.IntN(i)]
			copy(p, old[:min(len(old), rng.IntN(len(p)+1))])
		}
		prompts[i] = p
	}
	seqs := map[Owner]uint64{}
	for _, p := range prompts {
		chain := AppendChain(nil, root, p, size)
		for range 1 + rng.IntN(3) {
			o := Owner{Worker: WorkerID(fmt.Sprint("w", rng.IntN(9))), Rank: uint16(rng.IntN(2)), Tier: Tier(rng.IntN(NumTiers))}
			n := rng.IntN(len(chain) + 1)
			if n == 0 {
				continue
			}
			seqs[o]++
			if err := x.Apply(&Record{Owner: o, Epoch: 1, Term: 1, Seq: seqs[o], Kind: KindStored, Stored: &Stored{Parent: root, Hashes: chain[:n]}}); err != nil {
				t.Fatal(err)
			}
		}
	}
	var buf []BlockHash
	var got []Match
	for _, p := range prompts {
		p = append(slices.Clone(p), make([]uint32, rng.IntN(2000))...)
		chain := AppendChain(nil, root, p, size)
		want := x.Overlap(chain, nil)
		if buf, got = x.OverlapTokens(root, p, size, buf, got[:0]); !slices.Equal(bySeat(got), bySeat(want)) {
			t.Fatalf("%d tokens: %v, want %v", len(p), got, want)
		}
		if !slices.Equal(buf, chain[:len(buf)]) {
			t.Fatal("the chain is another")
		}
	}
	if n := testing.AllocsPerRun(100, func() { buf, got = x.OverlapTokens(root, prompts[7], size, buf, got[:0]) }); n != 0 {
		t.Errorf("%g allocations", n)
	}
}

func bySeat(list []Match) []Match {
	list = slices.Clone(list)
	slices.SortFunc(list, func(a, b Match) int { return int(a.Seat) - int(b.Seat) })
	return list
}

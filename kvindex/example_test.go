package kvindex_test

import (
	"errors"
	"fmt"
	"strings"

	"github.com/kvlane/kvlane/kvindex"
)

// An engine stores a prompt's blocks; a request that begins alike finds them.
func ExampleIndex() {
	ns := kvindex.Namespace{Model: "m", BlockSize: 4}
	tokens := []uint32{1, 2, 3, 4, 5, 6, 7, 8, 9}
	chain := kvindex.AppendChain(nil, ns.Root(), tokens, ns.BlockSize)

	x := kvindex.NewIndex()
	owner := kvindex.Owner{Worker: "10.0.0.1:8000", Tier: kvindex.Device}
	err := x.Apply(&kvindex.Record{
		Owner: owner, Epoch: 1, Term: 1, Seq: 1, Kind: kvindex.KindStored,
		Stored: &kvindex.Stored{Parent: ns.Root(), Hashes: chain},
	})
	fmt.Println("stored:", err)

	other := kvindex.AppendChain(nil, ns.Root(), []uint32{1, 2, 3, 4, 50, 60, 70, 80}, ns.BlockSize)
	for _, m := range x.Overlap(other, nil) {
		fmt.Println(m.Worker, "holds", m.Depth[kvindex.Device], "of", len(other))
	}

	err = x.Apply(&kvindex.Record{Owner: owner, Epoch: 1, Term: 1, Seq: 5, Kind: kvindex.KindCleared})
	fmt.Println("cleared:", err)
	err = x.Apply(&kvindex.Record{
		Owner: owner, Epoch: 1, Term: 1, Seq: 7, Kind: kvindex.KindRemoved,
		Removed: &kvindex.Removed{Hashes: chain},
	})
	var gap *kvindex.GapError
	fmt.Println("gap:", errors.As(err, &gap), gap.Want)
	// Output:
	// stored: <nil>
	// 10.0.0.1:8000 holds 1 of 2
	// cleared: <nil>
	// gap: true 6
}

// What an engine made of one prompt tells how deep the next one is known.
func ExamplePrefixMap() {
	hash := func(text string) (kvindex.Seed, *kvindex.ChunkHasher) {
		seed := kvindex.NewSeed("chat", "m")
		h := kvindex.NewChunkHasher(seed)
		_, _ = h.WriteString(text)
		return seed, h
	}
	system := strings.Repeat("You answer in one word. ", 8)

	m := kvindex.NewPrefixMap(1 << 20)
	seed, h := hash(system + "What is the capital of France?")
	m.Learn(&kvindex.Learned{
		Seed: seed, Chunks: h.Chunks(), Bytes: uint32(h.Len()),
		Tokens: 57, BlockSize: 16, Blocks: []kvindex.BlockHash{11, 12, 13},
	})

	_, h = hash(system + "And of Spain?")
	k := m.Lookup(h.Chunks(), nil)
	fmt.Println(k.Chunks, "chunks,", k.Tokens, "tokens, blocks", k.Blocks)
	// Output:
	// 3 chunks, 49 tokens, blocks [11 12 13]
}

func ExampleAppendRecord() {
	r := kvindex.Record{Owner: kvindex.Owner{Worker: "w0"}, Epoch: 1, Term: 1, Seq: 9, Kind: kvindex.KindCleared}
	b := kvindex.AppendRecord(nil, &r)
	back, err := kvindex.DecodeRecord(b)
	fmt.Println(len(b), "bytes:", back.Kind, back.Owner, back.Seq, err)
	_, err = kvindex.DecodeRecord(b[:5])
	fmt.Println(errors.Is(err, kvindex.ErrBadRecord))
	// Output:
	// 11 bytes: cleared w0/0/device 9 <nil>
	// true
}

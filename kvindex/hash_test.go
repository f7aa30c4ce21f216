package kvindex

import (
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/zeebo/xxh3"
)

// A block's hash is the library's hash of the library's hash, however the tokens
// lie in memory, and a chain is its blocks one by one.
func TestHash(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		tokens := make([]uint32, rng.IntN(300))
		for i := range tokens {
			tokens[i] = rng.Uint32()
		}
		var media []string
		for range rng.IntN(3) {
			media = append(media, string(make([]byte, rng.IntN(40))))
		}
		parent := BlockHash(rng.Uint64())
		if got, want := parent.Next(tokens, media), slowNext(parent, tokens, media); got != want {
			t.Fatalf("%d tokens, %d media: %x, want %x", len(tokens), len(media), got, want)
		}
		size := 1 + rng.IntN(40)
		var want []BlockHash
		for at, h := 0, parent; at+size <= len(tokens); at += size {
			h = slowNext(h, tokens[at:at+size], nil)
			want = append(want, h)
		}
		if got := AppendChain(nil, parent, tokens, size); !slices.Equal(got, want) {
			t.Fatalf("chain of %d tokens, blocks of %d: %x, want %x", len(tokens), size, got, want)
		}
	}
}

func slowNext(parent BlockHash, tokens []uint32, media []string) BlockHash {
	var b []byte
	for _, t := range tokens {
		b = binary.LittleEndian.AppendUint32(b, t)
	}
	for _, m := range media {
		b = binary.LittleEndian.AppendUint64(b, uint64(len(m)))
		b = append(b, m...)
	}
	content := xxh3.Hash(b)
	b = binary.LittleEndian.AppendUint64(nil, uint64(parent))
	return BlockHash(xxh3.Hash(binary.LittleEndian.AppendUint64(b, content)))
}

// The pieces in which a text is written do not matter.
func TestChunks(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for range 500 {
		text := make([]byte, rng.IntN(1000))
		for i := range text {
			text[i] = byte(rng.Uint32())
		}
		var want []ChunkHash
		parent := BlockHash(NewSeed("a", "b"))
		for at := 0; at+ChunkSize <= len(text); at += ChunkSize {
			parent = slowChunk(parent, text[at:at+ChunkSize])
			want = append(want, ChunkHash(parent))
		}
		c := NewChunkHasher(NewSeed("a", "b"))
		for rest := text; len(rest) > 0; {
			n := 1 + rng.IntN(min(len(rest), 1+rng.IntN(300)))
			if rng.IntN(2) == 0 {
				_, _ = c.Write(rest[:n])
			} else {
				_, _ = c.WriteString(string(rest[:n]))
			}
			rest = rest[n:]
		}
		if !slices.Equal(c.Chunks(), want) || c.Len() != len(text) {
			t.Fatalf("%d bytes: %x, want %x", len(text), c.Chunks(), want)
		}
	}
}

func slowChunk(parent BlockHash, text []byte) BlockHash {
	b := binary.LittleEndian.AppendUint64(nil, uint64(parent))
	return BlockHash(xxh3.Hash(binary.LittleEndian.AppendUint64(b, xxh3.Hash(text))))
}

func BenchmarkAppendChain(b *testing.B) {
	tokens := make([]uint32, 131072)
	for i := range tokens {
		tokens[i] = uint32(i*7919) % 150000
	}
	var dst []BlockHash
	for b.Loop() {
		dst = AppendChain(dst[:0], 1, tokens, 16)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(dst)), "ns/block")
}

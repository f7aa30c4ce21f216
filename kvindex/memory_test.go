package kvindex

import (
	"math/rand/v2"
	"runtime"
	"testing"
)

// heapBytes is the memory that stays allocated after build.
func heapBytes(build func()) int {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	build()
	runtime.GC()
	runtime.ReadMemStats(&after)
	return int(after.HeapAlloc) - int(before.HeapAlloc)
}

func checkBytes(t *testing.T, said, heap int) {
	t.Helper()
	t.Logf("says %d bytes, heap %d: %.2f", said, heap, float64(said)/float64(heap))
	if said < heap*6/10 || said > heap*15/10 {
		t.Errorf("got %d bytes, want about %d", said, heap)
	}
}

func TestIndexBytes(t *testing.T) {
	for _, owners := range []int{1, 4, 16} {
		x := NewIndex()
		heap := heapBytes(func() {
			for w := range owners {
				for i := range 100 {
					r := Record{Owner: Owner{Worker: "w", Rank: uint16(w)}, Seq: uint64(i + 1), Kind: KindStored, Stored: &Stored{}}
					for b := range 500 {
						r.Stored.Hashes = append(r.Stored.Hashes, BlockHash(i*500+b))
					}
					if err := x.Apply(&r); err != nil {
						t.Fatal(err)
					}
				}
			}
		})
		checkBytes(t, x.Stats().Bytes, heap+x.arena.mapped)
	}
}

func TestPrefixMapBytes(t *testing.T) {
	m := NewPrefixMap(1 << 30)
	heap := heapBytes(func() {
		rng := rand.New(rand.NewPCG(1, 0))
		for range 100 {
			l := &Learned{Bytes: 1000 * ChunkSize, Tokens: 16000, BlockSize: 16}
			for range 1000 {
				l.Chunks = append(l.Chunks, ChunkHash(rng.Uint64()))
				l.Blocks = append(l.Blocks, BlockHash(rng.Uint64()))
			}
			m.Learn(l)
		}
	})
	checkBytes(t, m.Stats().Bytes, heap)
}

func TestOverlapAllocatesNothing(t *testing.T) {
	x := NewIndex()
	r := Record{Owner: Owner{Worker: "w"}, Seq: 1, Kind: KindStored, Stored: &Stored{Hashes: []BlockHash{1, 2, 3}}}
	if err := x.Apply(&r); err != nil {
		t.Fatal(err)
	}
	dst := make([]Match, 0, 4)
	got := testing.AllocsPerRun(1000, func() { dst = x.Overlap(r.Stored.Hashes, dst[:0]) })
	if got > 0 {
		t.Errorf("got %.2f allocations, want none", got)
	}
}

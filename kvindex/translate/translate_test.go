package translate

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/kvlane/kvlane/kvindex"
	"github.com/kvlane/kvlane/kvindex/enginewire"
)

// newRand prints its seed, so that a failure can be had again.
func newRand(t *testing.T) *rand.Rand {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

func TestMixLosesNothing(t *testing.T) {
	r := newRand(t)
	for range 100_000 {
		v, seed := r.Uint64(), r.Uint64()
		if got := unmix(mix(v, seed), seed); got != v {
			t.Fatalf("%x with seed %x came back as %x", v, seed, got)
		}
	}
}

// checkTable verifies the invariant of every segment.
func checkTable[K name](t *testing.T, x *table[K]) {
	t.Helper()
	n := len(x.zeroes)
	for at, s := range x.dir {
		if at > 0 && x.dir[at-1] == s {
			continue
		}
		var last uint64
		count := 0
		for i := range s.slots {
			e := &s.slots[i]
			if e.value == 0 {
				continue
			}
			count++
			o := e.key.order()
			if x.segment(o) != s {
				t.Fatalf("an entry lies in a foreign segment")
			}
			if home := s.home(o); home > i {
				t.Fatalf("slot %d: its home is %d", i, home)
			} else if j := slices.IndexFunc(s.slots[home:i], func(e entry[K]) bool { return e.value == 0 }); j >= 0 {
				t.Fatalf("slot %d: empty slot %d between it and its home %d", i, home+j, home)
			}
			if o < last {
				t.Fatalf("slot %d: out of order", i)
			}
			last = o
		}
		if count != s.n {
			t.Fatalf("a segment counts %d of its %d entries", s.n, count)
		}
		n += count
	}
	if n != x.n {
		t.Fatalf("the table counts %d of its %d entries", x.n, n)
	}
}

// TestTableRandom compares a table with a Go map while it grows and shrinks.
func TestTableRandom(t *testing.T) {
	r := newRand(t)
	x := &table[short]{}
	want := map[short]uint64{}
	var keys []short
	for round := range 30 {
		grow := r.IntN(3) > 0
		for range r.IntN(6000) {
			switch k := mix(r.Uint64()>>r.IntN(60), 1); {
			case grow || len(keys) == 0:
				v := r.Uint64N(50) * r.Uint64()
				_, had := want[k]
				if isNew := x.put(k, v); isNew == had {
					t.Fatalf("put %x: new %v, had it %v", k, isNew, had)
				}
				want[k] = v
				keys = append(keys, k)
			default:
				i := r.IntN(len(keys))
				k, keys[i] = keys[i], keys[len(keys)-1]
				keys = keys[:len(keys)-1]
				v, had := want[k]
				got, ok := x.remove(k)
				if ok != had || got != v {
					t.Fatalf("delete %x: got %x, %v; want %x, %v", k, got, ok, v, had)
				}
				delete(want, k)
			}
		}
		checkTable(t, x)
		if got := maps.Collect(x.all()); !maps.Equal(got, want) || x.n != len(want) {
			t.Fatalf("round %d: %d entries, want %d", round, len(got), len(want))
		}
		for k, v := range want {
			if got, ok := x.get(k); !ok || got != v {
				t.Fatalf("get %x: %x, %v; want %x", k, got, ok, v)
			}
		}
		if _, ok := x.get(short(r.Uint64())); ok {
			t.Fatal("found what was never put")
		}
	}
}

// TestBytes: at any size, growing and shrinking, a block costs at most 20 bytes
// beyond the first 24 KiB.
func TestBytes(t *testing.T) {
	const most = 200_000
	m := New(7)
	worst, at := 0.0, 0
	check := func(n int) {
		bytes := m.BytesReserved()
		if bytes > 20*n+24<<10 {
			t.Fatalf("%d blocks take %d bytes, %.2f each", n, bytes, float64(bytes)/float64(n))
		}
		if n > 16384 && float64(bytes)/float64(n) > worst {
			worst, at = float64(bytes)/float64(n), n
		}
	}
	for n := 1; n <= most; n++ {
		m.Store(enginewire.IntHash(uint64(n)), kvindex.BlockHash(n), kvindex.Device)
		if n%1997 == 0 || n < 2000 {
			check(n)
		}
	}
	for n := most; n > 1; n-- {
		m.Remove(enginewire.IntHash(uint64(n)), kvindex.Device)
		if n%1997 == 0 || n < 2000 {
			check(n - 1)
		}
	}
	t.Logf("above 16,384 blocks at most %.2f bytes a block, at %d", worst, at)
}

// TestBytesAreTrue compares BytesReserved with the heap.
func TestBytesAreTrue(t *testing.T) {
	heap := func() uint64 {
		var s runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&s)
		return s.HeapAlloc
	}
	before := heap()
	m := New(7)
	for n := range uint64(300_000) {
		m.Store(enginewire.IntHash(n), kvindex.BlockHash(n+1), kvindex.Device)
	}
	got, said := float64(heap()-before), float64(m.BytesReserved())
	t.Logf("heap %.2f, reserved %.2f bytes a block", got/300_000, said/300_000)
	if got > 1.05*said || got < 0.95*said {
		t.Errorf("the heap grew by %.0f bytes, BytesReserved says %.0f", got, said)
	}
	runtime.KeepAlive(m)
}

// naive is the obvious map.
type naive map[enginewire.Hash]*naiveName

type naiveName struct {
	block  kvindex.BlockHash
	copies [kvindex.NumTiers]int
}

func (n *naiveName) held() bool { return n.copies != [kvindex.NumTiers]int{} }

// hashOf makes names of all forms, some equal in 8 of their bytes.
func hashOf(n uint64) enginewire.Hash {
	switch n % 5 {
	case 0:
		b := make([]byte, 32)
		binary.BigEndian.PutUint64(b[8*(n/5%4):], n)
		return enginewire.Hash(b)
	case 1:
		return enginewire.Hash(fmt.Sprint("name ", n))
	}
	return enginewire.IntHash(n)
}

// TestMapRandom compares random histories with the naive map. Names of blocks that
// are gone may be forgotten, never wrong, and the last MinSpares are there.
func TestMapRandom(t *testing.T) {
	r := newRand(t)
	for range 8 {
		m, want := New(r.Uint64()), naive{}
		var gone []enginewire.Hash // with repeats
		went := map[enginewire.Hash]int{}
		for range 8_000 {
			h, tier := hashOf(r.Uint64N(3000)), kvindex.Tier(r.IntN(4)*r.IntN(2))
			w := want[h]
			switch r.IntN(8) {
			case 0, 1, 2:
				block := kvindex.BlockHash(r.Uint64())
				if got, ok := m.Lookup(h); ok && (w == nil || got != w.block) {
					t.Fatalf("%s stands for %x, want %v", h, got, w)
				} else if !ok && w != nil && w.held() {
					t.Fatalf("%s is held and unknown", h)
				} else if ok {
					block = got
				}
				if w == nil || w.block != block {
					w = &naiveName{block: block}
					want[h] = w
				}
				w.copies[tier]++
				if first := m.Store(h, block, tier); first != (w.copies[tier] == 1) {
					t.Fatalf("store %s: first %v, want copy %d", h, first, w.copies[tier])
				}
			case 3, 4, 5, 6:
				got, last := m.Remove(h, tier)
				if w == nil || w.copies[tier] == 0 {
					if last {
						t.Fatalf("removed %s, which was not there", h)
					}
					continue
				}
				w.copies[tier]--
				if last != (w.copies[tier] == 0) || last && got != w.block {
					t.Fatalf("remove %s: %x, last %v; want %x with %d left", h, got, last, w.block, w.copies[tier])
				}
				if !w.held() {
					gone = append(gone, h)
					went[h]++
				}
			case 7:
				if r.IntN(20) > 0 {
					continue
				}
				held := m.Forget(h)
				for tier := range held {
					if held[tier] != (w != nil && w.copies[tier] > 0) {
						t.Fatalf("forget %s: tier %d %v, want %v", h, tier, held[tier], w)
					}
				}
				delete(want, h)
			}
		}
		compare(t, m, want)
		// Each of three forms remembers its own last ones, so the last of all are there.
		for _, h := range gone[max(0, len(gone)-MinSpares):] {
			if w := want[h]; w != nil && went[h] == 1 {
				if got, ok := m.Lookup(h); !ok || got != w.block {
					t.Fatalf("%s went lately and is forgotten", h)
				}
			}
		}
	}
}

func compare(t *testing.T, m *Map, want naive) {
	t.Helper()
	for tier := range kvindex.Tier(kvindex.NumTiers) {
		var list []kvindex.BlockHash
		for _, w := range want {
			if w.copies[tier] > 0 {
				list = append(list, w.block)
			}
		}
		slices.Sort(list)
		if got := slices.Sorted(m.Held(tier)); !slices.Equal(got, list) || m.Len(tier) != len(list) {
			t.Fatalf("%s: %d blocks, Len %d, want %d", tier, len(got), m.Len(tier), len(list))
		}
		checkTable(t, &m.short.tiers[tier])
		checkTable(t, &m.long.tiers[tier])
		checkTable(t, &m.text.tiers[tier])
	}
}

// TestParents: parents come back while a copy is there and a while longer.
func TestParents(t *testing.T) {
	r := newRand(t)
	p := NewParents(r.Uint64())
	want := map[kvindex.BlockHash]int{}
	parent := func(b kvindex.BlockHash) kvindex.BlockHash { return b / 2 }
	for range 50_000 {
		b := kvindex.BlockHash(r.Uint64N(5000))
		if r.IntN(2) == 0 {
			want[b]++
			if first := p.Store(b, parent(b)); first != (want[b] == 1) {
				t.Fatalf("store %d: first %v, want copy %d", b, first, want[b])
			}
			continue
		}
		if last := p.Remove(b); last != (want[b] == 1) {
			t.Fatalf("remove %d: last %v with %d copies", b, last, want[b])
		}
		want[b] = max(0, want[b]-1)
		if got, ok := p.Parent(b); ok && got != parent(b) {
			t.Fatalf("parent of %d: %d", b, got)
		}
	}
	held := 0
	for b, n := range want {
		if n == 0 {
			continue
		}
		held++
		if got, ok := p.Parent(b); !ok || got != parent(b) {
			t.Fatalf("parent of %d: %d, %v", b, got, ok)
		}
	}
	for b, e := range p.All() {
		if e.Parent != parent(b) || int(e.Copies) != want[b] {
			t.Fatalf("%d: %+v, want %d copies", b, e, want[b])
		}
		held--
	}
	if held != 0 {
		t.Errorf("%d blocks too few", held)
	}
}

// TestSparesAreBounded: names of blocks that are gone do not pile up.
func TestSparesAreBounded(t *testing.T) {
	m := New(1)
	for i := range uint64(100_000) {
		m.Store(enginewire.IntHash(i), kvindex.BlockHash(i), kvindex.Device)
		m.Remove(enginewire.IntHash(i), kvindex.Device)
	}
	if n := m.short.spare.n; n > MinSpares {
		t.Errorf("%d names are remembered, want at most %d", n, MinSpares)
	}
	if n := m.BytesReserved(); n > 32<<10 {
		t.Errorf("an empty map takes %d bytes", n)
	}
}

func ExampleMap() {
	m := New(0)
	root := kvindex.Namespace{Model: "m", BlockSize: 2}.Root()
	block := root.Next([]uint32{1, 2}, nil)
	engine := enginewire.IntHash(12345)
	fmt.Println("first copy:", m.Store(engine, block, kvindex.Device))
	fmt.Println("first copy:", m.Store(engine, block, kvindex.Device))
	_, last := m.Remove(engine, kvindex.Device)
	fmt.Println("last copy:", last)
	got, last := m.Remove(engine, kvindex.Device)
	fmt.Println("last copy:", last, got == block)
	// Output:
	// first copy: true
	// first copy: false
	// last copy: false
	// last copy: true true
}

func BenchmarkMap(b *testing.B) {
	const held = 1 << 20
	m := New(7)
	hashes := make([]enginewire.Hash, 2*held)
	r := rand.New(rand.NewPCG(1, 2))
	for i := range hashes {
		hashes[i] = enginewire.IntHash(r.Uint64())
	}
	for i := range held {
		m.Store(hashes[i], kvindex.BlockHash(i+1), kvindex.Device)
	}
	b.Run("lookup", func(b *testing.B) {
		for i := range b.N {
			m.Lookup(hashes[i*7919%held])
		}
	})
	b.Run("turnover", func(b *testing.B) {
		for i := range b.N {
			h := hashes[(i+held)%len(hashes)]
			if _, ok := m.Lookup(h); !ok {
				m.Store(h, kvindex.BlockHash(i+1), kvindex.Device)
			}
			m.Remove(hashes[i%len(hashes)], kvindex.Device)
		}
	})
}

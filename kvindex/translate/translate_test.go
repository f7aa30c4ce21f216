package translate

import (
	"encoding/binary"
	"fmt"
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

// checkNames verifies the invariants of the names of one form.
func checkNames[K name](t *testing.T, n *names[K]) {
	t.Helper()
	live, free := 0, 0
	for p := range n.used {
		flags := *n.flag(p)
		if flags == 0 {
			free++
			continue
		}
		live++
		if got, ok := n.find(n.key(p)); !ok || got != p {
			t.Fatalf("place %d: its key leads to %d, %v", p, got, ok)
		}
		_, aside := n.parents[p]
		if flags&before != 0 && (p == 0 || *n.flag(p - 1) == 0 || aside) {
			t.Fatalf("place %d has its parent before it and not, or aside %v", p, aside)
		}
	}
	if live != n.live || live+free != int(n.used) {
		t.Fatalf("%d of %d are in use, counted %d", live, n.used, n.live)
	}
	for p := n.free; free > 0; free-- {
		next := uint32(*n.block(p))
		if *n.flag(p) != 0 || *n.block(next)>>32 != uint64(p) {
			t.Fatalf("place %d is not free, or the ring is broken at %d", p, next)
		}
		if p = next; free == 1 && p != n.free {
			t.Fatalf("the ring does not close")
		}
	}
	for p := range n.parents {
		if p >= n.used || *n.flag(p) == 0 {
			t.Fatalf("a parent of place %d, which is free", p)
		}
	}
	indexed := len(n.stray)
	for i := range n.segments {
		indexed += n.segments[i].n
	}
	if indexed != n.live {
		t.Fatalf("%d are indexed, want %d", indexed, n.live)
	}
}

// twin is a key whose order many share.
type twin uint64

func (k twin) order() uint64 { return uint64(k) / 100 * factor1 }

// TestNamesRandom compares names with a Go map while they grow and shrink: keys
// that spread, and keys that crowd a few places.
func TestNamesRandom(t *testing.T) {
	t.Run("spread", func(t *testing.T) { testNames(t, 100_000, func(v uint64) short { return mix(v, 1) }) })
	// Keys that find no room in the index are looked for one by one: few are enough.
	t.Run("crowded", func(t *testing.T) { testNames(t, 5_000, func(v uint64) twin { return twin(v) }) })
}

// testNames takes keys out of so many.
func testNames[K name](t *testing.T, most uint64, key func(uint64) K) {
	r := newRand(t)
	x := &names[K]{last: none}
	type value struct{ block, parent kvindex.BlockHash }
	want := map[K]value{}
	var keys []K
	last := kvindex.BlockHash(1)
	for round := range 12 {
		grow := r.IntN(3) > 0
		for range r.IntN(min(6000, int(most)/4)) {
			if !grow && len(keys) > 0 {
				i := r.IntN(len(keys))
				if r.IntN(2) == 0 {
					i = len(keys) - 1
				}
				k := keys[i]
				keys = slices.Delete(keys, i, i+1)
				if held := x.forget(k); !held[0] {
					t.Fatalf("forget %v: not held", k)
				}
				delete(want, k)
				continue
			}
			k := key(r.Uint64N(most))
			if _, had := want[k]; had {
				continue
			}
			v := value{kvindex.BlockHash(r.Uint64N(1 << 40)), last}
			if r.IntN(20) == 0 {
				v.parent = kvindex.BlockHash(r.Uint64N(3))
			}
			last = v.block
			if !x.store(k, v.block, v.parent, kvindex.Device) {
				t.Fatalf("store %v: had it", k)
			}
			want[k] = v
			keys = append(keys, k)
		}
		checkNames(t, x)
		for k, v := range want {
			if block, parent, ok := x.lookup(k); !ok || (value{block, parent}) != v {
				t.Fatalf("round %d: %v is %x after %x, %v; want %+v", round, k, block, parent, ok, v)
			}
		}
		if x.held[kvindex.Device] != len(want) {
			t.Fatalf("%d held, want %d", x.held[kvindex.Device], len(want))
		}
	}
}

// TestWideIndex: the index takes other forms as the places grow.
func TestWideIndex(t *testing.T) {
	for _, p := range []uint32{0, 1<<18 - 2, 1<<18 - 1, 1 << 18, 1<<26 - 2, 1 << 26, 1<<32 - 3} {
		f := slotsFor(p + 1)
		bucket := make([]byte, bucketBytes)
		for i := range f.count {
			f.set(bucket, i, f.value(uint64(i)*factor1, p))
		}
		for i := range f.count {
			if got, ok := f.place(f.get(bucket, i), uint64(i)*factor1); !ok || got != p {
				t.Errorf("slot %d of %+v: place %d, %v; want %d", i, f, got, ok, p)
			}
		}
	}
}

// bytesGrown is the bound of a block's memory where prompts come as wholes.
const bytesGrown = 22

// TestBytes: at any size a block of a long prompt costs at most bytesGrown while
// the map grows, and a third more of its entry while it shrinks, beyond the first
// 32 KiB.
func TestBytes(t *testing.T) {
	const most = 80_000 // more than one segment
	m := New(7)
	worst, at := 0.0, 0
	check := func(n, limit int) {
		bytes := m.BytesReserved()
		if bytes > limit*n+32<<10 {
			t.Fatalf("%d blocks take %d bytes, %.2f each", n, bytes, float64(bytes)/float64(n))
		}
		if n > 16384 && float64(bytes)/float64(n) > worst {
			worst, at = float64(bytes)/float64(n), n
		}
	}
	for n := 1; n <= most; n++ {
		m.Store(enginewire.IntHash(uint64(n)), kvindex.BlockHash(n), kvindex.BlockHash(n-1), kvindex.Device)
		if n%1997 == 0 || n < 2000 {
			check(n, bytesGrown)
		}
	}
	for n := most; n > 1; n-- {
		m.Remove(enginewire.IntHash(uint64(n)), kvindex.Device)
		if n%1997 == 0 || n < 2000 {
			check(n-1, bytesGrown*4/3)
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
	for n := range uint64(80_000) {
		m.Store(enginewire.IntHash(n), kvindex.BlockHash(n+1), kvindex.BlockHash(n), kvindex.Device)
	}
	got, said := float64(heap()-before), float64(m.BytesReserved())
	t.Logf("heap %.2f, reserved %.2f bytes a block", got/80_000, said/80_000)
	if got > 1.05*said || got < 0.95*said {
		t.Errorf("the heap grew by %.0f bytes, BytesReserved says %.0f", got, said)
	}
	runtime.KeepAlive(m)
}

// naive is the obvious map.
type naive map[enginewire.Hash]*naiveName

type naiveName struct {
	block  kvindex.BlockHash
	parent kvindex.BlockHash
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
		var last kvindex.BlockHash // stored
		var gone []enginewire.Hash // with repeats
		went := map[enginewire.Hash]int{}
		for range 8_000 {
			h, tier := hashOf(r.Uint64N(3000)), kvindex.Tier(r.IntN(4)*r.IntN(2))
			w := want[h]
			switch r.IntN(8) {
			case 0, 1, 2:
				block := kvindex.BlockHash(r.Uint64())
				if got, parent, ok := m.Lookup(h); ok && (w == nil || got != w.block || parent != w.parent) {
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
				if parent := last * kvindex.BlockHash(min(1, r.IntN(4))); parent != 0 {
					w.parent = parent
				}
				w.copies[tier]++
				if first := m.Store(h, block, w.parent, tier); first != (w.copies[tier] == 1) {
					t.Fatalf("store %s: first %v, want copy %d", h, first, w.copies[tier])
				}
				last = block
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
				if got, parent, ok := m.Lookup(h); !ok || got != w.block || parent != w.parent {
					t.Fatalf("%s went lately and is forgotten", h)
				}
			}
		}
	}
}

func compare(t *testing.T, m *Map, want naive) {
	t.Helper()
	for tier := range kvindex.Tier(kvindex.NumTiers) {
		var list, got []string
		for _, w := range want {
			if w.copies[tier] > 0 {
				list = append(list, fmt.Sprint(w.block, w.parent))
			}
		}
		for block, parent := range m.Held(tier) {
			got = append(got, fmt.Sprint(block, parent))
		}
		slices.Sort(list)
		slices.Sort(got)
		if !slices.Equal(got, list) || m.Len(tier) != len(list) {
			t.Fatalf("%s: %d blocks, Len %d, want %d", tier, len(got), m.Len(tier), len(list))
		}
	}
	checkNames(t, &m.short)
	checkNames(t, &m.long)
	checkNames(t, &m.text)
}

// TestTurnover: an engine that is full drops the ends of its oldest prompts and takes
// new ones. What that costs a block stays bounded, and parents right.
func TestTurnover(t *testing.T) {
	r := newRand(t)
	m := New(r.Uint64())
	const held = 20_000
	type prompt struct{ first, n uint64 }
	var prompts []prompt
	next, blocks, worst := uint64(1), 0, 0.0
	for range 5_000 {
		p := prompt{next, 1 + r.Uint64N(60)}
		next += p.n + 1
		for i := range p.n {
			b := kvindex.BlockHash(p.first + i)
			m.Store(enginewire.IntHash(uint64(b)*factor2), b, b-1, kvindex.Device)
		}
		prompts, blocks = append(prompts, p), blocks+int(p.n)
		for blocks > held {
			i := r.IntN(1 + len(prompts)/8)
			old := &prompts[i]
			for n := 1 + r.Uint64N(old.n); n > 0; n-- {
				old.n--
				blocks--
				m.Remove(enginewire.IntHash((old.first+old.n)*factor2), kvindex.Device)
			}
			if old.n == 0 {
				prompts = slices.Delete(prompts, i, i+1)
			}
		}
		if blocks > held-100 {
			worst = max(worst, float64(m.BytesReserved())/float64(blocks))
		}
	}
	t.Logf("at most %.2f bytes a block, %d of %d parents aside", worst, len(m.short.parents), m.short.live)
	if worst > 25 {
		t.Errorf("%.2f bytes a block, want at most 25", worst)
	}
	for b, parent := range m.Held(kvindex.Device) {
		if parent != b-1 {
			t.Fatalf("block %d comes after %d", b, parent)
		}
	}
	checkNames(t, &m.short)
}

// TestSparesAreBounded: names of blocks that are gone do not pile up.
func TestSparesAreBounded(t *testing.T) {
	m := New(1)
	for i := range uint64(100_000) {
		m.Store(enginewire.IntHash(i), kvindex.BlockHash(i), 0, kvindex.Device)
		m.Remove(enginewire.IntHash(i), kvindex.Device)
	}
	if n := m.short.live; n > MinSpares {
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
	fmt.Println("first copy:", m.Store(engine, block, root, kvindex.Device))
	fmt.Println("first copy:", m.Store(engine, block, root, kvindex.Device))
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
		m.Store(hashes[i], kvindex.BlockHash(i+1), kvindex.BlockHash(i), kvindex.Device)
	}
	b.Run("lookup", func(b *testing.B) {
		for i := range b.N {
			m.Lookup(hashes[i*7919%held])
		}
	})
	b.Run("turnover", func(b *testing.B) {
		for i := range b.N {
			h := hashes[(i+held)%len(hashes)]
			if _, _, ok := m.Lookup(h); !ok {
				m.Store(h, kvindex.BlockHash(i+1), kvindex.BlockHash(i), kvindex.Device)
			}
			m.Remove(hashes[i%len(hashes)], kvindex.Device)
		}
	})
}

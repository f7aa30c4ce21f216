package kvindex

import (
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"
)

// randomTexts grows texts over a small alphabet of chunks, so that they share
// beginnings and part often.
type randomTexts struct {
	rng     *rand.Rand
	learned []*Learned
}

// next continues a learned text, branches off one, repeats one, or begins.
func (g *randomTexts) next() *Learned {
	var text []byte
	if len(g.learned) > 0 && g.rng.IntN(10) > 0 {
		old := g.learned[g.rng.IntN(len(g.learned))]
		text = old.text(g.rng.IntN(len(old.Chunks) + 1))
	}
	for range g.rng.IntN(6) {
		text = append(text, byte('a'+g.rng.IntN(3)))
	}
	l := g.learn(text)
	g.learned = append(g.learned, l)
	return l
}

// text undoes learn: the chunk hashes of these tests spell the text.
func (l *Learned) text(n int) []byte {
	text := make([]byte, n)
	for i := range n {
		text[i] = byte(l.Chunks[i])
	}
	return text
}

// learn makes up what an engine says: a's are sparse, b's dense.
func (g *randomTexts) learn(text []byte) *Learned {
	l := &Learned{BlockSize: 4, Bytes: uint32(ChunkSize*len(text) + g.rng.IntN(ChunkSize))}
	var tokens []uint32
	h := ChunkHash(7)
	for _, c := range text {
		h = ChunkHash(NewSeed(string(c), strconv.FormatUint(uint64(h), 10)))&^0xff | ChunkHash(c)
		l.Chunks = append(l.Chunks, h)
		for i := range map[byte]int{'a': 2, 'b': 11, 'c': 5}[c] {
			tokens = append(tokens, uint32(c)<<8|uint32(i))
		}
	}
	for range g.rng.IntN(3) { // what is beyond the last whole chunk
		tokens = append(tokens, g.rng.Uint32N(3))
	}
	if g.rng.IntN(50) == 0 { // another template
		tokens = append([]uint32{1}, tokens...)
	}
	l.Tokens = uint32(len(tokens))
	l.Blocks = AppendChain(nil, 3, tokens, 4)
	return l
}

// Whatever comes, a lookup answers with the longest known text, one prompt's
// chain, and depths that do not fall along the way.
func TestPrefixMapRandomHistory(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	for _, budget := range []int{1 << 30, 60_000, 3_000} {
		g := &randomTexts{rng: rand.New(rand.NewPCG(seed, 0))}
		m := NewPrefixMap(budget)
		for step := range 4000 {
			l := g.next()
			m.Learn(l)
			if s := m.Stats(); s.Bytes > budget {
				t.Fatalf("step %d: %d bytes, want at most %d", step, s.Bytes, budget)
			}
			if step%100 == 0 {
				checkPrefixMap(t, m)
				g.checkLookups(t, m, budget == 1<<30)
			}
		}
		t.Logf("budget %d: %+v", budget, m.Stats())
	}
}

func (g *randomTexts) checkLookups(t *testing.T, m *PrefixMap, all bool) {
	t.Helper()
	for range 20 {
		l := g.learned[g.rng.IntN(len(g.learned))]
		before, n := 0, 0
		for i := range l.Chunks {
			k := m.Lookup(l.Chunks[:i+1], nil)
			if k.Chunks < n || k.Tokens < before {
				t.Fatalf("%s: %d chunks, %d tokens after %d, %d", l.text(i+1), k.Chunks, k.Tokens, n, before)
			}
			before, n = k.Tokens, k.Chunks
			if all && k.Chunks != i+1 {
				t.Fatalf("%s: got %d known chunks, want all", l.text(i+1), k.Chunks)
			}
			if k.Chunks > 0 && len(k.Blocks) != k.Tokens/k.BlockSize {
				t.Fatalf("%s: %d blocks for %d tokens", l.text(i+1), len(k.Blocks), k.Tokens)
			}
			if !g.oneChain(k.Blocks) {
				t.Fatalf("%s: %v is no learned chain", l.text(i+1), k.Blocks)
			}
		}
	}
}

// oneChain reports whether some learned prompt begins with these blocks.
func (g *randomTexts) oneChain(blocks []BlockHash) bool {
	return slices.ContainsFunc(g.learned, func(l *Learned) bool {
		return len(l.Blocks) >= len(blocks) && slices.Equal(l.Blocks[:len(blocks)], blocks)
	})
}

func TestLookupAllocatesNothing(t *testing.T) {
	g := &randomTexts{rng: rand.New(rand.NewPCG(1, 0))}
	m := NewPrefixMap(1 << 20)
	l := g.learn([]byte("abcabcabcabcabcabc"))
	m.Learn(l)
	dst := make([]BlockHash, len(l.Blocks))
	got := testing.AllocsPerRun(100, func() { m.Lookup(l.Chunks, dst) })
	if got != 0 {
		t.Errorf("got %.1f allocations, want none", got)
	}
}

// Learned records come over the network: any combination of figures and hashes
// must leave the map whole.
func FuzzLearn(f *testing.F) {
	f.Add([]byte{3, 2, 1, 1, 2, 3, 5, 6, 4, 2, 1, 1, 2, 4, 3, 9, 7, 7, 7})
	f.Fuzz(func(t *testing.T, b []byte) {
		next := func(n int) int {
			if len(b) == 0 {
				return 0
			}
			v := int(b[0]) % n
			b = b[1:]
			return v
		}
		m := NewPrefixMap(2000)
		for len(b) > 0 {
			l := &Learned{BlockSize: uint32(next(3))}
			var h ChunkHash
			for range next(8) {
				h = h*4 + ChunkHash(next(3)) + 1
				l.Chunks = append(l.Chunks, h)
			}
			for range next(10) {
				l.Blocks = append(l.Blocks, BlockHash(next(6)))
			}
			l.Bytes = uint32(ChunkSize*len(l.Chunks) + next(70))
			l.Tokens = uint32(len(l.Blocks))*l.BlockSize + uint32(next(3))
			m.Learn(l)
			m.Lookup(l.Chunks, nil)
			for _, c := range m.chunks {
				if c.blocks() > c.seg.end() {
					t.Fatalf("%d blocks deep, chain of %d", c.blocks(), c.seg.end())
				}
			}
		}
		checkPrefixMap(t, m)
	})
}

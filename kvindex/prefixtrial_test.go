package kvindex

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// toyTokens is a tokenizer of mixed density: letters in pieces of up to six with
// a leading space, digits and everything else one by one.
func toyTokens(dst []uint32, text string) []uint32 {
	for i := 0; i < len(text); {
		j := i + 1
		if letter(text[i]) || text[i] == ' ' && j < len(text) && letter(text[j]) {
			for j < len(text) && j < i+7 && letter(text[j]) {
				j++
			}
		}
		id := uint32(2166136261) // FNV-1a
		for _, c := range []byte(text[i:j]) {
			id = (id ^ uint32(c)) * 16777619
		}
		dst = append(dst, id|1<<8) // ids below 256 are special
		i = j
	}
	return dst
}

func letter(b byte) bool { return b >= 'a' && b <= 'z' }

// toyText is about n bytes in stretches of prose, digits and code.
func toyText(rng *rand.Rand, n int) string {
	var b bytes.Buffer
	for b.Len() < n {
		stretch := 50 + rng.IntN(400)
		kind := rng.IntN(4)
		for end := min(b.Len()+stretch, n); b.Len() < end; {
			switch kind {
			case 0:
				fmt.Fprintf(&b, "%d ", rng.IntN(1_000_000))
			case 1:
				fmt.Fprintf(&b, "%c(%c)=%d;\n", 'a'+rng.IntN(26), 'a'+rng.IntN(26), rng.IntN(10))
			default:
				for range 1 + rng.IntN(9) {
					b.WriteByte(byte('a' + rng.IntN(26)))
				}
				b.WriteByte(' ')
			}
		}
	}
	return b.String()
}

// toyChat is a conversation: the canonical text and the tokens that a chat
// template makes of it.
type toyChat struct {
	text   bytes.Buffer
	tokens []uint32
}

func (c *toyChat) say(role byte, content string) {
	c.text.WriteByte(role)
	c.text.WriteString(content)
	c.text.WriteByte(0)
	c.tokens = append(c.tokens, 1, uint32(role), 2)
	c.tokens = toyTokens(c.tokens, content)
	c.tokens = append(c.tokens, 3, 4)
}

// prompt is what an engine reports about the conversation so far, with the
// beginning of the answer as templates add it.
func (c *toyChat) prompt(blockSize int) *Learned {
	return c.learned(append(slices.Clip(c.tokens), 1, 'a', 2), blockSize)
}

func (c *toyChat) learned(tokens []uint32, blockSize int) *Learned {
	h := NewChunkHasher(1)
	_, _ = h.Write(c.text.Bytes())
	return &Learned{
		Seed: 1, Chunks: h.Chunks(), Bytes: uint32(c.text.Len()), Tokens: uint32(len(tokens)),
		BlockSize: uint32(blockSize), Blocks: AppendChain(nil, 1, tokens, blockSize),
	}
}

// trial is the outcome in tokens.
type trial struct{ prompts, total, cached, over, under int }

// run sends conversations over shared system prompts, several at a time, and
// compares what the map predicts with the blocks that really had been seen.
func (r *trial) run(t *testing.T, rng *rand.Rand, m *PrefixMap, blockSize, systems, chats int) {
	seen := map[BlockHash]bool{}
	learn := func(l *Learned) {
		m.Learn(l)
		for _, b := range l.Blocks {
			seen[b] = true
		}
	}
	shared := make([]string, systems)
	for i := range shared {
		shared[i] = toyText(rng, 4000+rng.IntN(12000))
	}
	start := func() *toyChat {
		c := &toyChat{}
		c.say('s', shared[rng.IntN(len(shared))])
		return c
	}
	running := make([]*toyChat, 8)
	var dst []BlockHash
	for range chats * 6 {
		i := rng.IntN(len(running))
		if running[i] == nil || rng.IntN(6) == 0 {
			running[i] = start()
		}
		c := running[i]
		c.say('u', toyText(rng, 20+rng.IntN(1500)))
		l := c.prompt(blockSize)
		known := m.Lookup(l.Chunks, dst)
		dst = known.Blocks
		r.count(t, l, known, seen)
		learn(l)
		// The reply: the text that the client will send back covers its tokens.
		c.say('a', toyText(rng, 20+rng.IntN(1000)))
		learn(c.learned(c.tokens[:len(c.tokens)-1], blockSize))
	}
}

func (r *trial) count(t *testing.T, l *Learned, known Known, seen map[BlockHash]bool) {
	t.Helper()
	right, truth := 0, 0
	for right < min(len(known.Blocks), len(l.Blocks)) && known.Blocks[right] == l.Blocks[right] {
		right++
	}
	for truth < len(l.Blocks) && seen[l.Blocks[truth]] {
		truth++
	}
	bs := int(l.BlockSize)
	r.prompts++
	r.total += int(l.Tokens)
	r.cached += truth * bs
	r.over += (len(known.Blocks) - right) * bs
	r.under += (truth - right) * bs
}

func (r *trial) points(n int) float64 { return 100 * float64(n) / float64(r.total) }

// Over-prediction sends requests to workers that do not hold their prompt,
// under-prediction away from those that do. The bounds are in percent of the
// prompts' tokens.
func TestPrefixMapPrediction(t *testing.T) {
	for _, test := range []struct {
		blockSize   int
		over, under float64
	}{
		{16, 0.2, 2},
		{64, 0.2, 2},
		{512, 0.5, 4},
	} {
		t.Run(fmt.Sprintf("blocks of %d", test.blockSize), func(t *testing.T) {
			var all trial
			for seed := range uint64(2) {
				m := NewPrefixMap(1 << 30)
				all.run(t, rand.New(rand.NewPCG(seed, 0)), m, test.blockSize, 20, 80)
				checkPrefixMap(t, m)
				t.Logf("seed %d: %+v", seed, m.Stats())
			}
			t.Logf("%d prompts, %d tokens each, %.1f %% seen before: over %.3f, under %.3f points", all.prompts,
				all.total/all.prompts, all.points(all.cached), all.points(all.over), all.points(all.under))
			if got := all.points(all.over); got > test.over {
				t.Errorf("over-prediction: got %.3f points, want at most %g", got, test.over)
			}
			if got := all.points(all.under); got > test.under {
				t.Errorf("under-prediction: got %.3f points, want at most %g", got, test.under)
			}
		})
	}
}

// checkPrefixMap holds the map against its invariants.
func checkPrefixMap(t *testing.T, m *PrefixMap) {
	t.Helper()
	refs := map[*segment]int{}
	bytes, leaves := 0, 0
	for hash, c := range m.chunks {
		bytes += chunkBytes
		if c.hash != hash {
			t.Fatalf("chunk %x is filed as %x", c.hash, hash)
		}
		if c.blocks() > c.seg.end() {
			t.Fatalf("chunk %x: %d blocks deep, chain of %d", hash, c.blocks(), c.seg.end())
		}
		if p := c.parent; p != nil && (m.chunks[p.hash] != p || p.tokens > c.tokens) {
			t.Fatalf("chunk %x: parent is gone, or %d tokens deep against %d", hash, p.tokens, c.tokens)
		}
		if (c.first == nil) != (c.leaf >= 0) {
			t.Fatalf("chunk %x: leaf %d, children %t", hash, c.leaf, c.first != nil)
		}
		if c.leaf >= 0 {
			leaves++
		}
		if c.seg != nil {
			refs[c.seg]++
		}
	}
	// Every segment holds the one above; visit each once.
	var todo []*segment
	for s := range refs {
		todo = append(todo, s)
	}
	visited := map[*segment]bool{}
	for len(todo) > 0 {
		s := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if visited[s] {
			continue
		}
		visited[s] = true
		bytes += s.size()
		if len(s.blocks) == 0 || s.start != s.parent.end() {
			t.Fatalf("segment of %d blocks at %d below %d", len(s.blocks), s.start, s.parent.end())
		}
		if s.parent != nil {
			refs[s.parent]++
			todo = append(todo, s.parent)
		}
	}
	for s := range visited {
		if s.refs != refs[s] {
			t.Fatalf("segment at %d: %d references, counted %d", s.start, s.refs, refs[s])
		}
	}
	if bytes != m.bytes || leaves != len(m.leaves) {
		t.Fatalf("bytes %d, counted %d; leaves %d, counted %d", m.bytes, bytes, len(m.leaves), leaves)
	}
}

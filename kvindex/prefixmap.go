package kvindex

import (
	"container/heap"
	"sort"
	"sync"
)

// PrefixMap remembers what engines made of prompt texts: for each chunk of
// text, how many tokens lie in the text up to its end and which blocks they
// fill. The zero value is not usable; see [NewPrefixMap]. It is safe for
// concurrent use.
//
// Invariants: a chunk is known only if all chunks before it are. The blocks of
// a chunk are the beginning of the chain of one learned prompt. Along a text
// the depth in tokens never falls.
//
// How a depth comes about. The end of a learned text is exact: so many bytes
// are so many tokens. Between two such points (the end of the known part and
// the end of the text) the chunks get a share in proportion to bytes, rounded
// down. That guess is corrected where two texts part, because the blocks they
// share are known exactly:
//
//   - No chunk that both texts share keeps more blocks than both prompts share.
//
//   - The last shared chunk gets exactly that many the first time texts part
//     there, and the least of each [window] partings after that. So what made
//     one depth too low (another chat template, a text that differs early in the
//     next chunk) is forgotten again.
//
//   - A text that ends within known chunks and agrees with them gives its last
//     chunk the depth that it would give a new one. So a text that engines now
//     tokenize differently is known again after it came twice.
//
// Apart from that a known depth does not rise: a longer text that only
// continues a known one says nothing exact about the middle.
type PrefixMap struct {
	mu     sync.Mutex
	chunks map[ChunkHash]*chunk
	leaves leafHeap
	path   []*chunk // scratch of Learn
	clock  uint64   // counts uses
	bytes  int
	limit  int
	stats  PrefixMapStats
}

// chunk is one known piece of text, with everything before it.
type chunk struct {
	hash   ChunkHash
	parent *chunk
	// first is the newest child; next and prev are siblings.
	first, next, prev *chunk
	// seg's path is the chain of the newest text through this chunk, at least as
	// long as tokens/blockSize. The chunk holds it.
	seg   *segment
	stamp uint64 // of the last use that ended here
	// tokens is the depth: what lies in the text up to this chunk's end.
	tokens    uint32
	blockSize uint32
	// low is the least number of blocks shared at the last seen partings.
	low  uint32
	leaf int32 // position in leaves; -1 with children
	// seen counts partings in this window.
	seen   uint8
	parted bool
}

// window is the number of partings after which a chunk's depth may rise to the
// least that these had in common. Larger is slower to forget a fall, smaller
// over-predicts more often.
const window = 16

// chunkBytes is the memory of a chunk with its place in the map.
// TestPrefixMapBytes compares it with the heap.
const chunkBytes = 104

// PrefixMapStats counts what a [PrefixMap] holds and has met.
type PrefixMapStats struct {
	// Chunks are known pieces of text, Texts the ends of different texts.
	Chunks, Texts int
	// Bytes is the memory in use, at most MaxBytes after every call.
	Bytes, MaxBytes int
	// Learned and Ignored count calls of Learn, Ignored those whose figures
	// contradict themselves or the block size known for that text.
	Learned, Ignored uint64
	// Lowered and Raised count chunks whose depth was corrected, Evicted those
	// that gave way to newer ones.
	Lowered, Raised, Evicted uint64
}

// Known is what a [PrefixMap] knows of a text.
type Known struct {
	// Chunks is the number of leading chunks known.
	Chunks int
	// Tokens lie in those chunks, rounded down.
	Tokens int
	// BlockSize is in tokens; 0 if no chunk is known.
	BlockSize int
	// Blocks are the hashes of the Tokens/BlockSize complete blocks.
	Blocks []BlockHash
}

// NewPrefixMap is an empty map that keeps to maxBytes of memory by forgetting
// the ends of the texts that were not used for the longest time.
func NewPrefixMap(maxBytes int) *PrefixMap {
	return &PrefixMap{chunks: map[ChunkHash]*chunk{}, limit: maxBytes}
}

// Lookup finds the longest known run of leading chunks. The blocks are written
// into dst from its beginning (dst may be nil, its content is lost). The time
// grows with the logarithm of the number of chunks and with the blocks copied.
func (m *PrefixMap) Lookup(chunks []ChunkHash, dst []BlockHash) Known {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := m.known(chunks)
	if n == 0 {
		return Known{Blocks: dst[:0]}
	}
	c := m.chunks[chunks[n-1]]
	m.touch(c)
	return Known{
		Chunks:    n,
		Tokens:    int(c.tokens),
		BlockSize: int(c.blockSize),
		Blocks:    c.seg.chain(c.blocks(), dst),
	}
}

// known counts the leading known chunks.
func (m *PrefixMap) known(chunks []ChunkHash) int {
	return sort.Search(len(chunks), func(i int) bool { return m.chunks[chunks[i]] == nil })
}

// blocks is the depth in complete blocks.
func (c *chunk) blocks() int { return int(c.tokens / c.blockSize) }

// Stats counts what the map holds and has met.
func (m *PrefixMap) Stats() PrefixMapStats {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.stats
	s.Chunks, s.Texts = len(m.chunks), len(m.leaves)
	s.Bytes, s.MaxBytes = m.bytes, m.limit
	return s
}

// touch notes a use that ended at c. The chunks before c need none: a chunk
// with children is never evicted, and inherits its last child's stamp.
func (m *PrefixMap) touch(c *chunk) {
	m.clock++
	c.stamp = m.clock
	if c.leaf >= 0 {
		heap.Fix(&m.leaves, int(c.leaf))
	}
}

// add makes a chunk below parent, which may be nil. It is a leaf until it has
// children; the caller pushes it if it stays one.
func (m *PrefixMap) add(hash ChunkHash, parent *chunk, tokens, blockSize uint32, seg *segment) *chunk {
	c := &chunk{hash: hash, parent: parent, tokens: tokens, blockSize: blockSize, seg: seg, leaf: -1}
	hold(seg)
	if parent != nil {
		c.next = parent.first
		if c.next != nil {
			c.next.prev = c
		}
		parent.first = c
		if parent.leaf >= 0 {
			heap.Remove(&m.leaves, int(parent.leaf))
		}
	}
	m.chunks[hash] = c
	m.bytes += chunkBytes
	return c
}

// evict forgets ends of texts, the longest unused first, until the budget holds.
func (m *PrefixMap) evict() {
	for m.bytes > m.limit && len(m.leaves) > 0 {
		c, _ := heap.Pop(&m.leaves).(*chunk)
		delete(m.chunks, c.hash)
		m.release(c.seg)
		m.bytes -= chunkBytes
		m.stats.Evicted++
		p := c.parent
		if p == nil {
			continue
		}
		if c.prev != nil {
			c.prev.next = c.next
		} else {
			p.first = c.next
		}
		if c.next != nil {
			c.next.prev = c.prev
		}
		p.stamp = max(p.stamp, c.stamp)
		if p.first == nil {
			heap.Push(&m.leaves, p)
		}
	}
}

// leafHeap orders the chunks without children by their last use.
type leafHeap []*chunk

// Len is for container/heap, as are the other methods.
func (h leafHeap) Len() int { return len(h) }

// Less puts the longest unused first.
func (h leafHeap) Less(i, j int) bool { return h[i].stamp < h[j].stamp }

// Swap keeps the positions that the chunks know.
func (h leafHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].leaf, h[j].leaf = int32(i), int32(j)
}

// Push adds a chunk.
func (h *leafHeap) Push(x any) {
	c, _ := x.(*chunk)
	c.leaf = int32(len(*h))
	*h = append(*h, c)
}

// Pop takes the last chunk.
func (h *leafHeap) Pop() any {
	last := len(*h) - 1
	c := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	c.leaf = -1
	return c
}

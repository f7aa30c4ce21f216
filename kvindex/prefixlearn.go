package kvindex

import (
	"container/heap"
	"math"
)

// Learn takes what an engine reported about a text. Figures that contradict
// themselves are ignored and counted, and so is another block size than the one
// known for the text. Nothing in l is kept.
func (m *PrefixMap) Learn(l *Learned) {
	m.mu.Lock()
	defer m.mu.Unlock()
	k := m.known(l.Chunks)
	if !l.sensible() || k > 0 && m.chunks[l.Chunks[0]].blockSize != l.BlockSize {
		m.stats.Ignored++
		return
	}
	m.stats.Learned++
	if len(l.Chunks) == 0 {
		return
	}
	known := m.walk(l.Chunks[:k])
	seg := m.correct(l, known)
	m.append(l, known, seg)
	m.release(seg)
	clear(m.path) // evicted chunks must not live on in it
	m.evict()
}

// sensible reports whether the lengths in l fit together.
func (l *Learned) sensible() bool {
	whole := uint64(len(l.Chunks)) * ChunkSize
	return l.BlockSize > 0 &&
		uint64(l.Bytes) >= whole && uint64(l.Bytes) < whole+ChunkSize &&
		uint64(len(l.Blocks)) == uint64(l.Tokens/l.BlockSize)
}

// walk fills m.path with the given chunks, all of them known.
func (m *PrefixMap) walk(chunks []ChunkHash) []*chunk {
	m.path = m.path[:0]
	for _, h := range chunks {
		m.path = append(m.path, m.chunks[h])
	}
	return m.path
}

// correct compares l's blocks with what is known of its leading chunks, corrects
// their depths and returns the chain for the new ones, held for the caller.
func (m *PrefixMap) correct(l *Learned, path []*chunk) *segment {
	if len(path) == 0 {
		seg := m.chainOf(l, nil, 0)
		hold(seg)
		return seg
	}
	last := path[len(path)-1]
	length := last.seg.end()
	shared := last.seg.agree(l.Blocks)
	m.lower(path, l, shared)
	seg := last.seg
	if shared < len(l.Blocks) || len(path) < len(l.Chunks) {
		seg = m.chainOf(l, seg, shared)
	}
	hold(seg)
	if shared < len(l.Blocks) {
		for _, c := range path {
			m.point(c, seg)
		}
	}
	whole := len(path) == len(l.Chunks)
	switch {
	case !whole && shared < length && shared < len(l.Blocks):
		m.part(last, shared)
	case whole && shared == len(l.Blocks):
		// The same text again, or the beginning of a known one: its end is exact.
		m.part(last, int(l.depth(len(path)-1, path[:len(path)-1])/l.BlockSize))
	}
	return seg
}

// chainOf is the segment for all of l's blocks, of which the first shared are
// those of near.
func (m *PrefixMap) chainOf(l *Learned, near *segment, shared int) *segment {
	s := m.cut(near, shared)
	if shared == len(l.Blocks) {
		return s
	}
	return m.extend(s, l.Blocks[shared:])
}

// point makes c hold seg instead of what it held.
func (m *PrefixMap) point(c *chunk, seg *segment) {
	hold(seg)
	m.release(c.seg)
	c.seg = seg
}

// lower takes from the chunks what l shows not to lie in them: blocks that l's
// prompt does not share.
func (m *PrefixMap) lower(path []*chunk, l *Learned, shared int) {
	ceiling := l.Tokens
	if path[len(path)-1].blocks() > shared {
		ceiling = uint32(shared) * l.BlockSize
	}
	for i := len(path) - 1; i >= 0 && path[i].tokens > ceiling; i-- {
		path[i].tokens = ceiling
		m.stats.Lowered++
	}
}

// part notes that texts through c have so many blocks in common with the one
// before, and raises c's depth where that is exact; see [PrefixMap].
func (m *PrefixMap) part(c *chunk, shared int) {
	if c.seen == 0 {
		c.low = math.MaxUint32
	}
	c.low = min(c.low, uint32(shared))
	c.seen++
	if c.parted && c.seen < window {
		return
	}
	c.parted = true
	tokens := c.low * c.blockSize
	if c.seen == window {
		c.seen = 0
	}
	if tokens > c.tokens {
		m.raise(c, tokens, c.seg)
	}
}

// raise sets the depth of c and of all chunks below it that have less. Those
// whose own chain does not have the blocks get the beginning of seg's: what
// engines say now is newer.
func (m *PrefixMap) raise(c *chunk, tokens uint32, seg *segment) {
	c.tokens = tokens
	m.stats.Raised++
	if n := c.blocks(); !c.seg.has(n, seg) {
		m.point(c, m.cut(seg, n))
	}
	for d := c.first; d != nil; d = d.next {
		if d.tokens < tokens {
			m.raise(d, tokens, seg)
		}
	}
}

// depth is the number of tokens up to the end of l's chunk i, in proportion to
// bytes between the end of the known chunks and the end of the text, rounded
// down.
func (l *Learned) depth(i int, known []*chunk) uint32 {
	var from uint64
	if n := len(known); n > 0 {
		from = uint64(known[n-1].tokens)
	}
	start := uint64(len(known)) * ChunkSize
	bytes := uint64(i+1)*ChunkSize - start
	return uint32(from + (uint64(l.Tokens)-from)*bytes/(uint64(l.Bytes)-start))
}

// append adds l's unknown chunks and notes the use.
func (m *PrefixMap) append(l *Learned, known []*chunk, seg *segment) {
	var last *chunk
	if n := len(known); n > 0 {
		last = known[n-1]
	}
	for i := len(known); i < len(l.Chunks); i++ {
		last = m.add(l.Chunks[i], last, l.depth(i, known), l.BlockSize, seg)
	}
	if last.first == nil && last.leaf < 0 {
		heap.Push(&m.leaves, last)
	}
	m.touch(last)
}

package kvindex

import "slices"

// segment is a run of consecutive blocks of prompts that share everything up
// to its end. The segments form a tree; the path from the top down to a segment
// is the beginning of the chain of at least one learned prompt. A nil segment
// is the empty chain.
type segment struct {
	parent *segment
	start  int         // blocks on the path above
	blocks []BlockHash // never empty
	refs   int         // chunks and segments that point here
}

// segmentBytes is the memory of a segment without its blocks.
const segmentBytes = 64

func (s *segment) size() int { return segmentBytes + 8*len(s.blocks) }

// end is the number of blocks from the top to the end of s.
func (s *segment) end() int {
	if s == nil {
		return 0
	}
	return s.start + len(s.blocks)
}

// has reports whether the first n blocks of both chains are the same. A block's
// hash covers all before it, so one comparison decides.
func (s *segment) has(n int, other *segment) bool {
	return n == 0 || n <= s.end() && n <= other.end() && s.at(n-1) == other.at(n-1)
}

// at is block i of the chain, which must be in it.
func (s *segment) at(i int) BlockHash {
	for i < s.start {
		s = s.parent
	}
	return s.blocks[i-s.start]
}

// agree counts the leading blocks that the chain of s and the given one share.
func (s *segment) agree(chain []BlockHash) int {
	for ; s != nil; s = s.parent {
		if s.start >= len(chain) || s.blocks[0] != chain[s.start] {
			continue
		}
		n := min(len(s.blocks), len(chain)-s.start)
		for i := 1; i < n; i++ {
			if s.blocks[i] != chain[s.start+i] {
				return s.start + i
			}
		}
		return s.start + n
	}
	return 0
}

// chain writes the first n blocks into dst, from its beginning.
func (s *segment) chain(n int, dst []BlockHash) []BlockHash {
	dst = slices.Grow(dst[:0], n)[:n]
	for ; s != nil; s = s.parent {
		if s.start < n {
			copy(dst[s.start:], s.blocks)
		}
	}
	return dst
}

// cut returns the segment on the path of s that ends after n blocks, dividing
// one if need be: s stays the lower part, so what points to it keeps its chain.
func (m *PrefixMap) cut(s *segment, n int) *segment {
	for s != nil && s.start >= n {
		s = s.parent
	}
	if s == nil || s.end() == n {
		return s
	}
	k := n - s.start
	upper := &segment{parent: s.parent, start: s.start, blocks: slices.Clone(s.blocks[:k]), refs: 1}
	s.parent, s.start, s.blocks = upper, n, slices.Clone(s.blocks[k:])
	m.bytes += segmentBytes
	return upper
}

// extend hangs blocks below s. The caller holds the result.
func (m *PrefixMap) extend(s *segment, blocks []BlockHash) *segment {
	hold(s)
	below := &segment{parent: s, start: s.end(), blocks: slices.Clone(blocks)}
	m.bytes += below.size()
	return below
}

func hold(s *segment) {
	if s != nil {
		s.refs++
	}
}

// release gives one reference up and frees what nothing points to any more.
func (m *PrefixMap) release(s *segment) {
	for s != nil {
		s.refs--
		if s.refs > 0 {
			return
		}
		m.bytes -= s.size()
		s = s.parent
	}
}

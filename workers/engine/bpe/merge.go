package bpe

// merge appends the ids of one pre-token to dst: the adjacent pair that was
// learned first is merged first, the leftmost of equals first, until no pair is
// in the vocabulary.
func (t *Tokenizer) merge(dst []uint32, text string) []uint32 {
	start := len(dst)
	for i := range len(text) {
		dst = append(dst, uint32(text[i]))
	}
	if len(text) >= heapFrom {
		return dst[:start+t.mergeHeap(dst[start:])]
	}
	return dst[:start+t.mergeScan(dst[start:])]
}

// mergeScan merges ids in place by looking for the best pair again after each
// merge, and returns how many remain.
func (t *Tokenizer) mergeScan(ids []uint32) int {
	for {
		best, at := uint32(len(t.tokens)), -1
		for i := 0; i+1 < len(ids); i++ {
			if id, ok := t.pairs[pair(ids[i], ids[i+1])]; ok && id < best {
				best, at = id, i
			}
		}
		if at < 0 {
			return len(ids)
		}
		ids[at] = best
		ids = append(ids[:at+1], ids[at+2:]...)
	}
}

// gone marks a symbol that was merged into the one before it. It is no token.
const gone = ^uint32(0)

// mergeHeap does what mergeScan does in n log n. A possible merge is queued as
// the id it makes and the place of its left symbol; when its turn comes it is
// stale unless the symbols there still make that id. Pre-tokens are shorter
// than 4 GiB.
func (t *Tokenizer) mergeHeap(ids []uint32) int {
	next, prev := make([]int, len(ids)), make([]int, len(ids))
	for i := range ids {
		next[i], prev[i] = i+1, i-1
	}
	makes := func(left int) (uint32, bool) {
		if left < 0 || next[left] >= len(ids) {
			return 0, false
		}
		id, ok := t.pairs[pair(ids[left], ids[next[left]])]
		return id, ok
	}
	var todo minHeap
	offer := func(left int) {
		if id, ok := makes(left); ok {
			todo.push(uint64(id)<<32 | uint64(left))
		}
	}
	for i := range ids {
		offer(i)
	}
	for len(todo) > 0 {
		top := todo.pop()
		left := int(top & (1<<32 - 1))
		id, ok := makes(left)
		if !ok || uint64(id) != top>>32 {
			continue
		}
		right := next[left]
		ids[left], ids[right] = id, gone
		next[left] = next[right]
		if next[left] < len(ids) {
			prev[next[left]] = left
		}
		offer(prev[left])
		offer(left)
	}
	n := 0
	for _, id := range ids {
		if id != gone {
			ids[n] = id
			n++
		}
	}
	return n
}

// minHeap is a binary heap, the smallest first.
type minHeap []uint64

func (h *minHeap) push(v uint64) {
	s := append(*h, v)
	*h = s
	for i := len(s) - 1; i > 0; {
		up := (i - 1) / 2
		if s[up] <= s[i] {
			return
		}
		s[up], s[i] = s[i], s[up]
		i = up
	}
}

func (h *minHeap) pop() uint64 {
	s := *h
	top, last := s[0], len(s)-1
	s[0] = s[last]
	s = s[:last]
	*h = s
	for i := 0; 2*i+1 < len(s); {
		down := 2*i + 1
		if down+1 < len(s) && s[down+1] < s[down] {
			down++
		}
		if s[i] <= s[down] {
			break
		}
		s[i], s[down] = s[down], s[i]
		i = down
	}
	return top
}

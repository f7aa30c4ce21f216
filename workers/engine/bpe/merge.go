package bpe

import "container/heap"

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

// candidate is a possible merge of the symbols at left and right to id. It is
// stale once one of the two has changed.
type candidate struct {
	id          uint32
	left, right int
	// was are the two symbols when the candidate was found.
	was uint64
}

type candidates []candidate

func (c candidates) Len() int      { return len(c) }
func (c candidates) Swap(i, j int) { c[i], c[j] = c[j], c[i] }
func (c candidates) Less(i, j int) bool {
	if c[i].id != c[j].id {
		return c[i].id < c[j].id
	}
	return c[i].left < c[j].left
}

// Push and Pop implement heap.Interface.
func (c *candidates) Push(x any) { *c = append(*c, x.(candidate)) }

func (c *candidates) Pop() any {
	last := len(*c) - 1
	x := (*c)[last]
	*c = (*c)[:last]
	return x
}

// gone marks a symbol that was merged into the one before it.
const gone = ^uint32(0)

// mergeHeap does what mergeScan does in n log n.
func (t *Tokenizer) mergeHeap(ids []uint32) int {
	next, prev := make([]int, len(ids)), make([]int, len(ids))
	for i := range ids {
		next[i], prev[i] = i+1, i-1
	}
	var todo candidates
	offer := func(left, right int) {
		if left < 0 || right >= len(ids) {
			return
		}
		was := pair(ids[left], ids[right])
		if id, ok := t.pairs[was]; ok {
			heap.Push(&todo, candidate{id: id, left: left, right: right, was: was})
		}
	}
	for i := range ids {
		offer(i, i+1)
	}
	for len(todo) > 0 {
		c := heap.Pop(&todo).(candidate)
		if next[c.left] != c.right || pair(ids[c.left], ids[c.right]) != c.was {
			continue
		}
		ids[c.left], ids[c.right] = c.id, gone
		next[c.left] = next[c.right]
		if next[c.left] < len(ids) {
			prev[next[c.left]] = c.left
		}
		offer(prev[c.left], c.left)
		offer(c.left, next[c.left])
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

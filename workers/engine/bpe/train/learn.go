package main

import (
	"cmp"
	"container/heap"
	"maps"
	"slices"
)

// word is one distinct pre-token as its current symbols.
type word struct {
	symbols []string
	count   int
}

// pair is two adjacent symbols.
type pair struct{ left, right string }

// entry is a pair with the count it had when it was queued.
type entry struct {
	pair

	count int
}

// queue gives the most frequent pair first, ties in byte order of the pair.
//
//nolint:recvcheck // container/heap wants Push and Pop on the pointer, the rest on the slice
type queue []entry

func (q queue) Len() int      { return len(q) }
func (q queue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q queue) Less(i, j int) bool {
	a, b := q[i], q[j]
	return cmp.Or(cmp.Compare(b.count, a.count), cmp.Compare(a.left, b.left), cmp.Compare(a.right, b.right)) < 0
}

// Push implements heap.Interface.
func (q *queue) Push(x any) {
	*q = append(*q, x.(entry)) //nolint:forcetypeassert // only entries are pushed
}

// Pop implements heap.Interface.
func (q *queue) Pop() any {
	last := len(*q) - 1
	x := (*q)[last]
	*q = (*q)[:last]
	return x
}

// trainer counts pairs incrementally: a merge touches only the words that
// contain it.
type trainer struct {
	words []word
	count map[pair]int
	// in are indices of the words that contain or once contained a pair.
	in    map[pair]map[int]struct{}
	queue queue
}

// learn returns at most n merges, the most frequent pair of all pre-tokens
// first each time, ties by byte order. A pair whose text is already a token is
// never merged, so that every token has one id.
func learn(counts map[string]int, n int) [][2]string {
	t := &trainer{count: make(map[pair]int), in: make(map[pair]map[int]struct{})}
	for _, text := range slices.Sorted(maps.Keys(counts)) {
		w := word{count: counts[text]}
		for i := range len(text) {
			w.symbols = append(w.symbols, text[i:i+1])
		}
		t.words = append(t.words, w)
		t.adjust(len(t.words)-1, 1)
	}
	for p, c := range t.count {
		t.queue = append(t.queue, entry{pair: p, count: c})
	}
	heap.Init(&t.queue)
	var merges [][2]string
	known := make(map[string]bool)
	for len(merges) < n && len(t.queue) > 0 {
		e := heap.Pop(&t.queue).(entry) //nolint:forcetypeassert // only entries are pushed
		switch c := t.count[e.pair]; {
		case c <= 0 || known[e.left+e.right]:
			continue
		case c < e.count:
			heap.Push(&t.queue, entry{pair: e.pair, count: c})
			continue
		}
		known[e.left+e.right] = true
		merges = append(merges, [2]string{e.left, e.right})
		t.apply(e.pair)
	}
	return merges
}

// adjust adds sign times the pairs of word i to the counts.
func (t *trainer) adjust(i, sign int) {
	w := t.words[i]
	for j := 0; j+1 < len(w.symbols); j++ {
		p := pair{w.symbols[j], w.symbols[j+1]}
		t.count[p] += sign * w.count
		if sign < 0 {
			continue
		}
		if t.in[p] == nil {
			t.in[p] = make(map[int]struct{})
		}
		t.in[p][i] = struct{}{}
	}
}

// apply merges p in every word that has it and queues the pairs that became
// more frequent.
func (t *trainer) apply(p pair) {
	grown := make(map[pair]struct{})
	for i := range t.in[p] {
		t.adjust(i, -1)
		t.words[i].symbols = join(t.words[i].symbols, p)
		t.adjust(i, 1)
		s := t.words[i].symbols
		for j := 0; j+1 < len(s); j++ {
			if s[j] == p.left+p.right || s[j+1] == p.left+p.right {
				grown[pair{s[j], s[j+1]}] = struct{}{}
			}
		}
	}
	for g := range grown {
		heap.Push(&t.queue, entry{pair: g, count: t.count[g]})
	}
	delete(t.in, p)
	delete(t.count, p)
}

// join replaces each p in symbols, from the left, by one symbol.
func join(symbols []string, p pair) []string {
	out := symbols[:0]
	for i := 0; i < len(symbols); i++ {
		if i+1 < len(symbols) && symbols[i] == p.left && symbols[i+1] == p.right {
			out = append(out, p.left+p.right)
			i++
			continue
		}
		out = append(out, symbols[i])
	}
	return out
}

package kvindex

import (
	"slices"
	"sync/atomic"
)

// step is a run on a query's path: the chain's block number first is at place at
// of the run, and the run has the chain's blocks up to number end-1.
type step struct {
	run        *[8]uint64
	at         uint32
	first, end uint32
}

// pathSteps are looked up before they are counted; a longer path goes on in
// parts of so many.
const pathSteps = 16

// query is one call of Overlap.
type query struct {
	view
	chain  []BlockHash
	slots  slotPages
	reader *reader
	number uint64 // of the query, in the upper half
	base   int    // of its matches in dst
	path   [pathSteps]step
}

// Overlap appends to dst what each worker's rank holds of the chain's beginning,
// for those that hold the first block in any tier, in no particular order. The
// chain is what [AppendChain] makes: each block the parent of the next.
//
// It takes no lock, waits for nobody, and allocates nothing if dst has room. A
// record that is applied meanwhile may count or not, or count in part.
func (x *Index) Overlap(chain []BlockHash, dst []Match) []Match {
	if len(chain) == 0 {
		return dst
	}
	r := x.readers.enter()
	defer r.leave()
	q := query{view: view{x: x}, chain: chain, reader: r, base: len(dst)}
	list := x.arena.list.Load()
	if list == nil {
		return dst
	}
	q.mem = *list
	steps, done := q.walk(0)
	if steps == 0 {
		return dst
	}
	q.slots = *x.seats.list.Load()
	q.number = r.begin(int(x.seats.count.Load()))
	slower := x.seats.slower.Load()
	for first := true; ; first = false {
		for i := range steps {
			switch s := &q.path[i]; {
			case slower:
				dst = q.countTiers(s, dst, first && i == 0)
			case first && i == 0:
				dst = q.open(s, dst)
			default:
				q.extend(s, dst)
			}
		}
		if done {
			return dst
		}
		if steps, done = q.walk(int(q.path[steps-1].end)); steps == 0 {
			return dst
		}
	}
}

// walk finds the runs of the chain from its n-th block on. done says that the
// path has no more than that.
func (q *query) walk(n int) (steps int, done bool) {
	round := q.x.round.Load()
	for steps < pathSteps {
		if n == len(q.chain) {
			return steps, true
		}
		a := q.find(q.chain[n])
		if a == 0 {
			return steps, true
		}
		p := q.place(a)
		r := q.line(p.run)
		length := runState(atomic.LoadUint64(&r[wordState])).length()
		if p.at >= length { // being stored or removed
			return steps, true
		}
		if atomic.LoadUint64(&r[wordRound]) != round {
			atomic.StoreUint64(&r[wordRound], round)
		}
		end := n + int(q.span(r, length, p.at, q.chain[n:]))
		q.path[steps] = step{run: r, at: p.at, first: uint32(n), end: uint32(end)}
		steps++
		n = end
	}
	return steps, false
}

// info is what a slot stands for, nil if its holdings are void.
func (q *query) info(slot uint32) *slotInfo {
	if int(slot/slotPage) >= len(q.slots) {
		q.slots = *q.x.seats.list.Load()
	}
	i := &q.slots[slot/slotPage][slot%slotPage]
	if i.dead.Load() {
		return nil
	}
	return i
}

// found is where a seat's match is noted. The list may be too short for a seat
// that is new since the query began.
func (q *query) found(seat uint32) *uint64 {
	if int(seat) >= len(q.reader.found) {
		q.reader.found = append(q.reader.found, make([]uint64, int(seat)-len(q.reader.found)+64)...)
	}
	return &q.reader.found[seat]
}

// match is the seat's match, nil if it has none yet.
func (q *query) match(dst []Match, seat uint32) *Match {
	if f := *q.found(seat); f>>32 == q.number>>32 {
		return &dst[q.base+int(uint32(f))]
	}
	return nil
}

// add begins a match for a seat that has none.
func (q *query) add(dst []Match, i *slotInfo) []Match {
	*q.found(i.seat) = q.number | uint64(len(dst)-q.base)
	return append(dst, Match{Worker: i.worker, Rank: i.rank, Seat: i.seat})
}

// open begins the matches with those who hold the first block.
func (q *query) open(s *step, dst []Match) []Match {
	words, _ := q.holders(s.run)
	dst = slices.Grow(dst, len(words))
	last := s.at + s.end - s.first
	for i := range words {
		h := holding(atomic.LoadUint64(&words[i]))
		if h.from() > s.at || h.to() <= s.at {
			continue
		}
		info := q.info(h.slot())
		if info == nil || q.match(dst, info.seat) != nil {
			continue
		}
		dst = q.add(dst, info)
		d := min(h.to(), last) - s.at
		dst[len(dst)-1].Depth = [NumTiers]uint32{d, d, d, d}
	}
	return dst
}

// extend deepens the matches that reached this step's beginning.
func (q *query) extend(s *step, dst []Match) {
	words, _ := q.holders(s.run)
	last := s.at + s.end - s.first
	for i := range words {
		h := holding(atomic.LoadUint64(&words[i]))
		if h.from() > s.at || h.to() <= s.at {
			continue
		}
		info := q.info(h.slot())
		if info == nil {
			continue
		}
		if m := q.match(dst, info.seat); m != nil && m.Depth[0] == s.first {
			d := s.first + min(h.to(), last) - s.at
			m.Depth = [NumTiers]uint32{d, d, d, d}
		}
	}
}

// countTiers does the same with tiers. Holdings are in order of their first
// block, so each one either goes on where a faster tier's or an earlier one
// ended, or never will.
func (q *query) countTiers(s *step, dst []Match, open bool) []Match {
	words, _ := q.holders(s.run)
	last := s.at + s.end - s.first
	for i := range words {
		h := holding(atomic.LoadUint64(&words[i]))
		from, to := max(h.from(), s.at), min(h.to(), last)
		if from >= to {
			continue
		}
		info := q.info(h.slot())
		if info == nil {
			continue
		}
		m := q.match(dst, info.seat)
		if m == nil {
			if !open || from > s.at {
				continue
			}
			dst = q.add(dst, info)
			m = &dst[len(dst)-1]
		}
		from, to = s.first+from-s.at, s.first+to-s.at
		for t := info.tier; t < NumTiers; t++ {
			if from <= m.Depth[t] && m.Depth[t] < to {
				m.Depth[t] = to
			}
		}
	}
	return dst
}

package kvindex

import (
	"slices"
	"sync/atomic"
)

// step is a run on a query's path: the chain's block number first is at place at
// of the run, and the run has the chain's blocks up to number end-1.
type step struct {
	run, at, first, end uint32
}

// pathSteps are looked up before they are counted; a longer path goes on in
// parts of so many.
const pathSteps = 17

// query is one call of Overlap.
type query struct {
	view
	chain  []BlockHash
	slots  []slotInfo
	reader *reader
	base   int    // of its matches in dst
	number uint64 // of the query in reader.found, in the upper half; 0: not in use
}

// Overlap appends to dst what each worker's rank holds of the chain's beginning,
// for those that hold the first block in any tier, in no particular order. The
// chain is what [AppendChain] makes of a prompt from its start: each block is the
// parent of the next, and the first one's parent is no block.
//
// It takes no lock, waits for nobody, and allocates nothing if dst has room. A
// record that is applied meanwhile may count or not, or count in part.
func (x *Index) Overlap(chain []BlockHash, dst []Match) []Match {
	base := len(dst)
	return x.groups.trim(chain, x.prefixes(chain, dst), base)
}

// prefixes is Overlap by group 0 alone.
func (x *Index) prefixes(chain []BlockHash, dst []Match) []Match {
	if len(chain) == 0 || !x.heads.may(chain[0]) {
		return dst
	}
	r := x.readers.enter()
	dst = x.overlap(r, chain, dst)
	r.leave()
	return dst
}

func (x *Index) overlap(r *reader, chain []BlockHash, dst []Match) []Match {
	list := x.arena.list.Load()
	if list == nil {
		return dst
	}
	q := query{view: view{x: x, mem: *list}, chain: chain, reader: r, base: len(dst)}
	head := q.head(chain[0])
	if head == 0 {
		return dst
	}
	steps, done := q.walk(0, place{run: head})
	if steps == 0 {
		return dst
	}
	q.slots = x.seats.all()
	if x.seats.slower.Load() {
		return q.tiers(steps, done, dst)
	}
	if dst = q.flat(steps, done, dst); x.seats.slower.Load() { // some may have been of a slower tier
		return x.overlap(r, chain, dst[:q.base])
	}
	return dst
}

// flat does all of it where there is one tier.
func (q *query) flat(steps int, done bool, dst []Match) []Match {
	dst = q.open(&q.reader.path[0], dst)
	for i := 1; ; i = 0 {
		for ; i < steps; i++ {
			q.extend(&q.reader.path[i], dst)
		}
		if done {
			return dst
		}
		if steps, done = q.onward(steps); steps == 0 {
			return dst
		}
	}
}

// onward walks on from the last step.
func (q *query) onward(steps int) (int, bool) {
	n := q.reader.path[steps-1].end
	a := q.find(q.chain[n])
	if a == 0 {
		return 0, true
	}
	return q.walk(n, q.place(a))
}

// walk finds the runs of the chain from its n-th block on, which is at p. done
// says that the path ends there.
func (q *query) walk(n uint32, p place) (steps int, done bool) {
	round := q.x.round.Load()
	for {
		r := q.line(p.run)
		state := runState(atomic.LoadUint64(&r[wordState]))
		length := state.length()
		if p.at >= length { // being stored or removed
			return steps, true
		}
		if atomic.LoadUint64(&r[wordRound]) != round {
			atomic.StoreUint64(&r[wordRound], round)
		}
		end := n + q.span(p.run, r, length, p.at, q.chain[n:])
		q.reader.path[steps] = step{run: p.run, at: p.at, first: n, end: end}
		steps++
		if n = end; n == uint32(len(q.chain)) || state&runParent == 0 && !q.x.loose.Load() {
			return steps, true
		}
		if steps == pathSteps {
			return steps, false
		}
		a := q.find(q.chain[n])
		if a == 0 {
			return steps, true
		}
		p = q.place(a)
	}
}

// info is what a slot stands for, nil if its holdings are void.
func (q *query) info(slot uint32) *slotInfo {
	if int(slot) >= len(q.slots) {
		q.slots = q.x.seats.all()
	}
	i := &q.slots[slot]
	if i.isDead() {
		return nil
	}
	return i
}

// open begins the matches with those who hold the first block.
func (q *query) open(s *step, dst []Match) []Match {
	r := q.line(s.run)
	words, version := q.holders(r)
	n := len(dst)
	dst = slices.Grow(dst, len(words))[:n+len(words)]
	last := s.at + s.end - s.first
	slots, moved := q.slots, false
	for i := range words {
		h := holding(atomic.LoadUint64(&words[i]))
		if h.from() > s.at || h.to() <= s.at {
			continue
		}
		if int(h.slot()) >= len(slots) {
			slots, moved = q.x.seats.all(), true
		}
		info := &slots[h.slot()]
		if info.isDead() {
			continue
		}
		m := &dst[n]
		n++
		d := min(h.to(), last) - s.at
		m.Worker, m.Rank, m.Seat = info.worker, info.rank, info.seat
		m.Depth = [NumTiers]uint32{d, d, d, d}
	}
	dst = dst[:n]
	if moved || atomic.LoadUint64(&r[wordList]) != version {
		dst = q.unique(dst)
	}
	return dst
}

// unique takes out matches of a seat that has one already: it was met in two
// places of a list that changed meanwhile, or with two slots, of which the old list
// of slots does not know that one is void.
func (q *query) unique(dst []Match) []Match {
	q.number = q.reader.begin(int(q.x.seats.count.Load()))
	kept := dst[:q.base]
	for _, m := range dst[q.base:] {
		if f := q.found(m.Seat); *f>>32 != q.number>>32 {
			*f = q.number | uint64(len(kept)-q.base)
			kept = append(kept, m)
		}
	}
	return kept
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

// note makes match work for all matches so far.
func (q *query) note(dst []Match) {
	if q.number != 0 {
		return
	}
	q.number = q.reader.begin(int(q.x.seats.count.Load()))
	for i := range dst[q.base:] {
		*q.found(dst[q.base+i].Seat) = q.number | uint64(i)
	}
}

// fewHolders is up to how many holders of a run are looked for among the matches
// one by one.
const fewHolders = 2

// extend deepens the matches that reached this step's beginning.
func (q *query) extend(s *step, dst []Match) {
	words, _ := q.holders(q.line(s.run))
	if len(words) > fewHolders {
		q.note(dst)
	}
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
		var m *Match
		if q.number != 0 {
			m = q.match(dst, info.seat)
		} else {
			m = seek(dst[q.base:], info.seat)
		}
		if m != nil && m.Depth[0] == s.first {
			d := s.first + min(h.to(), last) - s.at
			m.Depth = [NumTiers]uint32{d, d, d, d}
		}
	}
}

func seek(list []Match, seat uint32) *Match {
	for i := range list {
		if list[i].Seat == seat {
			return &list[i]
		}
	}
	return nil
}

// tiers does all of it where there are slower tiers.
func (q *query) tiers(steps int, done bool, dst []Match) []Match {
	q.number = q.reader.begin(int(q.x.seats.count.Load()))
	for open := true; ; open = false {
		for i := range steps {
			dst = q.countTiers(&q.reader.path[i], dst, open && i == 0)
		}
		if done {
			return dst
		}
		if steps, done = q.onward(steps); steps == 0 {
			return dst
		}
	}
}

// countTiers counts one step. Holdings are in order of their first block, so each
// one either goes on where a faster tier's or an earlier one ended, or never will.
func (q *query) countTiers(s *step, dst []Match, open bool) []Match {
	words, _ := q.holders(q.line(s.run))
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
			*q.found(info.seat) = q.number | uint64(len(dst)-q.base)
			dst = append(dst, Match{Worker: info.worker, Rank: info.rank, Seat: info.seat})
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

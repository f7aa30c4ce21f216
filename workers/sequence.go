package workers

import (
	"slices"

	"github.com/zeebo/xxh3"
)

// rememberedBatches is how many of the last batches a sequence can recognise
// when they come again. vLLM's replay ring holds 10,000 by default.
const rememberedBatches = 16384

// batch is one message of an engine's event stream: its number and its payload
// as it was on the wire.
type batch struct {
	seq     uint64
	payload []byte
}

// verdict is what to do with a batch from the live socket.
type verdict uint8

const (
	// verdictApply: it follows the last one.
	verdictApply verdict = iota
	// verdictRepeat: it was applied before; nothing changes.
	verdictRepeat
	// verdictLate: it is out of a range that was given up; applying it now would
	// put old news over newer.
	verdictLate
	// verdictGap: batches before it are missing; ask the replay socket.
	verdictGap
	// verdictNewLife: the number fell back with another payload: the engine is a
	// new process with an empty cache.
	verdictNewLife
)

// sequence follows the numbers of one event stream (one data-parallel rank).
// It decides, the caller acts. The zero value is a stream of which nothing was
// seen yet.
//
// Invariant: next is one more than the newest number that was applied or given
// up, and sums holds the payload hash of the last applied numbers.
type sequence struct {
	next  uint64
	sums  map[uint64]uint64
	order []uint64 // numbers in sums, oldest first
	// Numbers in [lostFrom, lostTo) were given up last; one of them may still come.
	lostFrom, lostTo uint64
}

// see judges a live batch. After verdictApply and verdictNewLife with number 0
// the caller applies it; [sequence.applied] is called for each batch applied.
func (s *sequence) see(b batch) verdict {
	switch {
	case b.seq == s.next:
		return verdictApply
	case b.seq > s.next:
		return verdictGap
	}
	sum, seen := s.sums[b.seq]
	switch {
	case seen && sum == xxh3.Hash(b.payload):
		return verdictRepeat
	case !seen && b.seq != 0 && b.seq >= s.lostFrom && b.seq < s.lostTo:
		return verdictLate
	}
	return verdictNewLife
}

// applied notes that a batch was applied; it is the newest now.
func (s *sequence) applied(b batch) {
	if s.sums == nil {
		s.sums = make(map[uint64]uint64)
	}
	if len(s.order) >= rememberedBatches {
		oldest := s.order[0]
		s.order = s.order[1:]
		delete(s.sums, oldest)
	}
	s.sums[b.seq] = xxh3.Hash(b.payload)
	s.order = append(s.order, b.seq)
	s.next = b.seq + 1
}

// restart forgets everything: the next number expected is 0.
func (s *sequence) restart() { *s = sequence{} }

// askFrom is the first number to ask the replay socket for. It is one before the
// first that is missing, so that the answer proves that the engine is still the
// same process.
func (s *sequence) askFrom() uint64 {
	if s.next == 0 {
		return 0
	}
	return s.next - 1
}

// recovery is what follows from a replay.
type recovery struct {
	// newLife: the replayed past is not the one that was applied. Start anew and
	// ask from 0.
	newLife bool
	// doubt: batches are missing for good. What was applied before is worth
	// nothing; start from an empty cache with what follows.
	doubt bool
	// apply are the batches to apply, in order. They end before the live batch.
	apply []batch
}

// recover judges a replay's answers. live is the batch that revealed the gap; nil
// if the replay was asked for without one (after a connect).
func (s *sequence) recover(answers []batch, live *batch) recovery {
	byNumber := make(map[uint64]batch, len(answers))
	for _, a := range answers {
		if _, twice := byNumber[a.seq]; !twice {
			byNumber[a.seq] = a
		}
	}
	if s.next > 0 {
		if a, ok := byNumber[s.next-1]; ok {
			if sum, seen := s.sums[a.seq]; seen && sum != xxh3.Hash(a.payload) {
				return recovery{newLife: true}
			}
		}
	}
	if live != nil {
		if a, ok := byNumber[live.seq]; ok && !slices.Equal(a.payload, live.payload) {
			// The engine changed between the live batch and the replay; the next live
			// batch will show it.
			return recovery{doubt: true}
		}
	}
	end := s.end(byNumber, live)
	start := end
	for start > s.next {
		if _, ok := byNumber[start-1]; !ok {
			break
		}
		start--
	}
	r := recovery{doubt: start > s.next}
	for n := start; n < end; n++ {
		r.apply = append(r.apply, byNumber[n])
	}
	return r
}

// end is the number after the last batch to apply from a replay.
func (s *sequence) end(answers map[uint64]batch, live *batch) uint64 {
	if live != nil {
		return live.seq
	}
	end := s.next
	for n := range answers {
		end = max(end, n+1)
	}
	return end
}

// skipTo notes that the numbers from next to before to are given up.
func (s *sequence) skipTo(to uint64) {
	s.lostFrom, s.lostTo = s.next, to
	s.next = to
}

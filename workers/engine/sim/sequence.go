package sim

import "time"

// phase is where a sequence is.
type phase uint8

const (
	waiting  phase = iota + 1 // in the queue, without blocks
	pulling                   // its blocks fill by transfer, or out of the host tier
	pulled                    // that is done, has the blocks of its prompt
	running                   // in the batch
	held                      // ended, its prompt's blocks wait for Release
	finished                  // ended or aborted
)

// sequence is a request on its way.
type sequence struct {
	Request
	prompt int // tokens of the prompt

	phase   phase
	arrived time.Duration
	// out is what was generated; state hashes prompt and out.
	out   []uint32
	state uint64
	// blocks hold the first computed tokens, and those of the running step.
	blocks   []int32
	computed int
	// ids are the contents of the leading full blocks of prompt and out, as far
	// as they were needed; root is the parent of the first.
	root BlockID
	ids  []BlockID
	// stored is how many of blocks were offered to the prefix cache. unrooted
	// keeps the rest out of it: what they continue was cleared.
	stored   int
	unrooted bool
	// decoding is set from a sequence's first token until it is preempted.
	decoding bool
	// queued is the sequence's part of Stats.QueuedTokens.
	queued int
	// hit is the number of prompt tokens that needed no prefill when the
	// sequence first started, -1 before.
	hit       int
	preempted int
	// pullEnd and pullTokens describe the transfer, or the load from the host tier if
	// loading; pullTo is how many tokens need no prefill when it ends.
	pullEnd            time.Duration
	pullTokens, pullTo int
	loading            bool
}

// length is prompt and output so far, in tokens.
func (s *sequence) length() int { return s.prompt + len(s.out) }

// named says that the prompt is known by the names of its blocks only.
func (s *sequence) named() bool { return len(s.Prompt) == 0 }

// remote is how many tokens a transfer leaves computed: the prompt's last token
// is always computed here, for its output.
func (s *sequence) remote() int { return min(s.RemoteTokens, s.prompt-1) }

// appendTokens appends a range of the tokens of prompt and output to dst.
func (s *sequence) appendTokens(dst []uint32, from, to int) []uint32 {
	n := len(s.Prompt)
	if from < n {
		dst = append(dst, s.Prompt[from:min(to, n)]...)
	}
	if to > n {
		dst = append(dst, s.out[max(from, n)-n:to-n]...)
	}
	return dst
}

// identify extends ids to n blocks of the given size, all of them full.
func (s *sequence) identify(n, size int) {
	var scratch []uint32
	for i := len(s.ids); i < n; i++ {
		parent := s.root
		if i > 0 {
			parent = s.ids[i-1]
		}
		if s.named() {
			s.ids = append(s.ids, s.name(i, parent))
			continue
		}
		tokens := s.Prompt[min(i*size, len(s.Prompt)):min((i+1)*size, len(s.Prompt))]
		if len(tokens) < size {
			scratch = s.appendTokens(scratch[:0], i*size, (i+1)*size)
			tokens = scratch
		}
		s.ids = append(s.ids, BlockID(mixTokens(uint64(parent), tokens)))
	}
}

// name is the identity of block i of a prompt without tokens: what it was given,
// or one of its own where the names end.
func (s *sequence) name(i int, parent BlockID) BlockID {
	if i < len(s.Content) {
		return s.Content[i]
	}
	return BlockID(mixString(mix(uint64(parent), uint64(i)), s.ID))
}

// ends is why the sequence ends after its newest token, Running if it goes on.
func (s *sequence) ends(stop bool) Reason {
	switch {
	case stop && !s.IgnoreEOS && len(s.out) >= s.MinTokens:
		return Stop
	case len(s.out) >= s.MaxTokens:
		return Length
	default:
		return Running
	}
}

package extproc

import (
	"math"
	"sync/atomic"

	"github.com/kvlane/kvlane/kvindex"
)

const (
	// defaultDensity is bytes of prompt text a token where nothing is learned yet:
	// English text in the vocabularies of current models is near 4.
	defaultDensity = 4.0
	// minLearnedTokens is the shortest text that says something about density: below
	// it, a chat template's own tokens weigh too much.
	minLearnedTokens = 64
	// densityWeight is the weight of one text in the moving average.
	densityWeight = 1.0 / 32
)

// density is the mean number of prompt bytes a token, learned from what engines
// tokenized and from lookups of such text. The zero value has the default. It is safe
// for concurrent use.
type density struct{ bits atomic.Uint64 }

func (d *density) bytesPerToken() float64 {
	if b := d.bits.Load(); b != 0 {
		return math.Float64frombits(b)
	}
	return defaultDensity
}

// Learned takes note of what an engine tokenized, for the estimate of text that none
// has: the caller gives it every lesson of the log.
func (r *Router) Learned(l *kvindex.Learned) { r.density.learn(int(l.Bytes), int(l.Tokens)) }

func (d *density) learn(bytes, tokens int) {
	if tokens < minLearnedTokens || bytes <= 0 {
		return
	}
	seen := float64(bytes) / float64(tokens)
	for {
		old := d.bits.Load()
		next := seen // the first prompt says more than the default
		if old != 0 {
			mean := math.Float64frombits(old)
			next = mean + densityWeight*(seen-mean)
		}
		if d.bits.CompareAndSwap(old, math.Float64bits(next)) {
			return
		}
	}
}

// tokens estimates the tokens of n bytes, rounded up; n may be 0.
func (d *density) tokens(n int) int {
	if n <= 0 {
		return 0
	}
	return int(math.Ceil(float64(n) / d.bytesPerToken()))
}
